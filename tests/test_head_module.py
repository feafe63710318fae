"""The head as a module: it takes a layer's place, chooses its chunks, refuses what it would get wrong; and its page."""

from pathlib import Path

import pytest
import torch
from blocks import blocks
from heads import WIDTH, composed, headed, hidden_of, layer, world
from torch import nn

from lossary import Batch, ColumnError, Logits, LossaryError, LossHead
from lossary.registry import Level

PPO = {"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}


def test_chunks_come_from_a_memory_budget_and_are_never_tiny():
    linear = nn.Linear(8, 1000)
    assert LossHead(linear, chunk_mib=4).sheet(torch.zeros(1, 8)).chunk == 4 * 2**20 // 4000
    assert LossHead(linear, chunk_mib=0.001).sheet(torch.zeros(1, 8)).chunk == 256
    assert LossHead(linear, chunk_mib=4).sheet(torch.zeros(1, 8), tensors=6).chunk == 256
    spans = list(LossHead(linear, chunk_tokens=300).sheet(torch.zeros(1, 8)).spans(900 + 1))
    assert [b - a for a, b in spans] == [226, 226, 226, 223]


def test_a_head_takes_the_place_of_its_layer():
    linear = layer()
    head, x = LossHead(linear, scale=0.1, softcap=1.0), torch.randn(2, 3, WIDTH, dtype=torch.float64)
    assert torch.equal(head(x), linear(x))
    assert head.state_dict().keys() == linear.state_dict().keys()
    assert head.weight is linear.weight
    assert "words=7" in repr(head)


class Adapted(nn.Linear):
    """A layer that does more than it says."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LossHead(nn.Identity()), r"LossHead\(Identity\): expected a plain nn.Linear"),
        (lambda: LossHead(Adapted(3, 4)), r"LossHead\(Adapted\): its forward is not that of a plain layer"),
        (lambda: LossHead(nn.Linear(3, 4), scale=0), "scale is 0 and softcap None; both must be above 0"),
        (lambda: LossHead(nn.Linear(3, 4), softcap=-1.0), "scale is 1.0 and softcap -1.0; both must be above 0"),
        (lambda: LossHead(nn.Linear(3, 4), chunk_tokens=0), "chunk_tokens is 0"),
        (lambda: LossHead(nn.Linear(3, 4)).scores(torch.zeros(2, 5), torch.zeros(2)), r"hidden states are \[2, 5\] after packing"),
        (lambda: LossHead(nn.Linear(3, 4)).scores(torch.zeros(2, 3), torch.zeros(4)), r"there are \[4\] token ids and \[2, 3\] hidden"),
        (lambda: LossHead(nn.Linear(3, 4)).scores(torch.zeros(2, 3).double(), torch.zeros(2)), "bring both to one dtype"),
    ],
)
def test_what_a_head_refuses(make, said):
    with pytest.raises(LossaryError, match=said):
        make()


def test_a_vocabulary_cut_over_ranks_is_refused():
    head = LossHead(layer())
    head.weight.tensor_model_parallel = True
    with pytest.raises(LossaryError, match=r"holds a part of the vocabulary \(tensor parallel\)"):
        head.scores(torch.zeros(2, WIDTH, dtype=torch.float64), torch.zeros(2))


def test_what_a_policy_gives_is_not_given_twice():
    where, objective = world(), composed(PPO)
    with pytest.raises(ColumnError, match="loss was given log_prob and a policy, which has its own"):
        headed(objective, objective.weigh(where.batch()), hidden_of(where), layer(), log_prob=where.log_prob)


def test_the_page_about_the_head_runs():
    page = (Path(__file__).resolve().parent.parent / "docs" / "head.md").read_text("utf-8")
    known = {}
    for block in blocks(page):
        if block.language == "python":
            exec(block.text, known)
    assert known["lm_head"].weight.grad.norm() > 0
    assert known["body"].weight.grad.isfinite().all()


def test_logits_of_other_models_are_bent_and_scaled_alike():
    linear, x = layer(), torch.randn(4, WIDTH, dtype=torch.float64)
    given = Logits(x, linear.weight, linear.bias, scale=0.5, softcap=2.0)
    assert torch.allclose(given.rows(x), torch.tanh(linear(x) / 2) * 2 * 0.5, rtol=1e-14)


def test_packed_rows_are_not_taken_for_padded_ones():
    """Two tokens in two rows of as many columns as a hidden state has numbers."""
    batch = Batch.from_padded(torch.eye(2, WIDTH, dtype=torch.bool), token_ids=torch.zeros(2, WIDTH, dtype=torch.long))
    x, padded = torch.randn(2, WIDTH), torch.randn(2, WIDTH, 3)
    assert torch.equal(batch.layout.pack_rows(x), x)
    assert torch.equal(batch.layout.pack_rows(padded), padded[[0, 1], [0, 1]])


def test_a_window_shows_a_few_tokens_and_spreads_what_is_known_of_their_sequences():
    batch = Batch.from_packed([2, 3], advantages=torch.arange(5.0), rewards=torch.tensor([1.0, 2.0]))
    window = batch.window(1, 3)
    assert window["advantages"].tolist() == [1, 2]
    assert window.column("rewards", Level.TOKEN).tolist() == [1, 2]
    fewer = batch.keeping(torch.tensor([True, False, True, False, True]))
    assert fewer.dropped_tokens.tolist() == [1, 3]
    assert fewer.keeping(torch.tensor([False, True, True])).dropped_tokens.tolist() == [0, 1, 3]

"""Terms over the whole vocabulary: chunked, recomputed, from logits or from hidden states, never larger than a chunk."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import World

import lossary
from lossary import ColumnError, Logits, Max, Mean, PerToken, RecipeError, SignatureError
from lossary.registry import Vocab

WORDS = 13


@lossary.auxiliary_loss(scope="token")
def squeezed(logits: Vocab, advantages: PerToken, ref_logits: Vocab = None) -> tuple[PerToken, dict]:
    """The entropy of each token times its advantage, and a pull towards a reference."""
    log_all = logits.log_softmax(-1)
    entropy = -(log_all.exp() * log_all).sum(-1)
    pull = 0.0 if ref_logits is None else (logits - ref_logits).square().mean(-1)
    return advantages * entropy + pull, {"h": Mean(entropy.detach()), "h_max": Max(entropy.detach())}


@lossary.value_loss(scope="token")
def binned(value_logits: Vocab, returns: PerToken) -> PerToken:
    """Cross entropy of the lowest bin."""
    return -value_logits.log_softmax(-1)[:, 0] * returns


@lossary.kl_estimator(scope="token")
def exact(logits: Vocab, ref_logits: Vocab) -> PerToken:
    """The KL itself."""
    a, b = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return (a.exp() * (a - b)).sum(-1)


OWN = [squeezed, binned, exact]


def composed(chunk=4, **sections):
    objective = lossary.compose({"auxiliary": {"use": "squeezed", "coef": 0.5}, **sections}, components=OWN)
    return lossary.Objective(objective.plan, chunk_tokens=chunk)


def wide(world, seed=0, requires_grad=True):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*world.mask.shape, WORDS, generator=g, dtype=torch.float64).requires_grad_(requires_grad)


@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_chunks_give_the_whole(chunk):
    world = World(1)
    logits, ref, bins = wide(world), wide(world, 1, requires_grad=False), wide(world, 2)
    objective = composed(chunk, kl={"use": "exact", "coef": 0.2}, value_loss="binned")
    out = objective.loss(objective.weigh(world.batch()), logits=logits, ref_logits=ref, value_logits=bins)
    out.total.backward()
    mask, n = world.mask, world.mask.sum()
    plain, crit = logits.detach().clone().requires_grad_(), bins.detach().clone().requires_grad_()
    a, b = plain.log_softmax(-1), ref.log_softmax(-1)
    h = -(a.exp() * a).sum(-1)
    actor = 0.5 * (world.columns["advantages"] * h + (plain - ref).square().mean(-1)) + 0.2 * (a.exp() * (a - b)).sum(-1)
    critic = -crit.log_softmax(-1)[..., 0] * world.columns["returns"]
    want = (actor[mask].sum() + critic[mask].sum()) / n
    want.backward()
    h = h.detach()
    assert torch.allclose(out.total, want, rtol=1e-12)
    assert torch.allclose(logits.grad, plain.grad, rtol=1e-11, atol=1e-15)
    assert torch.allclose(bins.grad, crit.grad, rtol=1e-11, atol=1e-15)
    told = objective.metrics(out)
    assert abs(told["actor/h"] - float(h[mask].mean())) < 1e-12
    assert abs(told["actor/h_max"] - float(h[mask].max())) < 1e-12


def test_hidden_states_and_a_head_are_the_same_as_their_logits():
    world = World(2)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(*world.mask.shape, 6, generator=g, dtype=torch.float64)
    weight, bias = torch.randn(WORDS, 6, generator=g, dtype=torch.float64), torch.randn(WORDS, generator=g, dtype=torch.float64)
    found = []
    for lazy in (True, False):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
        objective, total = composed(), 0.0
        for micro in objective.split(objective.weigh(world.batch()), parts=2):
            some = leaves[0][micro.rows]
            given = Logits(some, *leaves[1:], scale=0.5) if lazy else torch.nn.functional.linear(some, *leaves[1:]) * 0.5
            total = total + objective.loss(micro, logits=given).total
        total.backward()
        found.append([total.detach(), *(x.grad for x in leaves)])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-14)


def test_garbage_under_the_mask_and_dropped_tokens_reach_nothing():
    world = World(3)

    @lossary.correction
    def some(advantages: PerToken) -> tuple[None, PerToken]:
        """Keep what was good."""
        return None, advantages > 0

    plan = lossary.compose(
        {"auxiliary": {"use": "squeezed", "coef": 1.0}, "correction": {"use": "some", "denominator": "kept"}}, components=[*OWN, some]
    ).plan
    keep = world.mask & (world.columns["advantages"] > 0)
    found = []
    for fill in (0.0, float("nan"), float("inf")):
        objective = lossary.Objective(plan, chunk_tokens=3)
        logits = torch.where(keep[..., None], wide(world, requires_grad=False), fill).requires_grad_()
        out = objective.loss(objective.weigh(objective.estimate(world.batch())), logits=logits)
        out.total.backward()
        found.append((out.total.detach(), logits.grad))
    for total, grad in found[1:]:
        assert torch.equal(total, found[0][0])
        assert torch.equal(grad, found[0][1])
    assert (found[0][1][~keep] == 0).all()


def test_nothing_outlives_its_chunk():
    """With hidden states the largest tensor of the forward pass, and of what it saves for the backward, is a chunk's logits."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(x, torch.Tensor):
                    Largest.size = max(Largest.size, x.numel())
            return out

    n, words, chunk = 512, 100, 32
    batch = lossary.Batch.from_packed([n], advantages=torch.randn(n))
    hidden, weight = torch.randn(n, 4, requires_grad=True), torch.randn(words, 4, requires_grad=True)
    objective = composed(chunk)
    weighed = objective.weigh(batch)
    saved = []
    with Largest(), torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        out = objective.loss(weighed, logits=Logits(hidden, weight))
    assert sum(saved) < 20 * n
    out.total.backward()
    assert Largest.size == chunk * words


def test_half_precision_logits_are_widened_chunk_by_chunk():
    world = World(4, dtype=torch.float32)
    objective = composed()
    half = wide(world, requires_grad=False).bfloat16().requires_grad_()
    plain = half.detach().float().requires_grad_()
    totals = [objective.loss(objective.weigh(world.batch()), logits=x).total for x in (half, plain)]
    for total in totals:
        total.backward()
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(half.grad, plain.grad.bfloat16())


def test_a_batch_without_a_token_still_has_a_graph():
    world = World(5)
    world.mask[:] = False
    hidden = torch.zeros(*world.mask.shape, 3, requires_grad=True)
    weight = torch.zeros(WORDS, 3, requires_grad=True)
    objective = composed()
    objective.loss(objective.weigh(world.batch()), logits=Logits(hidden, weight)).total.backward()
    assert (hidden.grad == 0).all()
    assert (weight.grad == 0).all()


def test_what_is_asked_and_not_given():
    world, objective = World(6), composed(kl={"use": "exact", "coef": 0.1})
    assert objective.needs("loss") == {"logits": "kl 'exact'", "ref_logits": "kl 'exact'"}
    weighed = objective.weigh(world.batch())
    with pytest.raises(ColumnError, match=r"kl 'exact' needs 'ref_logits' from the model: loss\(micro, ref_logits=\.\.\.\)"):
        objective.loss(weighed, logits=wide(world))
    with pytest.raises(ColumnError, match=r"logits is int; expected a tensor of logits or Logits\(hidden, weight\)"):
        objective.loss(weighed, logits=3, ref_logits=wide(world))
    with pytest.raises(ColumnError, match=r"logits is torch.float64 \[\d+\] after packing; expected real numbers \[tokens, words\]"):
        objective.loss(weighed, logits=world.log_prob, ref_logits=wide(world))
    with pytest.raises(ColumnError, match="log_prob is Logits; expected real numbers"):
        objective.loss(weighed, log_prob=Logits(wide(world), wide(world)[0]), logits=wide(world), ref_logits=wide(world))


def test_words_in_the_reward_are_refused_and_so_are_wider_scopes():
    with pytest.raises(RecipeError, match=r"kl.apply: 'exact' reads logits, which only a loss sees"):
        lossary.compose(
            {"advantage": "grpo", "policy_loss": "reinforce", "kl": {"use": "exact", "coef": 0.1, "apply": "reward"}}, components=OWN
        )
    with pytest.raises(SignatureError, match="it reads 'logits' and is called on chunks of tokens, so its scope is 'token'"):

        @lossary.auxiliary_loss
        def wider(logits: Vocab) -> PerToken: ...


def test_a_chunk_must_come_back_as_long_as_it_was():
    @lossary.auxiliary_loss(scope="token")
    def odd(logits: Vocab) -> PerToken:
        return logits.sum()

    objective = lossary.compose({"auxiliary": {"use": "odd", "coef": 1.0}}, components=[odd])
    world = World(7)
    with pytest.raises(ColumnError, match=r"auxiliary_loss 'odd' returned \[\] for a chunk of \d+ tokens; expected one value per token"):
        objective.loss(objective.weigh(world.batch()), logits=wide(world))

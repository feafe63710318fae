"""Batches after the border: later edits, packing and unpacking."""

import pytest
import torch
from hypothesis import given
from shapes import NAN, few, nested, padded

from lossary.batch import Batch
from lossary.registry import ColumnError


@pytest.mark.parametrize("full", [True, False])
def test_snapshot_O4_later_edits_of_the_callers_tensors_change_nothing(full):
    mask = torch.tensor([[1, 1], [1, int(full)]])
    columns = {
        "old_log_prob": torch.full((2, 2), -1.0), "token_ids": torch.ones(2, 2, dtype=torch.long), "rewards": torch.ones(2),
        "group_ids": torch.tensor([3, 3]), "prompt_lengths": torch.tensor([1, 1]),
    }  # fmt: skip
    batch = Batch.from_padded(mask, **columns)
    for x in (mask, *columns.values()):
        x.fill_(0)
    assert batch["old_log_prob"].tolist() == [-1.0] * (3 + full)
    assert batch["token_ids"].tolist() == [1] * (3 + full)
    assert batch["rewards"].tolist() == [1.0, 1.0]
    assert batch["group_ids"].tolist() == [3, 3]
    assert batch["prompt_lengths"].tolist() == [1, 1]
    assert batch.lengths == (2, 1 + full)


@pytest.mark.parametrize("masked", [True, False])
def test_snapshot_O4_holds_for_packed_columns_too(masked):
    log_prob, lengths = torch.tensor([-1.0, -1.0]), torch.tensor([1, 1])
    mask = torch.ones(2, dtype=torch.bool) if masked else None
    batch = Batch.from_packed(lengths, old_log_prob=log_prob, response_mask=mask)
    log_prob.fill_(-0.6)
    lengths.fill_(9)
    kl = torch.exp(batch["old_log_prob"] + 0.6) - (batch["old_log_prob"] + 0.6) - 1
    assert kl.tolist() == pytest.approx([0.0703200460356] * 2, abs=1e-6)
    assert batch.sequences.lengths.tolist() == [1, 1]


@few
@given(padded())
def test_pack_undoes_unpack(given_):
    mask, columns = given_
    batch = Batch.from_padded(mask, **columns)
    x = columns["old_log_prob"]
    assert batch.pack(batch.unpack(batch["old_log_prob"], NAN)).equal(batch["old_log_prob"])
    assert batch.unpack(batch.pack(x), -7.0).equal(torch.where(mask, x, -7.0))
    assert batch.pack(batch["old_log_prob"]).equal(batch["old_log_prob"])
    wide = torch.stack([x, x + 1], -1)
    assert batch.unpack(batch.pack(wide)).equal(torch.where(mask[..., None], wide, 0.0))


def test_pack_and_unpack_are_differentiable():
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]])
    batch = Batch.from_padded(mask)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(batch.pack, [x])
    y = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(batch.unpack, [y])


def test_a_nested_batch_gives_nested_columns_back():
    mask = nested([torch.tensor([1, 0, 1]), torch.tensor([1]), torch.tensor([0, 1])])
    batch = Batch.from_nested(mask, old_log_prob=nested([torch.tensor([1.0, NAN, 2.0]), torch.tensor([3.0]), torch.tensor([NAN, 4.0])]))
    out = batch.unpack(batch["old_log_prob"], -1.0)
    assert out.is_nested
    assert [row.tolist() for row in out.unbind()] == [[1.0, -1.0, 2.0], [3.0], [-1.0, 4.0]]
    assert batch.pack(out).tolist() == [1.0, 2.0, 3.0, 4.0]
    part = batch.take([2, 0])
    assert [row.tolist() for row in part.unpack(part["old_log_prob"]).unbind()] == [[0.0, 4.0], [1.0, 0.0, 2.0]]


def test_an_outside_tensor_of_the_wrong_shape_is_named():
    batch = Batch.from_padded([[1, 1, 0], [1, 0, 0]])
    for bad in (torch.zeros(2, 5), torch.zeros(4), torch.zeros(4, 3)):
        with pytest.raises(ColumnError) as caught:
            batch.pack(bad)
        assert f"the tensor has the shape {list(bad.shape)}; expected [2, 3] (padded) or [3] (packed)." in str(caught.value)
        assert ("is cut by pack(x, shift=True)" in str(caught.value)) == (bad.shape == (2, 5))
    with pytest.raises(ColumnError, match="log_prob is a single number"):
        batch.layout.pack(torch.tensor(1.0), "log_prob")
    with pytest.raises(ColumnError, match=r"has the shape \[2\]; expected \[3, \.\.\.\]: one value per sampled token"):
        batch.unpack(torch.zeros(2))
    packed = Batch.from_packed([3, 2], response_mask=torch.tensor([0, 1, 1, 0, 1]))
    assert packed.pack(torch.arange(5.0)).tolist() == [1.0, 2.0, 4.0]
    assert packed.pack(torch.arange(3.0)).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ColumnError, match=r"the tensor has 4 positions; expected 5 \(prompt and response\) or 3 \(sampled tokens\)\."):
        packed.pack(torch.zeros(4))
    with pytest.raises(ColumnError, match=r"the tensor has 3 positions; expected 5 \(prompt and response\)\."):
        packed.pack(torch.zeros(3), shift=True)

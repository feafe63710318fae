"""The border: group ids and what the host may see of them."""

import numpy as np
import pytest
import torch
from bordering import MASK, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from lossary.batch import Batch
from lossary.batch.border import ranked
from lossary.registry import ColumnError

few = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b"],
        [7, -3, 7],
        (2**62, 0, 2**62),
        np.array([5, 1, 5]),
        np.array(["x", "y", "x"]),
        torch.tensor([4, 2, 4], dtype=torch.int32),
        torch.tensor([True, False, True]),
        [np.int64(9), np.int64(8), np.int64(9)],
    ],
)
def test_group_ids_of_all_sorts(ids):
    batch = Batch.from_padded(torch.ones(3, 1), group_ids=ids)
    assert batch["group_ids"].dtype == torch.long
    assert batch.groups[0] == batch.groups[2] != batch.groups[1]
    assert batch.sequences.groups.tolist() == list(batch.groups)
    assert batch.sequences.slots.tolist() == sorted(set(batch["group_ids"].tolist()))
    assert batch.sequences.group_spread(batch.sequences.group_size()).tolist() == [2.0, 1.0, 2.0]


def test_text_ids_are_the_same_on_every_rank_and_in_every_order():
    one = Batch.from_padded(torch.ones(2, 1), group_ids=["prompt-1", "prompt-2"])
    two = Batch.from_padded(torch.ones(3, 1), group_ids=["prompt-2", "prompt-3", "prompt-1"])
    assert one["group_ids"].tolist() == two["group_ids"][[2, 0]].tolist() == [9205575635437560729, 6902194394242902595]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros(2), "column 'group_ids' is torch.float32 [2]; expected 2 integers or strings, one per sequence."),
        (torch.zeros(3, dtype=torch.long), "column 'group_ids' is torch.int64 [3]; expected 2 integers"),
        (torch.zeros(2, 3, dtype=torch.long), "column 'group_ids' is torch.int64 [2, 3]"),
        (["a"], "column 'group_ids' has 1 entries for 2 sequences."),
        ("ab", "column 'group_ids' has 1 entries for 2 sequences."),
        (7, "column 'group_ids' has 1 entries for 2 sequences."),
        ([1.0, 2.0], "column 'group_ids' must hold integers or strings: 1.0 is neither."),
        (["a", 1], "column 'group_ids' must hold integers or strings: "),
        ([None, None], "column 'group_ids' must hold integers or strings: "),
        ([2**70, 1], "column 'group_ids' must hold integers or strings: "),
    ],
)
def test_group_ids_that_say_nothing(ids, said):
    assert said in refused(group_ids=ids)


def test_two_texts_with_one_hash(monkeypatch):
    class Same:
        def __init__(self, *_, **__): ...

        def digest(self):
            return b"\0" * 8

    monkeypatch.setattr("lossary.batch.border.blake2b", Same)
    assert refused(group_ids=["a", "b"]) == "two different group ids have the same 64-bit hash; rename one."


@few
@given(st.lists(st.integers(-5, 5)))
def test_ranked_counts_from_zero_in_the_order_of_the_ids(ids):
    out = ranked(ids)
    assert all((a < b) == (x < y) for a, x in zip(out, ids, strict=True) for b, y in zip(out, ids, strict=True))
    assert set(out) == set(range(len(set(ids))))


def test_without_group_ids_group_sums_say_what_is_missing():
    batch = Batch.from_padded(MASK)
    assert batch.groups == ()
    with pytest.raises(ColumnError, match="which sequences answer the same prompt, but the batch has no 'group_ids'"):
        batch.sequences.group_sum(torch.zeros(2))


def test_prompt_lengths_are_known_on_the_host():
    batch = Batch.from_padded(MASK, prompt_lengths=torch.tensor([4, 2], dtype=torch.int32))
    assert batch.prompts == (4, 2)
    assert batch.take([1]).prompts == (2,)

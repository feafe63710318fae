"""A batch: three ways in that agree, nothing of what stood under the mask, and parts that stay consistent."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shapes import INF, NAN, few, nested, padded

from lossary.batch import Batch, OneRank, Sequences
from lossary.registry import ColumnError, Level, Mean, Totals


def same(a, b):
    assert (a.lengths, a.groups, a.prompts, len(a)) == (b.lengths, b.groups, b.prompts, len(b))
    assert a.levels == b.levels
    for x, y in ((a.sequences, b.sequences), (a.columns, b.columns), (a.weights, b.weights)):
        x, y = (v if isinstance(v, dict) else {k: t for k, t in vars(v).items() if k != "ranks"} for v in (x, y))
        assert x.keys() == y.keys()
        for name in x:
            assert (x[name] is None) == (y[name] is None)
            if x[name] is not None:
                assert x[name].dtype == y[name].dtype
                assert torch.equal(x[name], y[name]), name


def flattened(mask, columns):
    """The same data end to end: every row keeps all of its positions."""
    return {n: x.flatten() if x.dim() == 2 else x for n, x in columns.items()}


# ── three ways in ────────────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(padded())
def test_padded_nested_and_packed_are_the_same_batch(given_):
    mask, columns = given_
    rows, width = mask.shape
    one = Batch.from_padded(mask, **columns)
    jagged = {n: nested(x) if x.dim() == 2 else x for n, x in columns.items()}
    same(one, Batch.from_nested(nested(mask), **jagged))
    flat = flattened(mask, columns)
    same(one, Batch.from_packed([width] * rows, response_mask=mask.flatten(), per_sequence=["rewards"], **flat))
    edges = torch.arange(rows + 1) * width
    same(one, Batch.from_packed(cu_seqlens=edges, response_mask=mask.flatten().long(), per_sequence=["rewards"], **flat))
    assert one.lengths == tuple(mask.sum(1).tolist())
    assert one["old_log_prob"].tolist() == columns["old_log_prob"][mask].tolist()
    assert one["token_ids"].dtype == torch.long
    assert one["rewards"].tolist() == columns["rewards"].tolist()
    assert one.rows.tolist() == list(range(rows))


@few
@given(padded())
def test_sampled_tokens_alone_make_the_same_batch(given_):
    mask, columns = given_
    bare = {n: x[mask] if x.dim() == 2 else x for n, x in columns.items()}
    same(Batch.from_padded(mask, **columns), Batch.from_packed(mask.sum(1), per_sequence=["rewards"], **bare))


@pytest.mark.parametrize("cast", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_masks_of_every_dtype(cast):
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    batch = Batch.from_padded(mask.to(cast), old_log_prob=torch.arange(6.0).view(2, 3))
    assert batch["old_log_prob"].tolist() == [0.0, 2.0]
    assert batch.lengths == (2, 0)


def test_halves_are_widened_and_doubles_stay():
    x = torch.tensor([[0.1, 0.2]])
    for dtype, kept in ((torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)):
        assert Batch.from_padded(torch.ones(1, 2), old_log_prob=x.to(dtype))["old_log_prob"].dtype == kept
    batch = Batch.from_padded([[1, 1]], truncated=[True], positions=torch.tensor([[0, 1]], dtype=torch.int32), rewards=[3])
    assert (batch["truncated"].dtype, batch["positions"].dtype, batch["rewards"].dtype) == (torch.float32, torch.int32, torch.float32)


def test_only_differentiable_columns_keep_their_graph():
    mask = torch.ones(1, 2)
    x = torch.zeros(1, 2, requires_grad=True)
    batch = Batch.from_padded(mask, log_prob=x, old_log_prob=x + 1)
    assert batch["log_prob"].requires_grad
    assert not batch["old_log_prob"].requires_grad
    batch["log_prob"].sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0]]


def test_wide_columns():
    mask = torch.tensor([[1, 0], [1, 1]])
    wide = torch.arange(12.0).view(2, 2, 3)
    parts = torch.arange(8.0).view(2, 4)
    batch = Batch.from_padded(mask, teacher_topk_log_prob=wide, component_rewards=parts)
    assert batch["teacher_topk_log_prob"].tolist() == wide[mask.bool()].tolist()
    assert batch["component_rewards"].tolist() == parts.tolist()
    assert batch.column("component_rewards", Level.TOKEN).shape == (3, 4)


# ── edges ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (2, 3)])
def test_batches_without_a_token(shape):
    mask = torch.zeros(shape)
    batch = Batch.from_padded(mask, old_log_prob=torch.full(shape, NAN), rewards=torch.arange(float(shape[0])), group_ids=[5] * shape[0])
    assert batch.lengths == (0,) * shape[0]
    assert batch["old_log_prob"].shape == (0,)
    assert batch["rewards"].tolist() == list(range(shape[0]))
    assert batch.unpack(torch.zeros(0)).shape == shape
    assert batch.pack(torch.zeros(shape)).shape == (0,)
    s = batch.sequences
    assert s.sum(torch.zeros(0)).tolist() == [0.0] * shape[0]
    assert s.group_size().tolist() == ([float(shape[0])] if shape[0] else [])
    assert s.reverse_scan(torch.zeros(0)).shape == (0,)
    part = batch.take(list(range(shape[0])))
    assert part.sequences.group_size().tolist() == s.group_size().tolist()


def test_no_sequences_still_know_that_they_have_groups():
    batch = Batch.from_padded(torch.ones(2, 2), group_ids=["a", "b"]).take([])
    assert (len(batch), batch.sequences.group_size().tolist()) == (0, [])
    again = batch.take([])
    assert again.sequences.group_sum(torch.zeros(0)).tolist() == []


def test_an_empty_sequence_counts_in_its_group():
    batch = Batch.from_padded([[0, 0], [1, 1]], rewards=torch.tensor([4.0, 0.0]), group_ids=["a", "a"])
    assert batch.sequences.group_mean(batch["rewards"]).tolist() == [2.0]


def test_as_many_positions_as_sequences():
    x, ids = torch.tensor([1.0, 2.0, 3.0]), [0, 0, 1]
    # Three positions in three sequences, of which one is empty: the shape alone cannot tell.
    batch = Batch.from_packed([2, 1, 0], old_log_prob=x, rewards=x, advantages=x, per_sequence=["advantages"], group_ids=ids)
    assert batch.levels == {
        "old_log_prob": Level.TOKEN, "rewards": Level.SEQUENCE, "advantages": Level.SEQUENCE, "group_ids": Level.SEQUENCE
    }  # fmt: skip
    assert batch.column("advantages", Level.TOKEN).tolist() == [1.0, 1.0, 2.0]
    # One position each: both readings hold the same numbers.
    even = Batch.from_packed([1, 1, 1], old_log_prob=x, rewards=x)
    assert even.levels == {"old_log_prob": Level.TOKEN, "rewards": Level.SEQUENCE}
    coarse = Batch.from_packed([1, 1, 1], old_log_prob=x, per_sequence=["old_log_prob"])
    assert coarse.levels == {"old_log_prob": Level.SEQUENCE}
    assert coarse.column("old_log_prob", Level.TOKEN).tolist() == even["old_log_prob"].tolist()


def test_verls_names_may_stand_in_per_sequence():
    batch = Batch.from_packed([2, 0], names="verl", values=[1.0, 2.0], per_sequence=["values"])
    assert batch.levels == {"old_values": Level.SEQUENCE}


# ── nothing of what stood under the mask ─────────────────────────────────────────────────────────────────────────────

GARBAGE = [NAN, INF, -INF, 1e38, 0.0]


@few
@given(padded(), st.integers(0, 2**31))
def test_mask_O2_O6_O8_garbage_under_the_mask_changes_no_bit(given_, seed):
    mask, columns = given_
    generator = torch.Generator().manual_seed(seed)
    dirty = dict(columns)
    junk = torch.tensor(GARBAGE, dtype=columns["old_log_prob"].dtype)[torch.randint(0, 5, mask.shape, generator=generator)]
    dirty["old_log_prob"] = torch.where(mask, columns["old_log_prob"], junk)
    dirty["token_ids"] = torch.where(mask, columns["token_ids"], -(10**9))
    same(Batch.from_padded(mask, **columns), Batch.from_padded(mask, **dirty))


def test_garbage_in_a_models_output_gets_no_gradient_and_gives_none():
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]])
    batch = Batch.from_padded(mask)
    x = torch.tensor([[1.0, NAN, 2.0], [INF, 3.0, -INF]], requires_grad=True)
    (batch.pack(x) ** 2).sum().backward()
    assert x.grad.tolist() == [[2.0, 0.0, 4.0], [0.0, 6.0, 0.0]]


def test_mask_O5_tokens_of_tools_get_no_gradient():
    sources = ["policy", "env", "env", "policy"]
    batch = Batch.from_padded([[s == "policy" for s in sources]], advantages=torch.ones(1, 4))
    log_prob = torch.full((1, 4), -1.0, requires_grad=True)
    loss = -(batch.pack(log_prob).exp() / batch.pack(log_prob).detach().exp() * batch["advantages"]).mean()
    loss.backward()
    assert loss.item() == pytest.approx(-1.0)
    assert log_prob.grad.tolist() == [[-0.5, 0.0, 0.0, -0.5]]


def test_mask_O7_an_eos_that_was_sampled_is_a_token_though_padding_looks_alike():
    ids, lengths = torch.tensor([[5, 6, 2, 2], [7, 2, 2, 2]]), torch.tensor([3, 2])
    batch = Batch.from_padded(torch.arange(4) < lengths[:, None], token_ids=ids)
    assert batch["token_ids"].tolist() == [5, 6, 2, 7, 2]
    assert batch.unpack(torch.ones(5)).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


def test_mask_O10_a_token_without_context_has_no_score():
    scores = torch.tensor([-1.0, -3.0, 9.0])  # what the model says at each position of the next one
    whole = Batch.from_packed([3], response_mask=torch.tensor([1, 1, 1]))
    with pytest.raises(ColumnError, match="a sampled token stands first in its sequence, so no position speaks of it"):
        whole.pack(scores, shift=True)
    rest = Batch.from_packed([3], response_mask=torch.tensor([0, 1, 1]))
    assert rest.sequences.mean(rest.pack(scores, shift=True)).tolist() == [-2.0]


def test_value_O2_the_mask_of_a_response_is_its_own_part_of_the_attention():
    attention = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    response_mask = attention[:, -3:]
    batch = Batch.from_padded(response_mask)
    assert batch.unpack(torch.ones(5)).tolist() == response_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    values = torch.arange(12.0).view(2, 6)
    assert batch.pack(values, shift=True).tolist() == [2.0, 3.0, 4.0, 8.0, 9.0]


def test_gae_O4_a_score_is_paid_on_the_last_sampled_token():
    batch = Batch.from_padded([[1, 1, 1, 0], [1, 1, 1, 1]], rewards=[5.0, 7.0])
    placed = batch.sequences.place_last(batch["rewards"])
    assert batch.unpack(placed).tolist() == [[0.0, 0.0, 5.0, 0.0], [0.0, 0.0, 0.0, 7.0]]


def test_metric_O5_lengths_outlive_what_is_dropped():
    batch = Batch.from_padded([[1, 1, 0, 0], [1, 1, 1, 1]])
    kept = batch.select(torch.tensor([1, 1, 0, 0, 0, 0], dtype=torch.bool))
    assert kept.lengths == (2, 0)
    assert batch.lengths == (2, 4)
    assert batch.sequences.lengths.double().mean().item() == 3.0


# ── later edits ──────────────────────────────────────────────────────────────────────────────────────────────────────


# ── pack and unpack ──────────────────────────────────────────────────────────────────────────────────────────────────


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_levels_are_spread_on_request_and_never_summed():
    batch = Batch.from_padded([[1, 1], [1, 0]], rewards=torch.tensor([1.0, 2.0]), advantages=torch.ones(2, 2))
    assert batch.column("rewards").tolist() == batch.column("rewards", Level.SEQUENCE).tolist() == [1.0, 2.0]
    assert batch.column("rewards", Level.TOKEN).tolist() == [1.0, 1.0, 2.0]
    with pytest.raises(ColumnError, match="column 'advantages' has one value per token; one per sequence was asked for"):
        batch.column("advantages", Level.SEQUENCE)
    with pytest.raises(ColumnError, match="the batch has no column 'returns'; it has advantages and rewards"):
        batch.column("returns")
    assert "rewards" in batch
    assert "returns" not in batch


def test_a_token_column_may_be_given_per_sequence():
    batch = Batch.from_padded([[1, 1], [1, 0], [0, 0]], advantages=torch.tensor([1.0, 2.0, 3.0]))
    assert batch.levels["advantages"] is Level.SEQUENCE
    assert batch.column("advantages", Level.TOKEN).tolist() == [1.0, 1.0, 2.0]


def test_with_columns_returns_another_batch():
    batch = Batch.from_padded([[1, 1]], rewards=[1.0])
    more = batch.with_columns(Level.TOKEN, advantages=torch.ones(2), rewards=torch.zeros(2))
    assert more.levels == {"rewards": Level.TOKEN, "advantages": Level.TOKEN}
    assert batch.levels == {"rewards": Level.SEQUENCE}
    assert "advantages" not in batch
    with pytest.raises(AttributeError):
        batch.lengths = ()


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(padded(), st.data())
def test_take_is_the_batch_of_those_rows(given_, data):
    mask, columns = given_
    rows = mask.shape[0]
    chosen = data.draw(st.lists(st.integers(0, rows - 1), max_size=6))
    whole = Batch.from_padded(mask, prompt_lengths=torch.arange(rows), **columns)
    whole = whole.with_columns(Level.TOKEN, marked=torch.arange(float(len(whole["token_ids"]))))
    whole = replace(whole, weights={"token-mean": whole["marked"] * 2})
    part = whole.take(chosen)
    fresh = Batch.from_padded(
        mask[chosen], prompt_lengths=torch.tensor(chosen, dtype=torch.long), **{n: x[chosen] for n, x in columns.items()}
    )
    marked = part["marked"]
    same(replace(part.without(["marked"]), weights={}), fresh)
    expected = torch.full(mask.shape, -1.0)
    expected[mask] = torch.arange(float(mask.sum()))
    assert marked.tolist() == expected[chosen][mask[chosen]].tolist()
    assert part.weights["token-mean"].equal(marked * 2)
    assert part.rows.tolist() == chosen
    assert part.unpack(part["old_log_prob"]).equal(fresh.unpack(fresh["old_log_prob"]))
    again = part.take(list(range(len(part)))[::-1])
    assert again.rows.tolist() == chosen[::-1]


@few
@given(padded(), st.integers(0, 2**31))
def test_select_is_a_smaller_mask(given_, seed):
    mask, columns = given_
    keep = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    whole = Batch.from_padded(mask, **columns)
    part, fresh = whole.select(whole.pack(keep)), Batch.from_padded(mask & keep, **columns)
    same(part, fresh)
    assert part.unpack(part["old_log_prob"]).equal(fresh.unpack(fresh["old_log_prob"]))
    assert part.rows.equal(whole.rows)


def test_groups_after_take_are_counted_anew_and_whole():
    batch = Batch.from_padded(torch.ones(4, 1), rewards=torch.tensor([1.0, 3.0, 5.0, 9.0]), group_ids=["b", "a", "b", "c"])
    assert batch.sequences.slots.shape == (3,)
    part = batch.take([2, 0])
    assert part.sequences.slots.shape == (1,)
    assert part.groups == (0, 0)
    assert part.sequences.group_mean(part["rewards"]).tolist() == [3.0]
    assert part["group_ids"].unique().shape == (1,)
    assert part["group_ids"][0] == batch["group_ids"][0]


def test_select_keeps_the_groups_and_their_ranks():
    class Doubled(OneRank):
        def sum(self, x):
            return 2 * x

    batch = Batch.from_padded(torch.ones(3, 2), group_ids=[4, 9, 4])
    ranks = Doubled()
    batch = replace(batch, sequences=batch.sequences.across(ranks))
    part = batch.select(torch.tensor([1, 0, 0, 0, 1, 1], dtype=torch.bool))
    assert part.sequences.ranks is ranks
    assert part.sequences.lengths.tolist() == [1, 0, 2]
    assert part.sequences.group_spread(part.sequences.group_size()).tolist() == [4.0, 2.0, 4.0]


def test_to_moves_every_tensor():
    batch = Batch.from_padded([[1, 1], [1, 0]], rewards=[1.0, 2.0], group_ids=[0, 0])
    totals = Totals(*(torch.ones(()) for _ in range(4)))
    reports = {"x": Mean(torch.ones(2), torch.ones(2, dtype=torch.bool)), "n": 3}
    batch = replace(batch, totals=totals, weights={"w": torch.ones(3)}, reports=reports)
    moved = batch.to("meta")
    tensors = [moved.rows, moved.layout.source, moved.layout.starts, *moved.columns.values(), *moved.weights.values()]
    tensors += [moved.sequences.lengths, moved.sequences.offsets, moved.sequences.index, moved.sequences.groups, moved.sequences.slots]
    tensors += [*vars(moved.totals).values(), moved.reports["x"].x, moved.reports["x"].where]
    assert {t.device.type for t in tensors} == {"meta"}
    assert (moved.lengths, moved.groups, moved.layout.spans, moved.reports["n"]) == (batch.lengths, batch.groups, batch.layout.spans, 3)
    assert batch.rows.device.type == "cpu"
    assert isinstance(moved.sequences, Sequences)
    same(batch.to("cpu"), batch)


def test_a_number_that_is_spread_over_all_tokens_stays_one_number_in_every_part():
    batch = Batch.from_packed(torch.tensor([3, 1, 4]))
    batch = replace(batch, weights={"one": torch.tensor(0.125, dtype=torch.float64).expand(8), "each": torch.arange(8.0)})
    for part in (batch, batch.take([2, 0]), batch.window(2, 7), batch.select(torch.arange(8) % 2 == 0)):
        assert part.weights["one"].stride() == (0,)
        assert part.common_weight("one").item() == 0.125
        assert part.common_weight("each") is None
        assert part.weights["one"].shape == part.weights["each"].shape == part.sequences.index.shape
    assert batch.take([1]).common_weight("each") is None

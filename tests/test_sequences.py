"""The ladder token -> sequence -> group, each rung against an obvious loop in float64, and each sequence by itself."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from lossary.batch import ONE_RANK, Sequences, SimulatedRanks

few = settings(max_examples=40, deadline=None)
NAN, INF = float("nan"), float("inf")


@st.composite
def laid(draw, dtype=torch.float64):
    """Sequences (some empty), a value per token and per sequence, and group ids with gaps."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = torch.tensor(draw(st.lists(st.sampled_from([-4, 0, 9]), min_size=len(lengths), max_size=len(lengths))))
    x = torch.randn(sum(lengths), generator=generator, dtype=dtype)
    y = torch.randn(len(lengths), generator=generator, dtype=dtype)
    return make(lengths, ids), lengths, ids, x, y


def make(lengths, ids=None):
    count = len(set(ids.tolist())) if ids is not None else None
    return Sequences.of(torch.tensor(lengths, dtype=torch.long), sum(lengths), ids, count)


def rows(x, lengths):
    return [part.tolist() for part in x.split(lengths)]


def close(x, wanted):
    assert x.tolist() == pytest.approx(wanted, abs=1e-9)


# ── token <-> sequence ───────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(laid())
def test_sums_means_and_maxima_of_sequences(case):
    s, lengths, _, x, y = case
    parts = rows(x, lengths)
    close(s.sum(x), [sum(p) for p in parts])
    close(s.mean(x), [sum(p) / len(p) if p else 0.0 for p in parts])
    assert s.max(x).tolist() == [max(p, default=-INF) for p in parts]
    assert s.spread(y).tolist() == [v for v, n in zip(y.tolist(), lengths, strict=True) for _ in range(n)]
    assert s.offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths))]


@few
@given(laid())
def test_what_lies_along_a_sequence(case):
    s, lengths, _, x, y = case
    parts = rows(x, lengths)
    assert s.places.tolist() == [i for n in lengths for i in range(n)]
    assert s.is_last.tolist() == [i == n - 1 for n in lengths for i in range(n)]
    assert s.next(x, 7.0).tolist() == [v for p in parts for v in ([*p[1:], 7.0] if p else [])]
    assert s.next(x, y).tolist() == [v for p, last in zip(parts, y.tolist(), strict=True) for v in ([*p[1:], last] if p else [])]
    assert s.next(x).tolist() == s.next(x, 0.0).tolist()
    placed = [[0.0] * (n - 1) + [v] for n, v in zip(lengths, y.tolist(), strict=True) if n]
    assert s.place_last(y).tolist() == [v for p in placed for v in p]
    close(s.cumsum(x), [sum(p[: i + 1]) for p in parts for i in range(len(p))])


def test_wide_columns_and_booleans_add_up_too():
    s = make([2, 0, 1])
    wide = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert s.sum(wide).tolist() == [[4.0, 6.0], [0.0, 0.0], [5.0, 6.0]]
    assert s.mean(wide).tolist() == [[2.0, 3.0], [0.0, 0.0], [5.0, 6.0]]
    held = torch.tensor([True, True, True])
    assert s.sum(held).tolist() == [2, 0, 1]
    assert s.mean(torch.tensor([True, False, True])).tolist() == [0.5, 0.0, 1.0]
    assert s.sum(torch.tensor([1, 2, 3])).dtype == torch.long


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_num_O3_sums_are_kept_in_float64_on_the_way(dtype):
    x = torch.full((4096,), 0.01, dtype=dtype)
    s = make([4096])
    exact = x[0].double().item() * 4096
    assert s.sum(x).item() == pytest.approx(exact, rel=1e-3)
    assert s.sum(x).dtype == s.mean(x).dtype == dtype
    assert s.cumsum(x)[-1].item() == pytest.approx(exact, rel=1e-3)
    assert s.reverse_scan(x)[0].item() == pytest.approx(exact, rel=1e-3)
    large = torch.tensor([1e8, 1.0, -1e8], dtype=torch.float32)
    assert make([3]).sum(large).item() == 1.0


# ── sequence <-> group ───────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(laid())
def test_group_statistics(case):
    s, _, ids, _, y = case
    names = sorted(set(ids.tolist()))
    members = [[v for v, i in zip(y.tolist(), ids.tolist(), strict=True) if i == name] for name in names]
    assert s.slots.tolist() == names
    close(s.group_sum(y), [sum(m) for m in members])
    close(s.group_size(), [float(len(m)) for m in members])
    close(s.group_mean(y), [statistics.mean(m) for m in members])
    close(s.group_std(y), [statistics.stdev(m) if len(m) > 1 else 0.0 for m in members])
    close(s.group_std(y, unbiased=False), [statistics.pstdev(m) for m in members])
    close(s.group_spread(s.group_mean(y)), [statistics.mean(members[names.index(i)]) for i in ids.tolist()])


@few
@given(laid())
def test_moments(case):
    s, _, _, x, _ = case
    values = x.tolist()
    count, mean, variance = s.moments(x)
    assert count.item() == len(values)
    close(mean, statistics.mean(values) if values else 0.0)
    close(variance, statistics.variance(values) if len(values) > 1 else 0.0)
    close(s.moments(x, unbiased=False)[2], statistics.pvariance(values) if values else 0.0)
    assert mean.dtype == variance.dtype == torch.float64


def test_slots_without_a_count_may_stay_empty():
    s = Sequences.of(torch.tensor([1, 1, 1]), 3, torch.tensor([5, 2, 5]))
    assert s.slots.shape == (3,)
    y = torch.tensor([1.0, 10.0, 3.0])
    assert s.group_spread(s.group_mean(y)).tolist() == [2.0, 10.0, 2.0]
    assert s.group_std(y).isfinite().all()


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    ["sum", "mean", "max", "next", "reverse_scan", "discounted", "per_token", "cumsum", "spread", "place_last", "next_last",
     "group_sum", "group_mean", "group_std", "group_spread", "moments"],
)  # fmt: skip
def test_gradients(name):
    lengths = [3, 0, 1, 4, 2]
    s = make(lengths, torch.tensor([1, 1, 0, 0, 1]))
    torch.manual_seed(0)
    x = torch.randn(sum(lengths), dtype=torch.float64, requires_grad=True)
    y = torch.randn(len(lengths), dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, dtype=torch.float64, requires_grad=True)
    decay = torch.rand(sum(lengths), dtype=torch.float64, requires_grad=True)
    function, inputs = (
        {
            "max": (lambda x: s.max(x)[s.lengths > 0], [x]),  # -inf has no differences
            "discounted": (lambda x: s.reverse_scan(x, 0.7), [x]),
            "per_token": (s.reverse_scan, [x, decay]),
            "spread": (s.spread, [y]),
            "place_last": (s.place_last, [y]),
            "next_last": (s.next, [x, y]),
            "group_sum": (s.group_sum, [y]),
            "group_mean": (s.group_mean, [y]),
            "group_std": (s.group_std, [y]),
            "group_spread": (s.group_spread, [z]),
            "moments": (lambda x: s.moments(x)[1:], [x]),
        }.get(name)
        or (getattr(s, name), [x])
    )
    assert torch.autograd.gradcheck(function, inputs)


def test_a_group_without_spread_has_the_gradient_zero():
    s = make([1, 1, 1], torch.tensor([0, 0, 1]))
    y = torch.tensor([2.0, 2.0, 5.0], requires_grad=True)
    std = s.group_std(y)
    std.sum().backward()
    assert std.tolist() == [0.0, 0.0]
    assert y.grad.tolist() == [0.0, 0.0, 0.0]


def test_an_empty_sequence_gives_zero_and_no_gradient():
    s = make([0, 2, 0])
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    means = s.mean(x)
    means.sum().backward()
    assert means.tolist() == [0.0, 2.0, 0.0]
    assert x.grad.tolist() == [0.5, 0.5]


# ── each sequence by itself ──────────────────────────────────────────────────────────────────────────────────────────


@few
@given(laid(torch.float32), st.data())
def test_what_one_sequence_holds_never_changes_another(case, data):
    s, lengths, _, x, _ = case
    chosen = data.draw(st.integers(0, len(lengths) - 1))
    junk = data.draw(st.sampled_from([INF, -INF, NAN, 1e38]))
    mine = s.index == chosen
    dirty = torch.where(mine, junk, x)
    decay = torch.linspace(0.1, 1.0, max(x.shape[0], 1))[: x.shape[0]]
    others = torch.arange(len(lengths)) != chosen
    for per_sequence in (s.sum, s.mean, s.max):
        assert per_sequence(x)[others].equal(per_sequence(dirty)[others])
    per_token = [
        s.next, s.cumsum, s.reverse_scan, lambda v: s.reverse_scan(v, 0.95), lambda v: s.reverse_scan(v, decay),
        lambda v: s.reverse_scan(v, torch.where(mine, junk, decay) if v is dirty else decay), lambda v: s.spread(s.sum(v)),
    ]  # fmt: skip
    for f in per_token:
        assert f(x)[~mine].equal(f(dirty)[~mine])


@few
@given(laid(torch.float32), st.data())
def test_gradients_stay_in_their_sequence_too(case, data):
    s, lengths, _, x, _ = case
    chosen = data.draw(st.integers(0, len(lengths) - 1))
    mine = s.index == chosen
    decay = torch.full_like(x, 0.9)
    for f in (s.sum, s.mean, s.next, s.cumsum, lambda v: s.reverse_scan(v, 0.95), lambda v: s.reverse_scan(v, decay)):
        found = []
        for value in (x, torch.where(mine, INF, x)):
            leaf = value.clone().requires_grad_()
            f(leaf)[:].sum().backward()
            found.append(leaf.grad[~mine])
        assert found[0].equal(found[1])


# ── shapes follow from shapes ────────────────────────────────────────────────────────────────────────────────────────


def everything(s, x, y, decay):
    s = Sequences.of(s.lengths, x.shape[0], s.lengths, None).across(ONE_RANK)
    return [
        s.sum(x), s.mean(x), s.max(x), s.spread(y), s.places, s.is_last, s.next(x), s.next(x, y), s.place_last(y), s.reverse_scan(x),
        s.reverse_scan(x, 0.9), s.reverse_scan(x, decay), s.cumsum(x), s.group_sum(y), s.group_size(), s.group_mean(y), s.group_std(y),
        s.group_spread(s.group_sum(y)), *s.moments(x), *s.moments(y, unbiased=False),
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", [[3, 0, 5], [2000, 40, 1]])
def test_everything_works_on_shapes_alone(lengths):
    s, x, y = make(lengths), torch.ones(sum(lengths)), torch.ones(len(lengths))
    real = everything(s, x, y, x)
    with FakeTensorMode() as mode:
        fake = everything(*_pytree.tree_map_only(torch.Tensor, mode.from_tensor, (s, x, y, x)))
    assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]


def test_it_is_a_pytree():
    s = make([2, 1], torch.tensor([5, 5]))
    leaves, spec = _pytree.tree_flatten(s)
    assert len(leaves) == 5
    again = _pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Sequences)
    assert all(getattr(again, n) is getattr(s, n) for n in ("lengths", "offsets", "index", "groups", "slots", "ranks"))
    doubled = _pytree.tree_map(lambda t: t * 2, s)
    assert doubled.lengths.tolist() == [4, 2]
    bare, _ = _pytree.tree_flatten(make([1]))
    assert [b is None for b in bare].count(True) == 2 or len(bare) == 3


def test_it_is_frozen():
    s = make([1])
    with pytest.raises(AttributeError):
        s.lengths = torch.zeros(1)


# ── over ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cuts", [[0, 8], [0, 3, 8], [0, 0, 8], [0, 1, 1, 6, 8], [0, 2, 4, 6, 8]])
def test_group_statistics_are_exact_wherever_a_group_lies(cuts):
    ids = torch.tensor([7, 7, -1, 7, 3, -1, 3, 7])
    y = torch.tensor([1.0, 2.0, -3.0, 4.0, 5.0, 0.5, 7.0, 8.0], dtype=torch.float64)
    lengths = [2, 0, 1, 3, 1, 1, 0, 2]
    alone = make(lengths, ids)
    want = {
        "mean": alone.group_spread(alone.group_mean(y)), "std": alone.group_spread(alone.group_std(y)),
        "size": alone.group_spread(alone.group_size()), "moments": torch.stack(alone.moments(y)),
    }  # fmt: skip

    def work(ranks, rank):
        part = slice(cuts[rank], cuts[rank + 1])
        s = make(lengths[part], ids[part]).across(ranks)
        assert s.ranks is ranks
        mine = y[part]
        return {
            "mean": s.group_spread(s.group_mean(mine)), "std": s.group_spread(s.group_std(mine)), "size": s.group_spread(s.group_size()),
            "moments": torch.stack(s.moments(mine)), "slots": s.slots,
        }  # fmt: skip

    found = SimulatedRanks.run(len(cuts) - 1, work)
    for name in ("mean", "std", "size"):
        close(torch.cat([f[name] for f in found]), want[name].tolist())
    for f in found:
        close(f["moments"], want["moments"].tolist())
        assert f["slots"].equal(found[0]["slots"])


def test_without_groups_only_moments_reach_over_ranks():
    def work(ranks, rank):
        s = make([rank, 1]).across(ranks)
        assert s.groups is None
        return s.moments(torch.full((rank + 1,), float(rank), dtype=torch.float64))

    for count, mean, variance in SimulatedRanks.run(2, work):
        assert (count.item(), mean.item()) == (3.0, pytest.approx(2 / 3))
        assert variance.item() == pytest.approx(1 / 3)


def test_across_one_rank_is_the_same_object():
    s = make([1, 2], torch.tensor([0, 0]))
    assert s.across(ONE_RANK) is s

"""Corrections beside plain loops over sequences, and what must hold of all of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from correcting import pair, world
from golden.records import COMPONENTS, call
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from worlds import World

from lossary.batch import Batch, SimulatedRanks
from lossary.numerics import mismatch
from lossary.registry import Component, Level, Mean

CORRECTIONS = [c for (kind, _), c in COMPONENTS.items() if kind == "correction"]
OF_THE_RATIO = [c for c in CORRECTIONS if {"old_log_prob", "rollout_log_prob"} <= set(c.columns) and "log_prob" not in c.columns]
Row = Mapping[str, Any]


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """Return the sequences as lists of numbers."""
    names = ("log_prob", "entropy", "old_log_prob", "rollout_log_prob", "advantages", "turns", "correction")
    parts = {name: [x.tolist() for x in batch[name].split(list(batch.lengths))] for name in names}
    rows = [{name: parts[name][i] for name in names} for i in range(len(batch))]
    for row, truncated, reward in zip(rows, batch["truncated"].tolist(), batch["rewards"].tolist(), strict=True):
        row["truncated"], row["reward"] = truncated, reward
        row["d"] = [0.0 if math.isnan(q) else p - q for p, q in zip(row["old_log_prob"], row["rollout_log_prob"], strict=True)]
        row["q"] = [p if math.isnan(q) else q for p, q in zip(row["old_log_prob"], row["rollout_log_prob"], strict=True)]
    return rows


# ── by plain loops ───────────────────────────────────────────────────────────────────────────────────────────────────


def judged(x: Sequence[float], turns: Sequence[int], agg: str) -> list[float]:
    """Give each token of a row what its statistic is judged by."""
    if agg == "token" or not x:
        return list(x)
    if agg == "segment":
        found: list[float] = []
        start = 0
        for t in range(1, len(x) + 1):
            if t == len(x) or turns[t] != turns[t - 1]:
                found += [sum(x[start:t]) / (t - start)] * (t - start)
                start = t
        return found
    whole = {"mean": sum(x) / len(x), "sum": sum(x), "max": max(x)}[agg]
    return [whole] * len(x)


AS = {"token": "token", "segment": "segment", "geometric": "mean", "sequence": "sum"}


def weights(rows: Sequence[Row], level: str) -> list[float]:
    return [math.exp(x) for r in rows for x in judged(r["d"], r["turns"], AS[level])]


def inside(rows: Sequence[Row], of: Callable[[Row], list[float]], agg: str, low: float, high: float) -> list[bool]:
    return [low <= x <= high for r in rows for x in judged(of(r), r["turns"], agg)]


def coin(r: Row) -> list[float]:
    def kl(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    safe = [[min(max(math.exp(x), 1e-6), 1 - 1e-6) for x in r[name]] for name in ("q", "old_log_prob")]
    return [kl(p, q) for p, q in zip(*safe, strict=True)]


def shift(r: Row) -> list[float]:
    return [math.exp(p) - math.exp(q) for p, q in zip(r["old_log_prob"], r["q"], strict=True)]


def spread(rows: Sequence[Row], verdicts: Sequence[bool]) -> list[bool]:
    return [v for r, v in zip(rows, verdicts, strict=True) for _ in r["d"]]


def opsm(rows: Sequence[Row], behaviour: str, delta: float) -> list[bool]:
    keep = []
    for r in rows:
        then = [lp if math.isnan(b) else b for b, lp in zip(r[f"{behaviour}_log_prob"], r["log_prob"], strict=True)]
        gone = bool(then) and sum(b - lp for b, lp in zip(then, r["log_prob"], strict=True)) / len(then) > delta
        keep += [not (gone and a < 0) for a in r["advantages"]]
    return keep


def m2(rows: Sequence[Row], threshold: float) -> list[bool]:
    """Drop one by one."""
    square = [x * x for r in rows for x in r["d"]]
    left = sorted(square)
    while len(left) > 1 and sum(left) / len(left) >= threshold:
        left.pop()
    return [x <= left[-1] for x in square]


def undecided(rows: Sequence[Row], share: float) -> list[bool]:
    """The tokens of entropy at least as high as that at the place of the quantile, between two of them in proportion."""
    entropies = [x for r in rows for x in r["entropy"]]
    ordered, place = sorted(entropies), (1 - share) * (len(entropies) - 1)
    low = int(place)
    threshold = ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
    return [x >= threshold for x in entropies]


def drawn(rows: Sequence[Row], power: float) -> list[float]:
    """How often each token's answer would be drawn, by its reward."""
    chance = [abs(r["reward"]) ** power + 1e-8 for r in rows]
    return [c / (sum(chance) / len(chance)) for c, r in zip(chance, rows, strict=True) for _ in r["d"]]


Want = tuple[list[float] | None, list[bool] | None]
CASES: list[tuple[str, dict[str, Any], Callable[[Sequence[Row]], Want]]] = [
    *(
        ("truncated-is", {"level": k, "cap": 1.2, "floor": 0.9}, lambda rows, k=k: ([min(max(w, 0.9), 1.2) for w in weights(rows, k)], None))
        for k in AS
    ),
    *(
        ("masked-is", {"level": k, "lower": 0.8, "upper": 1.3}, lambda rows, k=k: (w := weights(rows, k), [0.8 <= x <= 1.3 for x in w]))
        for k in AS
    ),
    ("masked-is", {"lower": None, "upper": 1.1}, lambda rows: (w := weights(rows, "token"), [x <= 1.1 for x in w])),
    ("icepop", {"lower": 0.7, "upper": 1.2}, lambda rows: (w := weights(rows, "token"), [0.7 <= x <= 1.2 for x in w])),
    *(
        ("reject-k1", {"agg": a, "lower": 0.85, "upper": 1.2}, lambda rows, a=a: (None, inside(rows, lambda r: r["d"], a, math.log(0.85), math.log(1.2))))
        for a in ("token", "segment", "mean", "sum", "max")
    ),
    *(
        ("reject-k2", {"agg": a, "upper": 0.05}, lambda rows, a=a: (None, inside(rows, lambda r: [x * x / 2 for x in r["d"]], a, 0, 0.05)))
        for a in ("token", "segment", "mean", "sum", "max")
    ),
    *(
        ("reject-k3", {"agg": a, "upper": 0.05, "inverse": i},
         lambda rows, a=a, s=-1 if i else 1: (None, inside(rows, lambda r: [math.exp(s * x) - 1 - s * x for x in r["d"]], a, -1e-12, 0.05)))
        for a in ("token", "mean", "max")
        for i in (False, True)
    ),
    *(
        ("reject-probability", {"agg": a, "lower": -0.02, "upper": 0.05}, lambda rows, a=a: (None, inside(rows, shift, a, -0.02, 0.05)))
        for a in ("token", "segment", "mean", "sum")
    ),
    ("reject-probability", {"agg": "mean", "lower": None, "upper": 0.06, "absolute": True},
     lambda rows: (None, inside(rows, lambda r: [abs(x) for x in shift(r)], "mean", 0, 0.06))),
    *(
        ("reject-binary-kl", {"agg": a, "upper": 0.01}, lambda rows, a=a: (None, inside(rows, coin, a, -1e-12, 0.01)))
        for a in ("token", "mean", "sum", "max")
    ),
    ("veto", {"threshold": 0.7}, lambda rows: (None, spread(rows, [all(x >= math.log(0.7) for x in r["d"]) for r in rows]))),
    ("outlier", {"lower": 0.6, "upper": 1.5},
     lambda rows: (None, spread(rows, [all(math.log(0.6) <= x <= math.log(1.5) for x in r["d"]) for r in rows]))),
    *(("m2po", {"m2_threshold": x}, lambda rows, x=x: (None, m2(rows, x))) for x in (1e-9, 0.01, 0.04, 1.0)),
    ("batch-normalise", {}, lambda rows: ([len(x) / sum(x) for x in [[c for r in rows for c in r["correction"]]] for _ in x], None)),
    ("batch-normalise", {"weighting": "sequence"},
     lambda rows: ([len(x) / sum(x) for x in [[sum(r["correction"]) / len(r["d"]) for r in rows if r["d"]]] for r in rows for _ in r["d"]], None)),
    *(
        ("off-policy-sequence", {"behaviour": b, "opsm_delta": x}, lambda rows, b=b, x=x: (None, opsm(rows, b, x)))
        for b in ("old", "rollout")
        for x in (0.0, 0.1)
    ),
    ("high-entropy", {"top_entropy_quantile": 0.3}, lambda rows: (None, undecided(rows, 0.3))),
    ("pf-ppo", {"weight_pow": 3.0}, lambda rows: (drawn(rows, 3.0), None)),
    ("drop-truncated", {}, lambda rows: (None, spread(rows, [r["truncated"] == 0 for r in rows]))),
    ("drop-impossible", {}, lambda rows: (None, [True for r in rows for _ in r["d"]])),
]  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("name", "params", "slow"), CASES, ids=lambda x: str(x) if isinstance(x, (str, dict)) else "")
def test_it_is_what_a_plain_loop_gives(name: str, params: dict[str, Any], slow: Callable[[Sequence[Row]], Want], seed: int) -> None:
    batch = world(seed)
    weight, keep = pair(call("correction", name, params, batch))
    want_weight, want_keep = slow(rows_of(batch))
    assert (weight is None, keep is None) == (want_weight is None, want_keep is None)
    if weight is not None:
        torch.testing.assert_close(weight, torch.tensor(want_weight, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    if keep is not None:
        assert keep.tolist() == want_keep


def test_the_plain_loops_try_every_correction_and_reject_something() -> None:
    assert {name for name, _, _ in CASES} | {"target-ess"} == {c.name for c in CORRECTIONS}
    kept = [(name, keep) for name, _, slow in CASES for seed in (1, 2) if (keep := slow(rows_of(world(seed)))[1]) is not None]
    assert {name for name, keep in kept if not all(keep)} == {name for name, _ in kept} - {"drop-impossible"}


# ── what must hold of all ────────────────────────────────────────────────────────────────────────────────────────────


def given(c: Component, batch: Batch, **params: Any) -> tuple[Tensor | None, Tensor | None]:
    return pair(call("correction", c.name, params, batch))


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_extremes_leave_weights_positive_and_finite(c: Component) -> None:
    """Log-ratios of 700 in float32, at every level and with every bound."""
    mask = torch.ones(3, 4)
    old = torch.tensor([[0.0, -700, -1, -2], [-700, -700, -700, -700], [0, 0, -1e-3, -1]])
    rollout = torch.tensor([[-700.0, 0, -1, math.nan], [0, 0, 0, -1], [-700, -700, -700, -700]])
    more = {"turns": torch.tensor([[0, 0, 1, 1]] * 3), "truncated": torch.tensor([0.0, 1, 0]), "correction": torch.full((3, 4), 1e-30)}
    more |= {"entropy": -old, "rewards": torch.tensor([0.0, 1e15, -1.0])}
    batch = Batch.from_padded(mask, old_log_prob=old, rollout_log_prob=rollout, log_prob=old - 1, advantages=-mask, **more)
    fields = c.params.model_fields
    for bound in [{"log_ratio_bound": b} for b in (20.0, None)] if "log_ratio_bound" in fields else [{}]:
        for level in [{"level": k} for k in AS] if "level" in fields else [{"agg": a} for a in ("token", "segment", "mean", "sum", "max")] if "agg" in fields else [{}]:  # fmt: skip
            weight, keep = given(c, batch, **bound, **level)
            assert weight is None or (weight.isfinite().all() and (weight > 0).all())
            assert keep is None or keep.dtype == torch.bool
            assert weight is not None or keep is not None


@pytest.mark.parametrize("c", OF_THE_RATIO, ids=lambda c: c.name)
def test_what_the_sampler_did_not_score_stays_as_it_is(c: Component) -> None:
    batch = world(3)
    unscored = batch.with_columns(Level.TOKEN, rollout_log_prob=torch.full_like(batch["old_log_prob"], math.nan))
    weight, keep = given(c, unscored)
    assert weight is None or (weight == 1).all()
    assert keep is None or keep.all()


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_of_nothing_comes_nothing(c: Component) -> None:
    w = World(4)
    w.mask[:] = False
    weight, keep = given(c, w.batch(trained=True, correction=w.log_prob))
    assert all(x is None or x.shape == (0,) for x in (weight, keep))


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_the_order_of_the_sequences_does_not_matter(c: Component) -> None:
    batch, order = world(5), [6, 2, 8, 0, 4, 7, 1, 3, 5]
    for ours, moved in zip(given(c, batch), given(c, batch.take(order)), strict=True):
        assert (ours is None) == (moved is None)
        if ours is not None and moved is not None:
            again = torch.cat([ours.split(list(batch.lengths))[i] for i in order])
            torch.testing.assert_close(moved, again, rtol=1e-12, atol=0)


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_it_runs_where_there_is_no_data_to_look_at(c: Component) -> None:
    """Fake tensors have shapes but no values, so no shape and no branch depends on one."""
    batch, mode = world(6), FakeTensorMode()
    columns = [batch.sequences if i.name == "sequences" else batch.column(i.name, i.level) for i in c.inputs]
    with mode:
        out = pair(c.function(*tree_map_only(Tensor, mode.from_tensor, columns), **c.params().model_dump()))
        assert all(x is None or x.shape == (sum(batch.lengths),) for x in out)


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_the_dtype_is_the_columns_and_no_gradient_flows(c: Component) -> None:
    batch = world(7, torch.float32)
    leaf = batch["log_prob"].clone().requires_grad_()
    weight, keep = given(c, batch.with_columns(Level.TOKEN, log_prob=leaf))
    assert weight is None or (weight.dtype == torch.float32 and not weight.requires_grad)
    assert keep is None or keep.dtype == torch.bool


@pytest.mark.parametrize("c", CORRECTIONS, ids=lambda c: c.name)
def test_its_level_is_the_token_and_its_page_says_what_counts(c: Component) -> None:
    assert c.returns is Level.TOKEN
    assert ".. math::" in c.doc
    assert c.scope == "step" or "ranks" not in c.doc
    assert "denominator" in c.doc or "Nothing is dropped" in c.doc


# ── over ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────

STEPS = [
    *(("m2po", {"m2_threshold": x}) for x in (1e-9, 0.01, 0.04, 1.0)),
    *(("batch-normalise", {"weighting": x}) for x in ("token", "sequence")),
    *(("pf-ppo", {"reweight_method": x}) for x in ("pow", "max_min", "max_random")),
    *(("target-ess", {"by": b, "level": k, "fraction": 0.95}) for b in ("temper", "cap") for k in AS),
]


@pytest.mark.parametrize("shares", [[9], [4, 5], [2, 0, 7], [3, 1, 1, 4]], ids=str)
@pytest.mark.parametrize(("name", "params"), STEPS, ids=str)
def test_ranks_agree_with_one_that_has_all(name: str, params: dict[str, Any], shares: list[int]) -> None:
    """One rank may have no sequence at all, or only the empty one."""
    batch = world(8)
    want = pair(call("correction", name, params, batch))
    ends = [sum(shares[: i + 1]) for i in range(len(shares))]

    def work(ranks: SimulatedRanks, rank: int) -> tuple[Tensor | None, Tensor | None]:
        part = batch.take(range(ends[rank] - shares[rank], ends[rank]))
        c = COMPONENTS["correction", name]
        sequences = part.sequences.across(ranks)
        columns = [sequences if i.name == "sequences" else part.column(i.name, i.level) for i in c.inputs]
        return pair(c.function(*columns, **c.params.model_validate(params).model_dump()))

    found = SimulatedRanks.run(len(shares), work)
    for whole, parts in zip(want, zip(*found, strict=True), strict=True):
        assert (whole is None) == (parts[0] is None)
        if whole is not None:
            torch.testing.assert_close(torch.cat([p for p in parts if p is not None]), whole, rtol=1e-12, atol=0)


def test_everything_whose_scope_is_the_step_was_tried() -> None:
    """The threshold of ``high-entropy`` is this rank's, and the pipeline keeps it on one."""
    assert {c.name for c in CORRECTIONS if c.scope == "step"} - {"high-entropy"} == {name for name, _ in STEPS}


# ── each for itself ──────────────────────────────────────────────────────────────────────────────────────────────────


# ── the effective sample size ────────────────────────────────────────────────────────────────────────────────────────


# ── compositions ─────────────────────────────────────────────────────────────────────────────────────────────────────


# ── the distance ─────────────────────────────────────────────────────────────────────────────────────────────────────


def reduced(report: Mapping[str, Any]) -> dict[str, float]:
    def one(m: Any) -> float:
        x = m.x.double() if m.where is None else m.x[m.where].double()
        return float(x.mean() if isinstance(m, Mean) else x.amax() if type(m).__name__ == "Max" else x.amin())

    return {name: one(m) for name, m in report.items()}


def test_the_distance_by_a_plain_loop() -> None:
    batch = world(12)
    ours = reduced(mismatch(batch["old_log_prob"], batch["rollout_log_prob"], batch.sequences))
    pairs = [[(p, q) for p, q in zip(r["old_log_prob"], r["rollout_log_prob"], strict=True) if not math.isnan(q)] for r in rows_of(batch)]
    pairs = [row for row in pairs if row]
    d = [p - q for row in pairs for p, q in row]
    train, roll = ([-sum(x[k] for x in row) / len(row) for row in pairs] for k in (0, 1))
    apart = [a - b for a, b in zip(train, roll, strict=True)]

    def mean(x: Sequence[float]) -> float:
        return sum(x) / len(x)

    want = {
        "kl": -mean(d),
        "k3_kl": mean([math.exp(x) - 1 - x for x in d]),
        "chi2_token": mean([math.exp(2 * x) for x in d]) - 1,
        "rollout_is_mean": mean([math.exp(x) for x in d]),
        "training_ppl": mean([math.exp(x) for x in train]),
        "training_log_ppl": mean(train),
        "rollout_ppl": mean([math.exp(x) for x in roll]),
        "rollout_log_ppl": mean(roll),
        "log_ppl_diff": mean(apart),
        "log_ppl_abs_diff": mean([abs(x) for x in apart]),
        "log_ppl_diff_max": max(apart),
        "log_ppl_diff_min": min(apart),
        "ppl_ratio": mean([math.exp(x) for x in apart]),
        "chi2_seq": mean([math.exp(2 * sum(p - q for p, q in row)) for row in pairs]) - 1,
    }
    assert ours == pytest.approx(want, rel=1e-12)


def test_the_distance_is_finite_where_weights_would_not_be() -> None:
    old = torch.tensor([[0.0, -700], [-700, -1]])
    batch = Batch.from_padded(torch.ones(2, 2), old_log_prob=old, rollout_log_prob=old.flip(0).flip(1) - 1)
    report = mismatch(batch["old_log_prob"], batch["rollout_log_prob"], batch.sequences)
    assert all(m.x.isfinite().all() for m in report.values())


def test_the_distance_of_equal_policies_is_exactly_none() -> None:
    batch = world(13)
    ours = reduced(mismatch(batch["old_log_prob"], batch["old_log_prob"], batch.sequences))
    none = ("kl", "k3_kl", "chi2_token", "chi2_seq", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min")
    assert all(ours[name] == 0 for name in none)
    assert ours["ppl_ratio"] == ours["rollout_is_mean"] == 1

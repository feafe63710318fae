"""KL estimators: values and gradients by hand, expectations by enumeration, and what they do far out."""

import math
import re
from typing import Any

import pytest
import torch
from golden.records import COMPONENTS, call
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from lossary import Batch, ColumnError, compose
from lossary.numerics import binary_kl, score_weight
from lossary.registry import Component

KL = {name: c for (kind, name), c in COMPONENTS.items() if kind == "kl" and "logits" not in c.columns}
COEFFICIENTS = {name: c for (kind, name), c in COMPONENTS.items() if kind == "coefficient"}
DEFAULT = {"constant": {"value": 1.0}, "adaptive-kl": {"kl_coef": 0.1, "target": 0.1, "horizon": 10.0}}
SHAPED = ("k1", "k2", "k3", "abs")
GRADIENTS = ("own", "straight-through", "unbiased", "importance-token")
EVERY = [*((name, {"gradient": g}) for name in SHAPED for g in GRADIENTS), ("k3-importance", {}), ("k3-huber", {}), ("binary-kl", {})]
WHOLE = [("importance-sequence", {"estimate": e, "ratio": r}) for e in SHAPED for r in ("geometric", "product")]


def t(*x: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(x, dtype=dtype)


def estimate(name: str, params: Any, log_prob: Tensor, ref: Tensor, old: Tensor | None = None, **more: Tensor) -> Tensor:
    """All tokens are one sequence."""
    given = {"log_prob": log_prob, "ref_log_prob": ref, **({} if old is None else {"old_log_prob": old}), **more}
    found: Tensor = call("kl", name, params, Batch.from_padded(torch.ones(1, len(ref)), **{k: x[None] for k, x in given.items()}))
    return found


def both(name: str, params: Any, log_prob: Tensor, *columns: Tensor, **more: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and gradients."""
    leaf = log_prob.clone().requires_grad_()
    value = estimate(name, params, leaf, *columns, **more)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = {
    "k1": lambda d: (d, 1.0),
    "k2": lambda d: (d * d / 2, d),
    "k3": lambda d: (math.exp(-d) - 1 + d, 1 - math.exp(-d)),
    "abs": lambda d: (abs(d), float(d > 0) - float(d < 0)),
}


def by_hand(name: str, gradient: str, new: float, ref: float, old: float, bound: float, cap: float, limit: float) -> tuple[float, float]:
    d = new - ref
    inside = abs(d) <= bound
    value, slope = PLAIN[name](min(max(d, -bound), bound))
    slope = slope if inside else 0.0
    w = min(math.exp(new - old), limit)
    if gradient == "importance-token":
        value, slope = w * value, w * (value + slope) if inside else 0.0
    if abs(value) > cap:
        value, slope = math.copysign(cap, value), 0.0
    return value, {"straight-through": d, "unbiased": w * d}.get(gradient, slope)


NEW = t(-1.0, -2.0, -0.5, -3.0, -9.0, -0.1, -30.0, -0.2, -1.5)
REF = t(-1.0, -1.5, -2.5, -0.4, -0.5, -8.0, -1.0, -31.0, -1.6)
OLD = t(-1.2, -2.0, -4.5, -3.3, -7.0, -0.1, -28.0, -0.4, -9.0)


@pytest.mark.parametrize("bounds", [(20.0, math.inf, math.inf), (5.0, math.inf, 10.0), (20.0, 3.0, 2.0), (math.inf, 10.0, 10.0)])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("name", SHAPED)
def test_values_and_gradients_are_those_of_the_table(name: str, gradient: str, bounds: tuple[float, float, float]) -> None:
    said = {k: None if x == math.inf else x for k, x in zip(("log_ratio_bound", "cap", "importance_cap"), bounds, strict=True)}
    want = [by_hand(name, gradient, *map(float, row), *bounds) for row in zip(NEW, REF, OLD, strict=True)]
    value, slope = both(name, {"gradient": gradient, **said}, NEW, REF, OLD)
    assert_close(value, t(*(v for v, _ in want)), rtol=1e-12, atol=1e-12)
    assert_close(slope, t(*(s for _, s in want)), rtol=1e-9, atol=1e-12)
    if name == "k3" and gradient == "importance-token":
        for mine, theirs in zip(both("k3-importance", said, NEW, REF, OLD), (value, slope), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("ratio", ["geometric", "product"])
@pytest.mark.parametrize("name", SHAPED)
def test_a_whole_sequence_shares_its_ratio(name: str, ratio: str) -> None:
    new, ref, old = t(-1.0, -2.0, -0.5), t(-1.3, -1.5, -2.5), t(-1.1, -2.3, -0.45)
    total = float((new - old).sum())
    rho = math.exp(total / 3 if ratio == "geometric" else total)
    parts = [PLAIN[name](float(d)) for d in new - ref]
    through = sum(v for v, _ in parts) / (3 if ratio == "geometric" else 1)
    value, slope = both("importance-sequence", {"estimate": name, "ratio": ratio}, new, ref, old)
    assert_close(value, t(*(rho * v for v, _ in parts)), rtol=1e-12, atol=0)
    assert_close(slope, t(*(rho * (s + through) for _, s in parts)), rtol=1e-12, atol=0)
    value, slope = both("importance-sequence", {"estimate": name, "ratio": ratio, "importance_cap": 0.5}, new, ref, old)
    assert_close(slope, t(*(0.5 * (s + through) for _, s in parts)), rtol=1e-12, atol=0)
    value, slope = both("importance-sequence", {"estimate": name, "ratio": ratio, "cap": 0.1}, new, ref, old)
    assert value.abs().max() == 0.1


def test_the_huber_is_k3_for_a_large_delta_and_symmetric_for_2() -> None:
    d = torch.linspace(-3, 3, 61, dtype=torch.float64)
    zero = torch.zeros_like(d)
    value, slope = both("k3-huber", {"delta": 2.0}, d, zero)
    assert_close(value, 4 * (d / 2).cosh().log(), rtol=1e-9, atol=1e-12)
    assert_close(slope, 2 * (d / 2).tanh(), rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(both("k3-huber", {"delta": 1000.0}, d, zero), both("k3", {}, d, zero), strict=True):
        assert_close(mine, theirs, rtol=3e-2, atol=1e-12)


@pytest.mark.parametrize("delta", [1.1, 2.0, 10.0, 1000.0])
def test_the_gradient_of_the_huber_is_that_of_its_value(delta: float) -> None:
    d, step = torch.linspace(-12, 12, 241, dtype=torch.float64), 1e-6
    ends = [both("k3-huber", {"delta": delta}, d + s, torch.zeros_like(d))[0] for s in (step, -step)]
    _, slope = both("k3-huber", {"delta": delta}, d, torch.zeros_like(d))
    assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [1.1, 2.0, 10.0, 1000.0])
def test_the_pull_of_the_huber_rises_is_bounded_and_never_ends(delta: float, dtype: torch.dtype) -> None:
    d = torch.cat([t(-700.0, -88.0), torch.linspace(-20, 20, 401, dtype=torch.float64), t(88.0, 700.0)]).to(dtype)
    value, slope = both("k3-huber", {"delta": delta}, d, torch.zeros_like(d))
    assert value.isfinite().all()
    assert (value >= 0).all()
    assert (slope.diff() >= 0).all()
    assert (slope.abs() <= max(delta, delta / (delta - 1)) * 1.000001).all()
    assert ((slope.sign() == d.sign()) | (d.abs() < 1e-6)).all()
    assert slope[0] == pytest.approx(-delta, rel=1e-6)
    assert slope[-1] == pytest.approx(delta / (delta - 1), rel=1e-6)
    assert both("k3-huber", {"delta": delta}, torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)) == (0, 0)


def test_a_coin_by_the_textbook() -> None:
    new, ref = t(-0.3, -2.0, -1e-4, -9.0), t(-1.0, -2.0, -5.0, -0.01)
    p, q = new.exp(), ref.exp()
    value, slope = both("binary-kl", {}, new, ref)
    assert_close(value, p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log(), rtol=1e-6, atol=1e-8)
    assert_close(slope, p * ((p / q).log() - ((1 - p) / (1 - q)).log()), rtol=1e-3, atol=1e-6)


def test_a_coin_that_hardly_ever_shows_the_other_side_is_not_rounded() -> None:
    new, ref = t(-1e-6, -3e-7, dtype=torch.float32), t(-4e-6, -3e-7, dtype=torch.float32)
    value, slope = both("binary-kl", {}, new, ref)
    wide = both("binary-kl", {}, new.double(), ref.double())
    assert_close(value.double(), wide[0], rtol=1e-3, atol=1e-12)
    assert_close(slope.double(), wide[1], rtol=1e-3, atol=1e-6)
    assert binary_kl(new, new).tolist() == [0.0, 0.0]


# ── in expectation ───────────────────────────────────────────────────────────────────────────────────────────────────

LOGITS = t(0.3, -0.1, 0.2, 1.1, -1.4)
REFERENCE, SAMPLER = t(0.0, 0.4, -0.3, -0.8, 0.9).log_softmax(0), t(0.9, -0.4, 0.0, 0.3, -0.2).log_softmax(0)


def divergence(name: str) -> Tensor:
    """Return the gradient of an exact divergence by the logits."""
    leaf = LOGITS.clone().requires_grad_()
    log_p = leaf.log_softmax(0)
    p, q = log_p.exp(), REFERENCE.exp()
    d = log_p - REFERENCE
    mixed = (0.9 * p + 0.1 * q).log()
    exact = {
        "KL": (p * d).sum(),
        "other KL": (q * -d).sum(),
        "nothing": 0 * p.sum(),
        "difference": (p - q).abs().sum(),
        "mixture": (10 / 9) ** 2 * (q * (REFERENCE - mixed)).sum(),
        "mean of k2": (p * d.square() / 2).sum(),
        "mean of abs": (p * d.abs()).sum(),
    }
    (slope,) = torch.autograd.grad(exact[name], leaf)
    return slope


def expected(name: str, params: Any, sampler: Tensor) -> Tensor:
    """Return the mean over all tokens of the estimate's gradient by the logits."""
    leaf = LOGITS.clone().requires_grad_()
    value = estimate(name, params, leaf.log_softmax(0), REFERENCE, SAMPLER if sampler is SAMPLER else LOGITS.log_softmax(0))
    (slope,) = torch.autograd.grad((sampler.exp() * value).sum(), leaf)
    return slope


def test_no_two_of_the_divergences_are_the_same() -> None:
    names = ("KL", "other KL", "nothing", "difference", "mixture", "mean of k2", "mean of abs")
    for i, a in enumerate(names):
        assert all((divergence(a) - divergence(b)).abs().max() > 1e-2 for b in names[:i])


@pytest.mark.parametrize(
    ("name", "params", "where", "what"),
    [
        ("k1", {}, "on", "nothing"),
        ("k2", {}, "on", "KL"),
        ("k3", {}, "on", "other KL"),
        ("abs", {}, "on", "difference"),
        ("k3-huber", {"delta": 10.0}, "on", "mixture"),
        *((name, {"gradient": "straight-through"}, "on", "KL") for name in SHAPED),
        *((name, {"gradient": "unbiased"}, where, "KL") for name in SHAPED for where in ("on", "off")),
        *((name, {"gradient": "importance-token"}, where, "KL") for name in ("k1", "k3") for where in ("on", "off")),
        ("k2", {"gradient": "importance-token"}, "off", "mean of k2"),
        ("abs", {"gradient": "importance-token"}, "off", "mean of abs"),
        ("k3-importance", {}, "off", "KL"),
        ("k3-importance", {"anchor": "current"}, "on", "KL"),
    ],
)
def test_of_what_the_gradient_is_that_of_in_expectation(name: str, params: Any, where: str, what: str) -> None:
    sampler = SAMPLER if where == "off" else LOGITS.log_softmax(0)
    assert_close(expected(name, params, sampler), divergence(what), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("k2", {}),
        *((name, {"gradient": "straight-through"}) for name in SHAPED),
        ("k2", {"gradient": "importance-token"}),
        ("k3", {"gradient": "unbiased", "importance_cap": 0.7}),
        ("k3-importance", {"anchor": "current"}),
    ],
)
def test_off_policy_these_are_not_the_gradient_of_the_kl(name: str, params: Any) -> None:
    assert (expected(name, params, SAMPLER) - divergence("KL")).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_only_the_product_of_the_ratios_sees_what_a_token_does_to_later_ones(name: str) -> None:
    """Two tokens, the second depends on the first: all nine sequences of three words."""
    torch.manual_seed(0)
    tables = {who: torch.randn(4, 3, dtype=torch.float64) for who in ("new", "ref", "old")}

    def path(table: Tensor, a: int, b: int) -> Tensor:
        log_prob = table.log_softmax(1)
        return torch.stack([log_prob[0, a], log_prob[1 + a, b]])

    sequences = [(a, b) for a in range(3) for b in range(3)]
    leaf = tables["new"].clone().requires_grad_()
    exact = sum(path(leaf, *s).sum().exp() * (path(leaf, *s) - path(tables["ref"], *s)).sum() for s in sequences)
    (want,) = torch.autograd.grad(exact, leaf)

    def mean(component: str, params: Any) -> Tensor:
        leaf = tables["new"].clone().requires_grad_()
        total = sum(
            path(tables["old"], *s).sum().exp()
            * estimate(component, params, *(path(x, *s) for x in (leaf, tables["ref"], tables["old"]))).sum()
            for s in sequences
        )
        return torch.autograd.grad(total, leaf)[0]

    said = {"estimate": name, "importance_cap": None}
    assert_close(mean("importance-sequence", {**said, "ratio": "product"}), want, rtol=1e-10, atol=1e-12)
    for component, params in (("importance-sequence", {**said, "ratio": "geometric"}), (name, {"gradient": "importance-token"})):
        assert (mean(component, params) - want).abs().max() > 1e-2


def test_a_coin_is_the_kl_of_two_words_and_less_than_that_of_more() -> None:
    p, q = t(0.7, 0.3).log(), t(0.2, 0.8).log()
    whole = (p.exp() * (p - q)).sum()
    assert_close(estimate("binary-kl", {}, p, q), torch.stack([whole, whole]), rtol=1e-6, atol=1e-8)
    more = LOGITS.log_softmax(0)
    assert (estimate("binary-kl", {}, more, REFERENCE) < (more.exp() * (more - REFERENCE)).sum()).all()


# ── far out, and what is missing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [{}, {"log_ratio_bound": None}, {"log_ratio_bound": None, "cap": 10.0, "importance_cap": None}])
@pytest.mark.parametrize(("name", "params"), [*EVERY, *WHOLE])
def test_gradients_are_finite_wherever_values_are(name: str, params: Any, given: Any) -> None:
    given = {k: v for k, v in given.items() if k in KL[name].params.model_fields}
    new, ref, old = (t(*x, dtype=torch.float32) for x in ((-700.0, 0.0, -1.0, -1.0), (0.0, -700.0, -1.0, -9.0), (-1.0, -3.0, -700.0, -1.0)))
    for rows in ([0], [1], [2], [3], [0, 1, 2, 3]):
        value, slope = both(name, {**params, **given}, new[rows], ref[rows], old[rows])
        assert not value.isnan().any()
        finite = value.isfinite()
        if "sequences" in KL[name].columns:  # its tokens share the gradient of their ratio
            finite = finite.all().expand_as(finite)
        assert slope[finite].isfinite().all()
        assert finite.all() or given.get("log_ratio_bound", 20.0) is None


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("gradient", ["straight-through", "unbiased"])
def test_a_borrowed_gradient_outlives_bound_and_cap(name: str, gradient: str) -> None:
    value, slope = both(name, {"gradient": gradient, "cap": 10.0}, t(-700.0, dtype=torch.float32), t(0.0, dtype=torch.float32), t(-700.0))
    assert value.abs() == 10
    assert slope == -700


def test_what_is_left_of_a_weighted_k3_is_not_lost_in_rounding() -> None:
    new, ref = t(-20.0, -1.0, dtype=torch.float32), t(-0.5, -1.001, dtype=torch.float32)
    _, slope = both("k3-importance", {}, new, ref, new)
    assert_close(slope, new - ref, rtol=1e-6, atol=0)


def test_a_capped_weight_goes_on_as_a_score() -> None:
    x = t(-1.0, 0.0, 2.0, 700.0, dtype=torch.float32).requires_grad_()
    for cap in (2.0, None):
        w = score_weight(x, cap)
        (slope,) = torch.autograd.grad(w.sum(), x)
        assert w.isfinite().all()
        assert torch.equal(slope, w.detach())
        assert_close(w[:2].detach(), t(math.exp(-1), 1.0, dtype=torch.float32))
        assert cap is None or w[2:].tolist() == [cap, cap]


def test_an_anchor_that_is_asked_for_must_be_there() -> None:
    new, ref = t(-1.0, -2.0), t(-1.5, -1.0)
    for name, params in (("k3", {"gradient": "unbiased"}), ("k1", {"gradient": "importance-token"}), ("k3-importance", {}), *WHOLE):
        with pytest.raises(ColumnError, match="anchor: old needs the column 'old_log_prob'"):
            estimate(name, params, new, ref)
        with pytest.raises(ColumnError, match="anchor: rollout needs the column 'rollout_log_prob'"):
            estimate(name, {**params, "anchor": "rollout"}, new, ref, new)
        value, slope = both(name, {**params, "anchor": "current"}, new, ref)
        assert_close((value, slope), both(name, params, new, ref, new))
    with pytest.raises(ColumnError, match="gradient: unbiased with anchor"):
        estimate("k2", {"gradient": "unbiased"}, new, ref)


def test_a_token_that_the_sampler_did_not_score_has_the_ratio_1() -> None:
    new, ref, rollout = t(-1.0, -2.0), t(-1.5, -1.0), t(math.nan, -2.5)
    value, slope = both("k3-importance", {"anchor": "rollout"}, new, ref, rollout_log_prob=rollout)
    assert_close((value, slope), both("k3-importance", {}, new, ref, t(-1.0, -2.5)))


def test_only_what_reads_whole_sequences_has_their_scope() -> None:
    assert {name for name, c in KL.items() if c.scope != "token"} == {"importance-sequence"}
    assert {name for name, c in KL.items() if "sequences" in c.columns} == {"importance-sequence"}
    assert len(KL) >= 7


@pytest.mark.parametrize(("name", "params"), [*EVERY, *WHOLE])
def test_no_shape_and_no_branch_follows_from_data(name: str, params: Any) -> None:
    c = KL[name]
    batch = Batch.from_padded(torch.ones(2, 2))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        columns = [batch.sequences if i.name == "sequences" else mode.from_tensor(torch.zeros(4)) for i in c.inputs]
        made = c.function(*columns, **c.params.model_validate(params).model_dump())
    assert made.shape == (4,)


def test_split_into_micro_batches_the_whole_sequence_stays_whole() -> None:
    torch.manual_seed(1)
    columns = {n: torch.randn(4, 3, dtype=torch.float64) for n in ("ref_log_prob", "old_log_prob", "advantages")}
    new = torch.randn(4, 3, dtype=torch.float64)
    batch = Batch.from_padded(torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0]]), **columns)
    objective = compose({"policy_loss": "reinforce", "kl": {"use": "importance-sequence", "coef": 0.5}})
    weighed = objective.weigh(batch)
    slopes = []
    for parts in (1, 3):
        leaf = new.clone().requires_grad_()
        for micro in objective.split(weighed, parts=parts):
            objective.loss(micro, log_prob=leaf[micro.rows]).total.backward()
        slopes.append(leaf.grad)
    assert_close(*slopes, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("c", [*KL.values(), *COEFFICIENTS.values()], ids=lambda c: c.name)
def test_it_says_how_frameworks_call_it(c: Component) -> None:
    assert bool(c.compat) is (c.name not in ("k3-huber", "binary-kl", "linear", "cosine"))  # of which no framework has a like
    for framework, how in c.compat.items():
        assert framework == framework.lower()
        assert how.endswith(".")
        assert len(how) < 150
        said = re.findall(r"\b([a-z_]+): (null|-?[0-9.]+[0-9]|[a-z]+(?:-[a-z]+)?)(?=[,;. ]|$)", how)
        assert {name for name, _ in said} <= set(c.params.model_fields)
        c.params.model_validate({**DEFAULT.get(c.name, {}), **{k: None if v == "null" else v for k, v in said}}, strict=False)


# ── coefficients ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_entropy_bonus_is_paid_only_while_the_entropy_is_low() -> None:
    control = {"use": "adaptive-entropy", "entropy_coef": 0.01, "target": 0.5, "delta": 0.02, "max": 0.04}
    objective = compose({"policy_loss": "reinforce", "entropy": {"coef": control}})
    batch = Batch.from_padded(torch.ones(2, 2), advantages=torch.ones(2, 2).double())
    paid = []
    for entropy in (0.1, 0.4, 0.6, 0.5, 0.9, 0.9, 0.9):
        weighed = objective.weigh(batch)
        paid.append(round(float(weighed.coefficients["entropy"]), 12))
        objective.loss(weighed, log_prob=torch.zeros(2, 2).double(), entropy=torch.full((2, 2), entropy).double())
        objective.commit()
    assert paid == [0.0, 0.03, 0.04, 0.0, 0.04, 0.0, 0.0]
    assert float(objective.weigh(batch).coefficients["entropy"]) == 0


def test_a_cosine_rises_then_sinks_and_stays() -> None:
    c = COMPONENTS["coefficient", "cosine"]
    path = [float(c.function(torch.tensor(float(s)), start=1.0, end=0.2, steps=4, warmup_steps=2)) for s in range(9)]
    assert path == pytest.approx([0.0, 0.5, 1.0, 0.2 + 0.4 * (1 + 0.5**0.5), 0.6, 0.2 + 0.4 * (1 - 0.5**0.5), 0.2, 0.2, 0.2])
    assert float(c.function(torch.tensor(0.0), start=1.0, end=0.2, steps=4)) == 1

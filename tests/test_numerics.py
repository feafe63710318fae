"""Primitives: values and gradients against the textbook forms, at bounds, at zero and far out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossary.numerics import accumulator, bounded_log_ratio, clipped_surrogate, safe_divide, straight_through
from lossary.registry import Mean

few = settings(max_examples=100, deadline=None)
LOG_RATIO, ADVANTAGE = st.floats(-3, 3), st.floats(-5, 5)


def textbook(log_ratio, a, low, high, c=None):
    """PPO's pessimistic minimum, with the dual clip of a negative advantage, written as the papers do; and its gradient."""
    r = math.exp(log_ratio)
    clipped = min(max(r, 1 - low), 1 + high)
    value, slope = (-r * a, -r * a) if -r * a >= -clipped * a else (-clipped * a, 0.0)
    if c is not None and a < 0 and value > -a * c:
        value, slope = -a * c, 0.0
    return value, slope


def surrogate(log_ratio, a, *bounds, dtype=torch.float64):
    x = torch.tensor(log_ratio, dtype=dtype, requires_grad=True)
    loss, report = clipped_surrogate(x, torch.tensor(a, dtype=dtype), *bounds)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    return loss.detach(), grad, report


@few
@given(LOG_RATIO, ADVANTAGE, st.floats(0, 0.9), st.floats(0, 2), st.one_of(st.none(), st.floats(3.1, 9)))
def test_the_surrogate_is_the_textbooks_in_value_and_gradient(log_ratio, a, low, high, c):
    value, slope = textbook(log_ratio, a, low, high, c)
    bounds = [1 - low, 1 + high, *([c] if c else [])]
    loss, grad, _ = surrogate(log_ratio, a, low, high, c)
    assert loss.item() == pytest.approx(value, rel=1e-12, abs=1e-12)
    if all(abs(math.exp(log_ratio) - b) > 1e-9 for b in bounds):
        assert grad.item() == pytest.approx(slope, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("c", [None, 3.0])
def test_a_grid_of_signs_and_sides(c):
    ratios, signs = [0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.9, 3.1, 50.0], [-2.0, -1e-9, 0.0, 1e-9, 3.0]
    pairs = [(math.log(r), a) for r in ratios for a in signs]
    want = [textbook(x, a, 0.2, 0.2, c) for x, a in pairs]
    loss, grad, _ = surrogate([x for x, _ in pairs], [a for _, a in pairs], 0.2, 0.2, c)
    assert loss.tolist() == pytest.approx([v for v, _ in want], rel=1e-12, abs=1e-15)
    assert grad.tolist() == pytest.approx([s for _, s in want], rel=1e-12, abs=1e-15)


def test_a_zero_advantage_has_no_loss_no_gradient_and_is_never_clipped():
    loss, grad, report = surrogate([-2.0, 0.0, 2.0], [0.0, 0.0, 0.0], 0.2, 0.2, 3.0)
    assert loss.abs().tolist() == [0.0] * 3
    assert grad.abs().tolist() == [0.0] * 3
    assert not any(report[n].x.any() for n in ("pg_clipfrac", "pg_clipfrac_lower"))


def test_exactly_at_a_bound_the_gradient_still_flows():
    # Ratios of exactly 1.5 and 0.5 do not come out of exp, but a bound of 0 puts the ratio 1 on both bounds.
    for a in (2.0, -2.0):
        loss, grad, report = surrogate(0.0, a, 0.0, 0.0)
        assert (loss.item(), grad.item()) == (-a, -a)
        assert not report["pg_clipfrac"].x
    loss, grad, _ = surrogate(0.0, -2.0, 0.2, 0.2, 1.0)
    assert (loss.item(), grad.item()) == (2.0, 2.0)


def test_ratio_O3_dual_clip():
    loss, _, report = surrogate([math.log(r) for r in (0.5, 6.0, 1.5, 2.0)], [2.0, -1.0, 1.0, -1.0], 0.2, 0.2, 3.0)
    assert loss.tolist() == pytest.approx([-1.0, 3.0, -1.2, 2.0], abs=1e-9)
    assert loss.mean().item() == pytest.approx(0.7, abs=1e-9)
    assert report["pg_clipfrac_lower"].x.tolist() == [False, True, False, False]


def test_ratio_O5_the_upper_bound_is_its_own():
    loss, grad, report = surrogate(math.log(1.5), 1.0, 0.2, 0.28)
    assert (loss.item(), grad.item()) == (pytest.approx(-1.28, abs=1e-9), 0.0)
    assert report["pg_clipfrac"].x.item() is True


@pytest.mark.parametrize("a", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("difference", [700.0, -700.0, 88.8])
def test_ratio_O1_O2_a_bounded_ratio_is_finite_in_float32(a, difference):
    log_prob = torch.tensor(difference, requires_grad=True)
    loss, report = clipped_surrogate(bounded_log_ratio(log_prob, torch.tensor(0.0), 20.0), torch.tensor(a), 0.2, 0.2)
    loss.backward()
    assert loss.isfinite()
    assert log_prob.grad.abs().item() == 0.0
    assert report["ppo_kl"].x.item() == -math.copysign(20.0, difference)


@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize("difference", [700.0, -700.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_bound_the_ratio_stays_finite_all_the_same(a, difference, dtype):
    log_prob = torch.tensor(difference, dtype=dtype, requires_grad=True)
    loss, _ = clipped_surrogate(bounded_log_ratio(log_prob, torch.zeros((), dtype=dtype), None), torch.tensor(a, dtype=dtype), 0.2, 0.2)
    loss.backward()
    assert loss.isfinite()
    assert log_prob.grad.isfinite()


def test_the_three_metrics_are_verls():
    log_ratio = torch.tensor([0.5, -0.5, 0.5, -0.5, 2.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    _, report = clipped_surrogate(log_ratio, advantages, 0.2, 0.2, 3.0)
    assert set(report) == {"pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"}
    assert all(isinstance(m, Mean) and m.where is None and not m.x.requires_grad for m in report.values())
    ratio = log_ratio.detach().exp()
    one, two = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)
    assert report["pg_clipfrac"].x.equal(two > one)
    assert report["pg_clipfrac_lower"].x.equal((torch.maximum(one, two) > -advantages * 3.0) & (advantages < 0))
    assert report["ppo_kl"].x.equal(-log_ratio.detach())
    assert set(clipped_surrogate(log_ratio, advantages, 0.2, 0.2)[1]) == {"pg_clipfrac", "ppo_kl"}


def test_a_bounded_log_ratio_is_the_difference_within_the_bound_and_flat_beyond():
    new = torch.tensor([-30.0, -20.0, 0.5, 20.0, 31.0], requires_grad=True)
    out = bounded_log_ratio(new, torch.zeros(5), 20.0)
    out.sum().backward()
    assert out.tolist() == [-20.0, -20.0, 0.5, 20.0, 20.0]
    assert new.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert bounded_log_ratio(new, torch.zeros(5), None).tolist() == new.tolist()
    assert torch.tensor(80.0).exp().isfinite()


@few
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_straight_through_has_one_value_and_another_gradient(value, via):
    x = torch.tensor(via, dtype=torch.float64, requires_grad=True)
    v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    out = straight_through(v, 3 * x)
    out.backward()
    assert out.item() == value
    assert x.grad.item() == 3.0
    assert v.grad is None


def test_safe_divide_gives_zero_and_no_gradient_where_nothing_was_counted():
    n = torch.tensor([6.0, 5.0, math.inf, 0.0], requires_grad=True)
    d = torch.tensor([3.0, 0.0, 0.0, 2.0], requires_grad=True)
    out = safe_divide(n, d)
    out.sum().backward()
    assert out.tolist() == [2.0, 0.0, 0.0, 0.0]
    assert n.grad.tolist() == [pytest.approx(1 / 3), 0.0, 0.0, 0.5]
    assert d.grad.tolist() == [pytest.approx(-2 / 3), 0.0, 0.0, 0.0]
    assert safe_divide(torch.tensor(1), torch.tensor(0)).item() == 0.0


def test_safe_divide_passes_gradcheck():
    n, d = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([1.0, -2.0], [4.0, 0.5]))
    assert torch.autograd.gradcheck(safe_divide, [n, d])


def test_sums_are_kept_in_float64_where_there_is_one():
    assert accumulator(torch.zeros(1, dtype=torch.bfloat16)) is torch.float64

    class Apple:
        is_mps = True

    assert accumulator(Apple()) is torch.float32

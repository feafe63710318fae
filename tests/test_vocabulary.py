"""What needs the whole vocabulary: beside explicit sums in float64, with tokens that cannot be said, and far out."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence
from torch.utils.checkpoint import checkpoint
from wordwise import INF, N, V, close, kept_for_backward, kl, masked, random, value_and_grad

import lossary
from lossary import numerics

DIVERGENCES = {
    "reverse": numerics.reverse_kl,
    "forward": numerics.forward_kl,
    "jsd": numerics.jensen_shannon,
    "jsd-0.1": lambda p, q, temperature=1.0: numerics.jensen_shannon(p, q, 0.1, temperature),
    "skewed-forward": lambda p, q, temperature=1.0: numerics.skewed_forward_kl(p, q, 0.1, temperature),
    "skewed-reverse": lambda p, q, temperature=1.0: numerics.skewed_reverse_kl(p, q, 0.1, temperature),
    "adaptive": lambda p, q, temperature=1.0: numerics.adaptive_kl(p, q, 0.5, temperature),
}
MOMENTS = {"entropy": numerics.entropy_of, "sum_pi_squared": numerics.sum_pi_squared_of}
ALONE = {**MOMENTS, "log_prob": lambda z, temperature=1.0: numerics.log_prob_of(z, torch.arange(z.shape[0]) % z.shape[1], temperature)}


def plain(name, logits, other, temperature=1.0):
    """The divergences as they are written, by autograd."""
    p, q = (logits / temperature).softmax(-1), (other / temperature).softmax(-1)
    if name.startswith("jsd"):
        beta = 0.1 if name == "jsd-0.1" else 0.5
        m = beta * q + (1 - beta) * p
        return beta * kl(q, m) + (1 - beta) * kl(p, m)
    if name == "adaptive":
        ordered, place = q.sort(-1)
        tail = torch.zeros_like(q).scatter(-1, place, (ordered.cumsum(-1) <= 0.5).to(q.dtype)) > 0
        apart = (q - p).detach().abs()
        w = torch.where(tail, 0.0, apart).sum(-1) / apart.sum(-1)
        return w * kl(q, p) + (1 - w) * kl(p, q)
    return {
        "reverse": lambda: kl(p, q),
        "forward": lambda: kl(q, p),
        "skewed-forward": lambda: kl(q, 0.1 * q + 0.9 * p),
        "skewed-reverse": lambda: kl(p, 0.1 * p + 0.9 * q),
    }[name]()


# ── the functions ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_its_explicit_sum_in_value_and_gradient(name, temperature):
    other, weights = random(N, V, seed=1), random(N, seed=2)
    ours = value_and_grad(lambda z: DIVERGENCES[name](z, other, temperature=temperature), random(N, V), weights)
    theirs = value_and_grad(lambda z: plain(name, z, other, temperature), random(N, V), weights)
    close(ours[0], theirs[0])
    close(ours[1], theirs[1])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("name", [*(n for n in DIVERGENCES if n != "adaptive"), *ALONE])
def test_gradients_by_finite_differences(name, temperature):
    other = random(N, V, seed=1)
    f = ALONE[name] if name in ALONE else lambda z, temperature: DIVERGENCES[name](z, other, temperature=temperature)
    assert torch.autograd.gradcheck(lambda z: f(z, temperature=temperature), random(N, V).requires_grad_())


def test_moments_and_log_probabilities_are_those_of_torch():
    z, ids = random(N, V), torch.arange(N) * 2 % V
    policy = Categorical(logits=z)
    close(numerics.entropy_of(z), policy.entropy())
    close(numerics.sum_pi_squared_of(z), policy.probs.square().sum(-1))
    close(numerics.sum_pi_squared_of(z), (torch.logsumexp(2 * z, -1) - 2 * torch.logsumexp(z, -1)).exp())
    close(numerics.log_prob_of(z, ids), policy.log_prob(ids))
    many = torch.stack([ids, (ids + 1) % V], -1)
    close(numerics.log_prob_of(z, many), torch.stack([policy.log_prob(many[:, k]) for k in range(2)], -1))
    close(numerics.reverse_kl(z, random(N, V, seed=1)), kl_divergence(policy, Categorical(logits=random(N, V, seed=1))))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 5.0]), name=st.sampled_from(sorted(DIVERGENCES)))
def test_divergences_are_never_negative_in_float32_and_close_to_float64(seed, scale, name):
    z, other = random(3, 50, seed=seed, scale=scale), random(3, 50, seed=seed + 1, scale=scale)
    exact = DIVERGENCES[name](z, other)
    found = DIVERGENCES[name](z.float(), other.float())
    assert (found >= 0).all()
    close(found.double(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_at_equality_there_is_neither_distance_nor_pull(name):
    z = random(N, V).float()
    value, grad = value_and_grad(lambda x: DIVERGENCES[name](x, z), z)
    assert (value <= 1e-6).all()
    assert grad.abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["reverse", "forward"])
def test_the_rounded_normaliser_of_a_large_vocabulary_does_not_enter(name):
    """Each log-probability of float32 carries the rounding of its row's normaliser, 1e-6 at this size; the sum must not."""
    z = random(4, 30_000, scale=0.1).float()
    other = z + 1e-4 * random(4, 30_000, seed=1).float()
    exact = DIVERGENCES[name](z.double(), other.double())
    close(DIVERGENCES[name](z, other).double(), exact, rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", [*DIVERGENCES, *MOMENTS])
def test_a_vocabulary_masked_on_both_sides_is_a_smaller_one(name):
    z, other = random(N, V), random(N, V, seed=1)
    hidden = torch.zeros(V, dtype=torch.bool)
    hidden[[0, 3, 10]] = True
    f = (lambda a, b: MOMENTS[name](a)) if name in MOMENTS else DIVERGENCES[name]
    value, grad = value_and_grad(lambda x: f(x, other.masked_fill(hidden, -INF)), z.masked_fill(hidden, -INF))
    small, small_grad = value_and_grad(lambda x: f(x, other[:, ~hidden]), z[:, ~hidden])
    close(value, small)
    close(grad[:, ~hidden], small_grad)
    assert (grad[:, hidden] == 0).all()


@pytest.mark.parametrize("who", ["student", "teacher", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_what_one_side_cannot_say_is_dear_but_finite(name, who, dtype):
    z, other = random(N, V).to(dtype), random(N, V, seed=1).to(dtype)
    z, other = masked(z, 0) if who != "teacher" else z, masked(other, 1) if who != "student" else other
    value, grad = value_and_grad(lambda x: DIVERGENCES[name](x, other), z)
    assert value.isfinite().all()
    assert grad.isfinite().all()
    bounded = name in ("jsd", "jsd-0.1", "skewed-forward" if who == "teacher" else "", "skewed-reverse" if who == "student" else "")
    assert value.max() <= (math.log(10) if bounded else 1 + math.log(torch.finfo(dtype).max))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*DIVERGENCES, *MOMENTS, "log_prob"])
def test_far_out_everything_is_finite(name, dtype):
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4]], dtype=dtype)
    f = ALONE[name] if name in ALONE else lambda x: DIVERGENCES[name](x, z.flip(0))
    value, grad = value_and_grad(f, z)
    assert value.isfinite().all()
    assert grad.isfinite().all()
    assert value.dtype == torch.float32


def test_a_reverse_kl_past_the_bound_has_the_gradient_of_what_it_says():
    """There the log-ratio counts as a constant, and so it must in the gradient."""
    other = torch.tensor([[0.0, -1e3, 1.0]], dtype=torch.float64)
    limit = math.log(torch.finfo(torch.float64).max) - 1
    z = torch.tensor([[0.3, 0.1, -0.2]], dtype=torch.float64, requires_grad=True)
    p, log_q = z.softmax(-1), other.log_softmax(-1)
    want = (p * (z.log_softmax(-1) - log_q).clamp(max=limit)).sum()
    close(numerics.reverse_kl(z, other)[0], want)
    close(torch.autograd.grad(numerics.reverse_kl(z, other).sum(), z)[0], torch.autograd.grad(want, z)[0])
    assert torch.autograd.gradcheck(lambda x: numerics.reverse_kl(x, other), z)


def test_a_forward_kl_past_the_bound_still_pulls():
    z, other = torch.tensor([[0.0, -2e3]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    value, grad = value_and_grad(lambda x: numerics.forward_kl(x, other), z)
    assert value.item() < 0.5 * math.log(torch.finfo(torch.float64).max)
    close(grad, torch.tensor([[0.5, -0.5]], dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.9])
def test_the_tail_is_what_weighs_at_most_alpha(alpha):
    """By sorting; and with ties, which stay together."""
    other = random(40, 23, seed=3)
    q = other.softmax(-1)
    ordered, place = q.sort(-1)
    head = torch.zeros_like(q).scatter(-1, place, (ordered.cumsum(-1) > alpha).double())
    p = random(40, 23).softmax(-1)
    w = (head * (q - p).abs()).sum(-1) / (q - p).abs().sum(-1)
    close(numerics.adaptive_kl(random(40, 23), other, alpha), w * kl(q, p) + (1 - w) * kl(p, q))
    z = torch.tensor([[1.0, 2.0, 3.0, 0.0]], dtype=torch.float64)
    tied = numerics.adaptive_kl(z, torch.zeros(1, 4, dtype=torch.float64), 0.5)
    close(tied, kl(torch.full((1, 4), 0.25, dtype=torch.float64), z.softmax(-1)))  # none of four alike is the least likely


def test_it_can_be_differentiated_once_and_says_so_of_twice():
    z = random(N, V).requires_grad_()
    (grad,) = torch.autograd.grad(numerics.entropy_of(z).square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_recomputation_and_no_grad_give_the_same():
    z, other = random(N, V).requires_grad_(), random(N, V, seed=1)
    want = torch.autograd.grad(numerics.jensen_shannon(z, other).sum(), z)[0]
    found = checkpoint(numerics.jensen_shannon, z, other, use_reentrant=False)
    close(torch.autograd.grad(found.sum(), z)[0], want)
    with torch.no_grad():
        assert not numerics.jensen_shannon(z, other).requires_grad
    assert numerics.jensen_shannon(z.detach(), other).grad_fn is None


@pytest.mark.parametrize("name", [*DIVERGENCES, *MOMENTS])
def test_only_the_gradient_is_kept(name):
    z, other = random(N, 400).requires_grad_(), random(N, 400, seed=1)
    f = MOMENTS[name] if name in MOMENTS else lambda x: DIVERGENCES[name](x, other, temperature=2.0)
    assert kept_for_backward(f, z)[0] == 1


def test_a_log_probability_keeps_nothing_but_the_logits():
    assert kept_for_backward(ALONE["log_prob"], random(N, 400).requires_grad_())[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("alpha", "f"), [(0.0, numerics.forward_kl), (1.0, numerics.reverse_kl)])
def test_at_its_ends_the_adaptive_divergence_is_one_of_both(alpha, f, dtype):
    """Exactly, also where one token has all the probability, where many have none, and where rounding makes their sum more than 1."""
    z, other = random(40, 300).to(dtype), random(40, 300, seed=1).to(dtype)
    other[:10, 3] += 1e3
    other[10:20, 40:] -= 200
    for a, b in zip(
        value_and_grad(lambda x: numerics.adaptive_kl(x, other, alpha), z), value_and_grad(lambda x: f(x, other), z), strict=True
    ):
        assert torch.equal(a, b)


# ── critics of bins ──────────────────────────────────────────────────────────────────────────────────────────────────

CRITIC = {"policy_loss": "reinforce"}


@pytest.mark.parametrize("use", ["two-hot", "hl-gauss"])
@pytest.mark.parametrize(
    ("low", "high", "why"),
    [
        (
            100,
            100.000001,
            "low is 100.0 and high 100.000001, 1e-06 apart; at these numbers float32 cannot tell bins within less than 0.0122",
        ),
        (-3e38, 3e38, "low is -3e+38 and high 3e+38; bins that wide overflow float32, so stay within +-1e+30"),
        (0.0, 1e-40, "within less than 1e-30"),
        (1.0, 1.0, "low must be below high"),
    ],
)
def test_a_support_that_float32_cannot_hold_is_refused(use, low, high, why):
    with pytest.raises(lossary.RecipeError, match=re.escape(why)):
        lossary.compose({**CRITIC, "value_loss": {"use": use, "low": low, "high": high}})


def test_targets_narrower_than_a_hundredth_of_a_bin_are_refused():
    with pytest.raises(lossary.RecipeError, match=re.escape("1e-50 is out of bounds; expected a number >= 0.01 and <= 100")):
        lossary.compose({**CRITIC, "value_loss": {"use": "hl-gauss", "sigma_ratio": 1e-50}})


def test_more_bins_than_there_are_numbers_are_refused():
    narrow = {"low": 100.0, "high": 100.1}
    for points in (numerics.bin_points, numerics.bin_centres):
        assert points(torch.zeros(1, 50), **narrow).diff().min() > 0
        with pytest.raises(lossary.ColumnError, match=r"has 5000 bins between 100.* and 100.*Use fewer bins or a wider support"):
            points(torch.zeros(1, 5000), **narrow)
        assert points(torch.zeros(1, 5000, dtype=torch.float64), **narrow).diff().min() > 0


@pytest.mark.parametrize("use", ["two-hot", "hl-gauss"])
@pytest.mark.parametrize(("low", "high"), [(-1e30, 1e30), (0.0, 1e-30), (1000.0, 1000.2), (-1e30, -9.99e29)])
def test_the_widest_and_the_narrowest_support_still_teach(use, low, high):
    c = lossary.catalog().get("value_loss", use)
    sharp = {"sigma_ratio": 0.01} if use == "hl-gauss" else {}
    returns = torch.tensor([low, high, (low + high) / 2, low - 1e30, 0.0])
    f = lambda z: c.function(z, returns, **c.params(low=low, high=high, **sharp).model_dump())[0]  # noqa: E731
    loss, grad = value_and_grad(f, random(5, 9).float())
    assert loss.isfinite().all()
    assert (loss > 0).all()
    assert grad.isfinite().all()
    assert (grad.abs().sum(-1) > 0).all()

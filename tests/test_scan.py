"""Discounted sums: the blocked product and the doubling against an obvious loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossary.batch import Sequences
from lossary.numerics import scan

few = settings(max_examples=60, deadline=None)


def loop(x, decay, lengths, *, reverse):
    """``y_t = x_t + decay_t * y_(t +- 1)``, one number after another."""
    decay = decay if isinstance(decay, list) else [decay] * len(x)
    out, begin = [0.0] * len(x), 0
    for n in lengths:
        steps = range(begin, begin + n)
        carried = 0.0
        for t in reversed(steps) if reverse else steps:
            carried = x[t] + (decay[t] * carried)
            out[t] = carried
        begin += n
    return out


def run(x, decay, lengths, *, reverse=True):
    s = Sequences.of(torch.tensor(lengths, dtype=torch.long), sum(lengths))
    return scan(x, decay, s.index, s.lengths, s.offsets, reverse=reverse)


LENGTHS = st.lists(st.one_of(st.integers(0, 5), st.integers(30, 34), st.integers(60, 70)), min_size=1, max_size=6)


@few
@given(LENGTHS, st.sampled_from([0.0, 0.3, 0.95, 1.0, -0.5, 1.01]), st.booleans(), st.integers(0, 2**31))
def test_a_number_as_decay(lengths, decay, reverse, seed):
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert run(x, decay, lengths, reverse=reverse).tolist() == pytest.approx(loop(x.tolist(), decay, lengths, reverse=reverse), abs=1e-9)


@few
@given(LENGTHS, st.booleans(), st.integers(0, 2**31))
def test_a_factor_per_token_as_decay(lengths, reverse, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    decay = torch.rand(sum(lengths), generator=generator).double() * (torch.rand(sum(lengths), generator=generator) < 0.9)
    want = loop(x.tolist(), decay.tolist(), lengths, reverse=reverse)
    assert run(x, decay, lengths, reverse=reverse).tolist() == pytest.approx(want, abs=1e-9)
    same = run(x, torch.full_like(x, 0.9), lengths, reverse=reverse)
    assert same.tolist() == pytest.approx(run(x, 0.9, lengths, reverse=reverse).tolist(), abs=1e-9)


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.99, 1.0])
@pytest.mark.parametrize(
    "lengths",
    [[5000], [1], [0, 0, 5000, 0], [1024, 1024], [1025, 0, 31, 33, 2048], [0] * 200 + [40] + [0] * 300, [1] * 500, [33] * 70 + [0], [0, 32, 64, 96]],
)  # fmt: skip
def test_long_short_and_empty_sequences(lengths, decay, reverse):
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    want = torch.tensor(loop(x.tolist(), decay, lengths, reverse=reverse), dtype=torch.float64)
    assert torch.allclose(run(x, decay, lengths, reverse=reverse), want, rtol=1e-10, atol=1e-9)
    per_token = run(x, torch.full_like(x, decay), lengths, reverse=reverse)
    assert torch.allclose(per_token, want, rtol=1e-10, atol=1e-9)


def test_two_levels_of_carries():
    lengths = [32 * 32 * 3 + 7, 5, 32 * 32 * 2]
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for reverse in (True, False):
        want = torch.tensor(loop(x.tolist(), 0.9999, lengths, reverse=reverse), dtype=torch.float64)
        assert torch.allclose(run(x, 0.9999, lengths, reverse=reverse), want, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("decay", [0.97, "per token"])
def test_other_sequences_change_no_bit(decay):
    lengths = [40, 0, 70, 33, 2000]
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(3))
    factor = torch.full_like(x, 0.97) if decay == "per token" else decay
    s = Sequences.of(torch.tensor(lengths), sum(lengths))
    plain = s.reverse_scan(x, factor)
    for chosen, junk in ((0, float("inf")), (2, float("nan")), (3, 1e30), (4, -5.0)):
        mine = s.index == chosen
        assert s.reverse_scan(torch.where(mine, junk, x), factor)[~mine].equal(plain[~mine])


def test_the_dtype_stays_and_precision_is_kept_inside():
    x = torch.full((4096,), 0.1, dtype=torch.float32)
    out = run(x, 1.0, [4096])
    assert out.dtype == torch.float32
    assert out[0].item() == pytest.approx(float(x[0]) * 4096, rel=1e-7)
    assert run(x, torch.ones(4096), [4096])[0].item() == pytest.approx(float(x[0]) * 4096, rel=1e-7)


def test_nothing_in_nothing_out():
    x = torch.zeros(0, requires_grad=True)
    out = run(x, 0.9, [0, 0])
    assert out.shape == (0,)
    out.sum().backward()
    assert x.grad.shape == (0,)
    assert run(torch.zeros(0), torch.zeros(0), [0]).shape == (0,)


@pytest.mark.parametrize("reverse", [True, False])
def test_the_gradient_is_the_scan_the_other_way(reverse):
    lengths = [70, 0, 33, 5]
    x = torch.randn(sum(lengths), dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(4))
    seeds = torch.randn(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    (grad,) = torch.autograd.grad(run(x, 0.9, lengths, reverse=reverse), x, seeds)
    assert grad.tolist() == pytest.approx(loop(seeds.tolist(), 0.9, lengths, reverse=not reverse), abs=1e-9)


def test_gradcheck_over_blocks_and_of_the_decay():
    lengths = [40, 3]
    x = torch.randn(43, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(6))
    assert torch.autograd.gradcheck(lambda v: run(v, 0.8, lengths), [x])
    small = x.detach()[:9].clone().requires_grad_()
    decay = torch.full((9,), 0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, d: run(v, d, [4, 0, 5]), [small, decay])
    assert torch.autograd.gradcheck(lambda v, d: run(v, d, [4, 0, 5], reverse=False), [small, decay])

"""Tokens that the policy cannot say, and differences that are only rounding: values and gradients stay finite, equality stays 0."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from correcting import pair
from golden.records import call
from test_kl import EVERY, KL, WHOLE, t
from torch import Tensor

from lossary.batch import Batch
from lossary.numerics import binary_kl
from lossary.registry import Level

ANCHORED = [
    ({**params, "anchor": anchor} if "anchor" in KL[name].params.model_fields else params, name)
    for name, params in (*EVERY, *WHOLE)
    for anchor in ("old", "rollout", "current")
    if anchor == "old" or "anchor" in KL[name].params.model_fields
]


BOUNDS: list[dict[str, Any]] = [{}, {"log_ratio_bound": None}, {"log_ratio_bound": None, "cap": 10.0, "importance_cap": None}]


def said(name: str, params: dict[str, Any], *columns: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gradients of one sequence; an impossible token of the current policy comes after the border."""
    names = ("log_prob", "ref_log_prob", "old_log_prob", "rollout_log_prob")
    given = {"log_prob": columns[0].clone().requires_grad_(), **dict(zip(names[1:], columns[1:], strict=False))}
    value = call("kl", name, params, Batch.from_packed([len(columns[0])]).with_columns(Level.TOKEN, **given))
    return value.detach(), torch.autograd.grad(value.sum(), given["log_prob"])[0]


@pytest.mark.parametrize(("params", "name"), ANCHORED)
def test_a_token_that_the_policy_cannot_say_has_a_finite_estimate(name: str, params: dict[str, Any]) -> None:
    for bounds, dtype in product(BOUNDS, (torch.float32, torch.float64)):
        known = {**params, **{k: v for k, v in bounds.items() if k in KL[name].params.model_fields}}
        new, ref, old = t(-1.0, -math.inf, -math.inf, dtype=dtype), t(-1.5, -2.0, 0.0, dtype=dtype), t(-1.2, -2.5, -0.1, dtype=dtype)
        rollout = t(-1.1, -2.0, math.nan, dtype=dtype)
        value, slope = said(name, known, new, ref, old, rollout)
        assert value.isfinite().all()
        assert slope.isfinite().all()
        if name != "importance-sequence":  # where one ratio is for all
            assert (slope[1:] == 0).all()
            alone, pull = said(name, known, new[:1], ref[:1], old[:1], rollout[:1])
            assert torch.equal(value[:1], alone)
            assert torch.equal(slope[:1], pull)


def test_the_huber_of_a_token_that_cannot_be_said_is_straight() -> None:
    far, lost = (said("k3-huber", {}, t(x, dtype=torch.float32), t(0.0, dtype=torch.float32)) for x in (-300.0, -math.inf))
    assert torch.equal(far[0], lost[0])
    assert 800 < far[0].item() < 900
    assert (far[1].item(), lost[1].item()) == (-10.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kl_of_two_coins_is_never_negative(dtype: torch.dtype) -> None:
    assert float(binary_kl(torch.tensor(-1e-8, dtype=dtype), torch.tensor(0.0, dtype=dtype))) >= 0
    g = torch.Generator().manual_seed(0)
    near = -torch.rand(4000, generator=g, dtype=dtype).pow(12)
    other = (near * (1 + 1e-6 * torch.randn(4000, generator=g, dtype=dtype))).clamp(max=0)
    assert (binary_kl(near, other) >= 0).all()
    assert (binary_kl(near, near) == 0).all()
    leaf = near.clone().requires_grad_()
    binary_kl(leaf, other).sum().backward()
    assert (leaf.grad[near > other] >= 0).all()  # rounding of the value takes nothing from the slope
    assert (leaf.grad[near < other] <= 0).all()
    assert (leaf.grad != 0).sum() > 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [1e-300, 1e-30, 1e-12, 6e-8, 1e-6, 0.4])
def test_tokens_on_which_both_agree_are_kept_for_any_epsilon(epsilon: float, dtype: torch.dtype) -> None:
    both_say = torch.tensor([[0.0, -1e-9, -1e-3, -1.0, -50.0, -800.0]], dtype=dtype)
    batch = Batch.from_padded(torch.ones(1, 6), old_log_prob=both_say, rollout_log_prob=both_say.clone())
    for agg in ("token", "mean", "sum", "max"):
        _, keep = pair(call("correction", "reject-binary-kl", {"epsilon": epsilon, "upper": 1e-300, "agg": agg}, batch))
        assert keep is not None
        assert keep.all()


def test_tokens_on_which_they_differ_are_judged_for_any_epsilon() -> None:
    batch = Batch.from_padded(
        torch.ones(1, 3), old_log_prob=torch.tensor([[-0.7, 0.0, -9.0]]), rollout_log_prob=torch.tensor([[-0.69, -9.0, 0.0]])
    )
    for epsilon in (1e-300, 1e-8, 1e-3):
        _, keep = pair(call("correction", "reject-binary-kl", {"epsilon": epsilon, "agg": "token"}, batch))
        assert keep is not None
        assert keep.tolist() == [True, False, False]

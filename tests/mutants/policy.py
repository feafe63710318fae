"""Losses as a newcomer would write them, all of them right."""

from typing import Annotated

import torch
from pydantic import Field

from lossary import PerSequence, PerToken, Sequences, auxiliary_loss, policy_loss, value_loss
from lossary.numerics import bounded_log_ratio

Low = Annotated[float, Field(ge=0, le=1, description="how far a ratio may fall below 1")]
High = Annotated[float, Field(ge=0, lt=1e3, description="how far a ratio may rise above 1")]
CLIPS = ("on-policy-gradient", "pulls-back")
SEEN = []


class Square(torch.autograd.Function):
    """A square with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@policy_loss(paper="arXiv:1707.06347", scope="token", claims=CLIPS)
def ppo(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, *, low: Low = 0.2, high: High = 0.2) -> PerToken:
    """Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``."""
    ratio = bounded_log_ratio(log_prob, old_log_prob, 20.0).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, clipped)
    return loss


@policy_loss(paper="arXiv:1912.09729", scope="token", claims=CLIPS)
def dual(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Clip like ``ppo``, and cap what a bad token costs: ``min(loss, -3 A)`` where ``A < 0``."""
    ratio = bounded_log_ratio(log_prob, old_log_prob, 20.0).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    capped = torch.minimum(loss, -3 * advantages)
    return torch.where(advantages < 0, capped, loss)


@policy_loss(paper="arXiv:2506.13585", scope="token", claims=CLIPS)
def scored(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Weigh the score by a ratio that is held still: ``-sg(min(r, 5)) A l``."""
    weight = bounded_log_ratio(log_prob, old_log_prob, 20.0).exp().clamp(max=5).detach()
    return -weight * advantages * log_prob


@policy_loss(paper="arXiv:2507.18071")
def whole(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, sequences: Sequences) -> PerToken:
    """Clip one ratio per sequence: ``r = exp(mean(l - l_old))``."""
    gap = bounded_log_ratio(log_prob, old_log_prob, 20.0)
    ratio = sequences.spread(sequences.mean(gap)).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1))


@policy_loss(paper="none, a test", scope="token")
def weighed(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Weigh the score by a ratio, and claim nothing: ``-sg(r) A l``."""
    weight = bounded_log_ratio(log_prob, old_log_prob, 20.0).exp().detach()
    return -weight * advantages * log_prob  # unclaimed


@policy_loss(paper="arXiv:2505.24034", scope="token")
def corrected(log_prob: PerToken, old_log_prob: PerToken, rollout_log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Weigh what the old policy found likelier than the sampler: ``-r sg(w) A``."""
    gap = bounded_log_ratio(old_log_prob, rollout_log_prob, 20.0)
    weight = torch.where(rollout_log_prob.isnan(), torch.zeros_like(gap), gap).exp()
    return -advantages * bounded_log_ratio(log_prob, old_log_prob, 20.0).exp() * weight


@policy_loss(paper="none, a test", scope="step")
def most_uncertain(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Learn where the policy was unsure: ``-A l [l <= mean]``."""
    mean = log_prob.detach().sum() / max(log_prob.shape[0], 1)
    chosen = log_prob.detach() <= mean
    return -torch.where(chosen, advantages, 0.0) * log_prob


@policy_loss(paper="none, a test")
def per_sequence(log_prob: PerToken, advantages: PerToken, sequences: Sequences) -> PerSequence:
    """Average over each sequence: ``-mean(A l)``."""
    return -sequences.mean(advantages * log_prob)


@policy_loss(paper="none, a test")
def looking_ahead(log_prob: PerToken, advantages: PerToken, sequences: Sequences) -> PerToken:
    """Let half of the next token's advantage count: ``-(A_t + A_(t+1) / 2) l_t``."""
    return -(advantages + 0.5 * sequences.next(advantages)) * log_prob


@auxiliary_loss(paper="none, a test", scope="token", claims=("non-negative",))
def imitation(log_prob: PerToken) -> PerToken:
    """Imitate, the surprising tokens most: ``l^2``."""
    return Square.apply(log_prob)


@value_loss(paper="none, a test", scope="token", claims=("non-negative", "zero-at-equality"))
def critic(values: PerToken, old_values: PerToken, returns: PerToken) -> PerToken:
    """Pay for the worse of two errors: ``max((v - R)^2, (clip(v) - R)^2)``."""
    near = old_values + (values - old_values).clamp(-0.2, 0.2)
    return torch.maximum((values - returns).square(), (near - returns).square())

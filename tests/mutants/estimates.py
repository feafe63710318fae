"""Estimators, corrections and means as a newcomer would write them, all of them right."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lossary import (
    PerSequence,
    PerToken,
    Sequences,
    advantage_estimator,
    aggregation,
    coefficient,
    correction,
    kl_estimator,
    reward_term,
    sequence_filter,
)
from lossary.numerics import bounded
from lossary.registry import Totals

KL = ("zero-at-equality", "non-negative", "unbiased")


@kl_estimator(paper="none, a test", scope="token", claims=KL)
def third(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    """Estimate from the sampled token: ``exp(d) - 1 - d`` with ``d = l_ref - l``."""
    d = bounded(ref_log_prob - log_prob, 20.0)
    return d.expm1() - d


@kl_estimator(paper="none, a test", scope="token", claims=("zero-at-equality", "non-negative", "unbiased-gradient"))
def second(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    """Take half the square: ``d^2 / 2``."""
    return (log_prob - ref_log_prob).square() / 2


@advantage_estimator(
    paper="none, a test", scope="group", claims=("rewards-better", "shift-invariant", "scale-invariant", "group-centred", "unit-deviation")
)
def standardised(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Measure against the group: ``(s - mean) / std``."""
    apart = rewards - sequences.group_spread(sequences.group_mean(rewards))
    deviation = sequences.group_spread(sequences.group_std(rewards))
    return apart / (deviation + 1e-6)


@advantage_estimator(
    paper="none, a test", scope="group", claims=("shift-invariant", "scale-equivariant", "group-centred", "independent-baseline")
)
def others(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Measure against the others of the group: ``s - mean of the others``."""
    size = sequences.group_spread(sequences.group_size()).to(rewards.dtype)
    apart = rewards - sequences.group_spread(sequences.group_mean(rewards))
    return apart * size / (size - 1).clamp(min=1)


@advantage_estimator(paper="none, a test", claims=("rewards-better", "scale-equivariant", "causal", "zero-at-perfect-values"))
def discounted(token_rewards: PerToken, old_values: PerToken, sequences: Sequences) -> Mapping[str, Tensor]:
    """Add up the errors of the critic: ``A_t = r_t + v_(t+1) - v_t + 0.9 A_(t+1)``."""
    error = token_rewards + sequences.next(old_values) - old_values
    advantages = sequences.reverse_scan(error, 0.9)
    return {"advantages": advantages, "returns": advantages + old_values}


@advantage_estimator(paper="none, a test", scope="step", claims=("shift-invariant", "scale-invariant", "unit-deviation"))
def white(advantages: PerToken, sequences: Sequences) -> PerToken:
    """Whiten over the step: ``(A - mean) / std``."""
    _, mean, variance = sequences.moments(advantages)
    return ((advantages - mean) / (variance.sqrt() + 1e-8)).to(advantages.dtype)


@aggregation(paper="none, a test", scope="token", claims=("sums-to-one",))
def over_tokens(sequences: Sequences, totals: Totals) -> PerToken:
    """Weigh all tokens of the step alike: ``1 / N``."""
    n = sequences.index.shape[0]
    return (1 / totals.tokens.clamp(min=1)).expand(n)


@aggregation(paper="none, a test", claims=("sums-to-one",))
def over_sequences(sequences: Sequences, totals: Totals) -> PerToken:
    """Weigh all sequences alike: ``1 / (n_i S)``."""
    lengths = sequences.lengths.clamp(min=1).to(torch.float64)
    return sequences.spread(1 / (lengths * totals.sequences))


@correction(paper="none, a test", scope="token", claims=("neutral-at-agreement", "corrects-direction"))
def truncated(old_log_prob: PerToken, rollout_log_prob: PerToken) -> tuple[PerToken, None]:
    """Weigh by a ratio up to a cap: ``min(r, 2)``."""
    gap = old_log_prob - torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob)
    return bounded(gap, 20.0).exp().clamp(max=2), None


@correction(paper="none, a test", scope="token", claims=("neutral-at-agreement",))
def masked(old_log_prob: PerToken, rollout_log_prob: PerToken) -> tuple[None, PerToken]:
    """Keep what has hardly moved: ``|d| <= 1``, or was not scored."""
    gap = (old_log_prob - rollout_log_prob).abs()
    return None, (gap <= 1) | gap.isnan()


@reward_term(paper="none, a test")
def short(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Take a tenth for each token: ``s - n / 10``."""
    return rewards - sequences.lengths.to(rewards.dtype) / 10


@sequence_filter(paper="none, a test", scope="group")
def varied(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Keep groups whose rewards differ: ``std > 0``."""
    return sequences.group_spread(sequences.group_std(rewards)) > 0


@coefficient(paper="none, a test")
def halving(step: Tensor) -> Tensor:
    """Halve every ten steps: ``2^(-k / 10)``."""
    return torch.exp2(-step / 10)

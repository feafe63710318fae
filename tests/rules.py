"""Small corrections and losses that tests of the pipeline compose."""

import torch

import lossary
from lossary import Mean, PerToken, Sequences

Weight = tuple[PerToken, None]
Both = tuple[PerToken | None, PerToken | None]


@lossary.correction
def doubled(old_log_prob, *, factor: float = 2.0) -> Weight:
    """Weigh every token alike."""
    return torch.full_like(old_log_prob, factor), None


@lossary.correction
def ratio_cut(old_log_prob, rollout_log_prob, *, at: float = 0.0) -> tuple[Both, dict]:
    """Drop what fell by more than ``at``, weigh the rest by its ratio."""
    d = old_log_prob - rollout_log_prob
    return (d.exp(), d > at), {"gap": Mean(d)}


@lossary.correction
def whole_rows(sequences: Sequences, advantages: PerToken) -> Both:
    """Drop sequences whose first advantage is negative."""
    first = torch.where(sequences.places == 0, advantages, 0.0)
    return None, sequences.spread(sequences.sum(first) >= 0)


@lossary.correction
def normalised(correction: PerToken, sequences: Sequences) -> Weight:
    """Divide by the mean of the weights so far."""
    _, mean, _ = sequences.moments(correction)
    return (1 / mean).to(correction.dtype).expand_as(correction), None


@lossary.correction
def falling(log_prob, old_log_prob) -> Both:
    """Drop tokens that the current policy likes less than the old one."""
    return None, log_prob >= old_log_prob


@lossary.policy_loss(scope="token")
def plain(log_prob, advantages) -> PerToken:
    """REINFORCE."""
    return -advantages * log_prob


@lossary.policy_loss(scope="token")
def knowing(log_prob, advantages, correction: PerToken) -> PerToken:
    """A loss that takes the weight into its own hands."""
    return -advantages * log_prob * correction.square()


OWN = [doubled, ratio_cut, whole_rows, normalised, falling, plain, knowing]

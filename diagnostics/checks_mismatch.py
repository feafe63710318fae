"""Sampler and trainer: how far their probabilities of the same tokens are apart, and how old the sampler was."""

import torch

from .finding import Place
from .sight import Check, Found, Sight, share

MEAN, MOST, KL, ESS = 0.1, 4.0, 0.05, 0.5
"""Mean and largest distance of log-probabilities, KL [nats]; effective sample size of the ratios."""
UNSCORED = 0.1
OLD = 4
"""Versions between the newest and the oldest token of a batch."""


def _scored(sight: Sight) -> torch.Tensor:
    a, b = sight["old_log_prob"], sight["rollout_log_prob"]
    return a.isfinite() & b.isfinite()


def distance(sight: Sight) -> Found:
    """Measure the distance of old and rollout policy."""
    live = _scored(sight)
    d = torch.where(live, sight.real("old_log_prob") - sight.real("rollout_log_prob"), 0.0)
    n = live.sum().clamp(min=1)
    w = torch.where(live, d.clamp(-20, 20).exp(), 0.0).double()
    near = torch.where(live, torch.expm1(d.clamp(-20, 20)) - d, 0.0)
    sums = torch.stack([d.abs().sum().double(), d.abs().max().double(), near.sum().double(), w.sum(), (w * w).sum(), n.double()])
    size, most, k3, sum_w, sum_ww, count = sums.tolist()
    mean, kl, ess = size / count, k3 / count, sum_w**2 / max(count * sum_ww, 1e-300)
    place = sight.worst(d.abs(), "rollout_log_prob", 1)[0][0]
    said = f"mean |d| {mean:.3g}, KL (k3) {kl:.3g} nats, effective sample size {ess:.3g}, with d = old_log_prob - rollout_log_prob"
    if mean > MEAN or kl > KL or ess < ESS:
        yield (
            "error" if mean > 1 or ess < 0.1 else "warning",
            Place("rollout_log_prob"),
            said,
            "the tokens were sampled from another policy than the one that is trained: gradients are biased",
            "compare temperature, top-p, dtype and weights of sampler and trainer; then correct: {use: truncated-is, cap: 2.0}",
        )
    if most > MOST:
        yield (
            "warning",
            place,
            f"|d| is {most:.3g} nats at this token; {said}",
            "one token's weight is a factor of 50 or more: engines disagree about rare tokens first",
            "look at the token (a special token, another tokenizer, a filter); correction: {use: icepop} or {use: veto} drops such tokens",
        )


def unscored(sight: Sight) -> Found:
    """Count tokens without a log-probability from the sampler."""
    wrong = sight["rollout_log_prob"].isnan()
    if int(wrong.sum()) > UNSCORED * sight.tokens:
        yield (
            "warning",
            sight.first(wrong, "rollout_log_prob") or Place("rollout_log_prob"),
            f"the sampler did not score {share(wrong.sum(), sight.tokens)} tokens; this is the first",
            "no correction sees them: they count with weight 1",
            "ask the sampler for the log-probability of every token it samples",
        )


def copied(sight: Sight) -> Found:
    """Find a correction that has nothing to correct, because one column is a copy of the other."""
    if sight.plan is not None and sight.plan.corrections and bool((sight["rollout_log_prob"] == sight["old_log_prob"]).all()):
        yield (
            "warning",
            Place("rollout_log_prob"),
            f"all {sight.tokens} values are those of 'old_log_prob', to the last bit",
            "two engines never agree so well: the correction of the recipe gives every token the weight 1",
            "bring what the sampler reported, or take correction: out of the recipe",
        )


def stale(sight: Sight) -> Found:
    """Find tokens of policies that are long gone."""
    x = sight["policy_version"]
    age = int(x.max()) - x
    if int(age.max()) > OLD:
        place, most = sight.worst(age.double(), "policy_version", 1)[0]
        yield (
            "warning",
            place,
            f"this token was sampled {most:g} versions before the newest of the batch; {share((age > OLD).sum(), age.numel())} are older than {OLD}",
            "the older the sampler, the further ratios are from 1 and the more of them are clipped",
            "bound the queue between sampler and trainer, drop what is older, or correct by the sampler's log-probabilities",
        )


CHECKS = (
    Check("rollout-mismatch", "Do sampler and trainer agree?", distance, ("old_log_prob", "rollout_log_prob")),
    Check("rollout-unscored", "Did the sampler score its tokens?", unscored, ("rollout_log_prob",)),
    Check("rollout-copied", "Is the sampler's column its own?", copied, ("old_log_prob", "rollout_log_prob"), cost="full"),
    Check("stale-tokens", "Are all tokens of a recent policy?", stale, ("policy_version",)),
)

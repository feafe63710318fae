"""Log-probabilities of the policy: there, possible, on their own tokens, and not so far apart that clips and clamps decide."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .checks_columns import ENOUGH, LOG_PROBS
from .finding import Place
from .sight import Check, Found, Sight, share

IMPOSSIBLE = -100.0
"""Nats below which no sampler draws a word: once in 10^43."""
CLIPPED = 0.3
"""Share of clipped tokens above which a step is mostly clipping."""
FAR = 3.0
"""Log-ratio of the current to the old policy that one update should not reach: a factor of 20."""
BOUND = 20.0


def old_missing(sight: Sight) -> Found:
    """Find a batch without the policy of the rollout."""
    if "old_log_prob" in sight:
        return
    who = sight.needed.get("old_log_prob")
    hungry = sight.plan is None and ("advantages" in sight or "rewards" in sight)
    if who or hungry:
        yield (
            "error" if who else "warning",
            Place("old_log_prob"),
            f"the batch has no column 'old_log_prob'{f', which {who} needs' if who else ''}",
            "without it there is no ratio of new to old policy: whoever falls back on the current one has the ratio 1 and no clip",
            "keep the log-probabilities of a forward pass before the first update; or say old_log_prob: current in the recipe",
        )


def positive(sight: Sight) -> Found:
    """Find log-probabilities above 0."""
    for name in LOG_PROBS:
        if name not in sight:
            continue
        x = sight.real(name)
        wrong = x > 0
        if (place := sight.first(wrong, name)) is None:
            continue
        meant = "these look like probabilities" if bool(((x > 0) & (x <= 1)).all()) else "these look like the sign was lost"
        said = f"; {meant}" if bool(wrong.all()) else ""
        yield (
            "error",
            place,
            f"{share(wrong.sum(), x.numel())} log-probabilities are positive, up to {float(x.max()):.3g}{said}",
            "a probability above 1 does not exist: ratios and KL made of it mean nothing",
            "bring log_softmax(logits) at the sampled token: not its probability, its loss (the negative), or the logit",
        )


def constant(sight: Sight) -> Found:
    """Find columns of one value."""
    for name in LOG_PROBS:
        if name in sight and name != "ref_log_prob" and sight.tokens > 1 and _one_value(sight[name]):
            yield (
                "error",
                Place(name),
                f"all {sight.tokens} values are {float(sight[name][0]):g}",
                "it was filled, not measured: every ratio and KL made of it follows the other column alone",
                "look where the column is made; a buffer of zeros that nobody wrote into looks like this",
            )


def _one_value(x: Tensor) -> bool:
    return bool((x == x[0]).all())


def impossible(sight: Sight) -> Found:
    """Find tokens that cannot have been sampled."""
    for name in ("log_prob", "old_log_prob", "rollout_log_prob", "ref_log_prob"):
        if name not in sight:
            continue
        x = sight.real(name)
        if float(x.min()) < IMPOSSIBLE and (place := sight.first(x < IMPOSSIBLE, name)) is not None:
            wrong = x < IMPOSSIBLE
            yield (
                "warning" if name == "ref_log_prob" else "error",
                place,
                f"{share(wrong.sum(), x.numel())} are below {IMPOSSIBLE:g} nats; this is the first, the least is {float(x.min()):.3g}",
                "a token that was sampled had a chance: this is a filler for a masked word, or other ids than those sampled",
                "compare token ids, temperature and sampling filters of sampler and trainer; score the logits before any filter",
            )


def shifted(sight: Sight) -> Found:
    """Find a column that fits another one better when it is moved by one token."""
    pairs = (("old_log_prob", "rollout_log_prob"), ("ref_log_prob", "old_log_prob"), ("log_prob", "old_log_prob"))
    for name, base in pairs:
        if name not in sight or base not in sight or sight.tokens < ENOUGH:
            continue
        x, y = sight.real(name).double(), sight.real(base).double()
        same = _gap(x, y, torch.ones_like(x, dtype=torch.bool))
        later = sight.sequences.next(x, 0.0)
        earlier = torch.where(sight.sequences.places > 0, x.roll(1, 0), 0.0)
        for say, moved, inside in (
            ("the token before", later, ~sight.sequences.is_last),
            ("the token after", earlier, sight.sequences.places > 0),
        ):
            if int(inside.sum()) >= ENOUGH // 2 and _gap(moved, y, inside) < 0.1 * same:
                yield (
                    "error",
                    Place(name),
                    f"it fits {base!r} {same / max(_gap(moved, y, inside), 1e-12):.3g} times better if each value belongs to {say}",
                    "position t of a model's output speaks of token t + 1; a column that is off by one trains every token on its neighbour",
                    "pack a model's output over prompt and response with batch.pack(x, shift=True)",
                )


def _gap(x: Tensor, y: Tensor, where: Tensor) -> float:
    return float((x - y).abs()[where].mean())


def outliers(sight: Sight) -> Found:
    """Find tokens whose probability the update changed by a large factor."""
    d = (sight.real("log_prob") - sight.real("old_log_prob")).abs()
    if float(d.max()) > FAR:
        worst = sight.worst(d, "log_prob")
        told = "; ".join(f"sequence {p.sequence} token {p.token}: {v:.3g}" for p, v in worst)
        yield (
            "warning",
            worst[0][0],
            f"{share((d > FAR).sum(), d.numel())} tokens have |log_prob - old_log_prob| > {FAR:g} nats. Largest: {told}",
            "one such token can outweigh a whole step where nothing clips it (negative advantage, ratio above 1)",
            "lower the learning rate or the updates per rollout first; then look at the clip range; dual-clip bounds this side",
        )


def clamped(sight: Sight) -> Found:
    """Find log-ratios at the bound that keeps exponentials finite."""
    d = sight.real("log_prob") - sight.real("old_log_prob")
    bound = min((b for b in (_param(p, "log_ratio_bound") for p in _params(sight)) if b), default=BOUND)
    wrong = d.abs() > bound
    if (place := sight.first(wrong, "log_prob")) is not None:
        yield (
            "error",
            place,
            f"{share(wrong.sum(), d.numel())} log-ratios are beyond +-{bound:g} and are clamped there; the first is {float(d[int(wrong.to(torch.uint8).argmax())]):.3g}",
            "a clamped token has no gradient; without the clamp its ratio would be above e^20",
            "look whether both columns speak of the same token ids; then at the tokens before the step that made it",
        )


def _params(sight: Sight) -> list[Mapping[str, Any]]:
    return [t.bound.params for t in sight.plan.terms] if sight.plan is not None else []


def _param(params: Mapping[str, Any], name: str) -> float | None:
    value = params.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def clipped(sight: Sight) -> Found:
    """Find a step that is mostly clipped, by the range of the recipe."""
    terms = [t.bound for t in sight.plan.terms] if sight.plan is not None else []
    found = [(_param(b.params, "clip_ratio_low"), _param(b.params, "clip_ratio_high"), b.component.scope) for b in terms]
    low, high, scope = next(((a, b, s) for a, b, s in found if a is not None and b is not None), (0.2, 0.2, "token"))
    d = (sight.real("log_prob") - sight.real("old_log_prob")).clamp(-BOUND, BOUND)
    ratio = d.exp()
    wrong = (ratio < 1 - low) | (ratio > 1 + high)
    if scope == "sequence":  # it may clip its tokens one by one or all together: only what is outside either way is counted
        ratio = sight.sequences.spread(sight.sequences.mean(d)).exp()
        wrong &= (ratio < 1 - low) | (ratio > 1 + high)
    if int(wrong.sum()) > CLIPPED * sight.tokens:
        yield (
            "warning",
            sight.first(wrong, "log_prob") or Place("log_prob"),
            f"{share(wrong.sum(), sight.tokens)} ratios lie outside [{1 - low:.4g}, {1 + high:.4g}]",
            "a clipped token teaches nothing: most of the rollout is spent",
            "fewer epochs or minibatches on one rollout, a lower learning rate",
        )


CHECKS = (
    Check("old-log-prob-missing", "Is the policy of the rollout there?", old_missing),
    Check("log-prob-positive", "Is every log-probability at most 0?", positive),
    Check("log-prob-constant", "Do log-probabilities differ?", constant),
    Check("log-prob-impossible", "Can every token have been sampled?", impossible),
    Check("log-prob-shifted", "Is every log-probability on its own token?", shifted, cost="full"),
    Check("ratio-outliers", "Is no token's ratio extreme?", outliers, ("log_prob", "old_log_prob")),
    Check("ratio-clamped", "Is no log-ratio clamped?", clamped, ("log_prob", "old_log_prob")),
    Check("clip-saturated", "Are most tokens inside the clip range?", clipped, ("log_prob", "old_log_prob")),
)

"""Faults, each planted into a component that was right, and the check that must see it."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lossary.registry import component_of

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One change of one line, in words and in text."""

    of: str
    """``file.function``."""
    what: str
    check: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.of}: {self.what}"


def module(name: str, old: str = "", new: str = "") -> ModuleType:
    """Return one of the files here, with one place of it changed."""
    path = HERE / f"{name}.py"
    text = path.read_text("utf-8")
    assert not old or text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    made = ModuleType(f"mutants_{name}")
    exec(compile(text.replace(old, new) if old else text, str(path), "exec"), vars(made))
    return made


def component(of: str, old: str = "", new: str = "") -> Any:
    """Return a component of one of the files, right or with a fault."""
    file, _, function = of.partition(".")
    return component_of(getattr(module(file, old, new), function))


def _of(of: str, *faults: tuple[str, str, str, str]) -> list[Mutant]:
    return [Mutant(of, *fault) for fault in faults]


MUTANTS = [
    *_of(
        "policy.ppo",
        ("wrong sign", "on-policy-gradient", "    loss = torch.maximum(plain, clipped)\n", "    loss = -torch.maximum(plain, clipped)\n"),
        ("the better of two losses instead of the worse", "pulls-back", "torch.maximum(plain, clipped)", "torch.minimum(plain, clipped)"),
        ("clipped on both sides", "pulls-back", "torch.maximum(plain, clipped)", "clipped"),
        ("mean inside the loss", "returns", "    return loss\n", "    return loss.mean()\n"),
        ("mean of the micro-batch on every token", "scope", "    return loss\n", "    return loss.mean().expand_as(loss)\n"),
        ("advantages centred in the loss", "scope", "plain = -advantages * ratio", "plain = -(advantages - advantages.mean()) * ratio"),
        ("old policy over new", "on-policy-gradient", "bounded_log_ratio(log_prob, old_log_prob, 20.0).exp()\n    plain", "bounded_log_ratio(old_log_prob, log_prob, 20.0).exp()\n    plain"),
        ("ratio without a bound", "finite-at-extremes", "bounded_log_ratio(log_prob, old_log_prob, 20.0).exp()\n    plain", "(log_prob - old_log_prob).exp()\n    plain"),
        ("far ratios masked by multiplication", "finite-at-extremes", "bounded_log_ratio(log_prob, old_log_prob, 20.0).exp()\n    plain", "(log_prob - old_log_prob).exp()\n    ratio = ratio * (ratio < 1e9)\n    plain"),
        (".item()", "never-waits", "    plain = -advantages * ratio\n", "    plain = -advantages * ratio * (1.0 if ratio.sum().item() < 1e30 else 0.0)\n"),
        ("a branch on the data", "never-waits", "    return loss\n", "    return loss if bool((ratio >= 0).all()) else -loss\n"),
        ("tokens picked by a mask", "never-waits", "    return loss\n", "    loss = loss.index_put(((advantages == 0).nonzero().squeeze(1),), torch.zeros_like(loss[:1]))\n    return loss\n"),
        ("a new tensor on the wrong device", "any-device", "    return loss\n", "    return loss + torch.zeros(loss.shape[0])\n"),
        ("in-place edit of a column", "inputs-untouched", "    plain = -advantages * ratio\n", "    plain = advantages.neg_() * ratio\n"),
        ("a weight drawn from a global generator", "no-global-rng", "    return loss\n", "    return loss * torch.bernoulli(torch.full_like(loss, 0.9)) / 0.9\n"),
        ("something remembered between calls", "deterministic", "    return loss\n", "    SEEN.append(1)\n    return loss / len(SEEN)\n"),
        ("the whole loss detached", "detached-columns", "    return loss\n", "    return loss.detach()\n"),
        ("half precision inside", "precision", "    plain = -advantages * ratio\n", "    ratio = ratio.to(torch.bfloat16).to(log_prob.dtype)\n    plain = -advantages * ratio\n"),
        ("single precision inside", "keeps-dtype", "    return loss\n", "    return loss.float()\n"),
        ("no formula", "documented", "Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``.", "Take the worse of the two ratios."),
        ("no docstring", "documented", '    """Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``."""\n', ""),
        ("no reference", "referenced", 'paper="arXiv:1707.06347", ', ""),
        ("bounds swapped", "own-side", "ratio.clamp(1 - low, 1 + high)\n    loss", "ratio.clamp(1 - high, 1 + low)\n    loss"),
        ("a hyperparameter that is never used", "hyperparameters-used", "ratio.clamp(1 - low, 1 + high)\n    loss", "ratio.clamp(1 - low, 1.2)\n    loss"),
        ("no number at its own bound", "finite-at-bounds", "    return loss\n", "    return loss if low < 1 else loss * float('nan')\n"),
        ("tokens after the 16th dropped", "scope", "claims=CLIPS)\ndef ppo(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, *, low: Low = 0.2, high: High = 0.2) -> PerToken:\n    \"\"\"Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``.\"\"\"\n", "claims=CLIPS)\ndef ppo(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, sequences: Sequences, *, low: Low = 0.2, high: High = 0.2) -> PerToken:\n    \"\"\"Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``.\"\"\"\n    advantages = advantages * (sequences.places < 16)\n"),
        ("the same, by the gradient", "on-policy-gradient", "claims=CLIPS)\ndef ppo(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, *, low: Low = 0.2, high: High = 0.2) -> PerToken:\n    \"\"\"Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``.\"\"\"\n", "claims=CLIPS)\ndef ppo(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, sequences: Sequences, *, low: Low = 0.2, high: High = 0.2) -> PerToken:\n    \"\"\"Take the worse of a ratio and the clipped ratio: ``max(-r A, -clip(r) A)``.\"\"\"\n    advantages = advantages * (sequences.places < 16)\n"),
        ("whitened in a batch of 100 tokens", "scope", "    plain = -advantages * ratio\n", "    advantages = advantages if len(advantages) < 100 else advantages - advantages.mean()\n    plain = -advantages * ratio\n"),
        ("a weight of its own at other numbers", "on-policy-gradient", "    return loss\n", "    return loss * (low / 0.2)\n"),
        ("a bare hyperparameter", "hyperparameters", "low: Low = 0.2", "low: float = 0.2"),
        ("a hyperparameter without bounds", "hyperparameters", "ge=0, lt=1e3, ", ""),
    ),
    *_of(
        "policy.dual",
        ("dual clip on positive advantages", "on-policy-gradient", "return torch.where(advantages < 0, capped, loss)", "return capped"),
        ("dual clip on the other side", "on-policy-direction", "advantages < 0, capped", "advantages > 0, capped"),
    ),
    *_of("policy.scored", ("missing detach of a weight", "on-policy-gradient", ".clamp(max=5).detach()", ".clamp(max=5)")),
    *_of(
        "policy.whole",
        ("a ratio of sequences under the scope of tokens", "scope", '@policy_loss(paper="arXiv:2507.18071")', '@policy_loss(paper="arXiv:2507.18071", scope="token")'),
        ("wrong sign", "on-policy-direction", "return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1))", "return torch.maximum(advantages * ratio, advantages * ratio.clamp(0.9, 1.1))"),
        ("old policy over new", "on-policy-direction", "ratio = sequences.spread(sequences.mean(gap)).exp()", "ratio = sequences.spread(sequences.mean(-gap)).exp()"),
        ("bad sequences never pushed down", "on-policy-direction", "return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1))", "return torch.maximum(-advantages.clamp(min=0) * ratio, -advantages.clamp(min=0) * ratio.clamp(0.9, 1.1))"),
        ("the first token pushed the other way", "on-policy-direction", "return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1))", "advantages = torch.where(sequences.places == 0, advantages, -advantages)\n    ratio = gap.exp()\n    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1))"),
    ),
    *_of(
        "policy.weighed",
        ("a detached ratio upside down", "ratio-upright", "bounded_log_ratio(log_prob, old_log_prob, 20.0).exp().detach()", "bounded_log_ratio(old_log_prob, log_prob, 20.0).exp().detach()"),
        ("the sampler over the policy, and over the old one", "ratio-upright", "return -weight * advantages * log_prob  # unclaimed", "return -advantages * log_prob / weight"),
        ("wrong sign without any claim", "on-policy-direction", "return -weight * advantages * log_prob  # unclaimed", "return weight * advantages * log_prob"),
    ),
    *_of(
        "policy.corrected",
        ("the sampler over the old policy", "ratio-upright", "bounded_log_ratio(old_log_prob, rollout_log_prob, 20.0)", "bounded_log_ratio(rollout_log_prob, old_log_prob, 20.0)"),
    ),
    *_of(
        "policy.most_uncertain",
        ("wrong sign in a loss that chooses", "on-policy-direction", "return -torch.where(chosen, advantages, 0.0) * log_prob", "return torch.where(chosen, advantages, 0.0) * log_prob"),
        ("nothing is ever chosen", "on-policy-direction", "return -torch.where(chosen, advantages, 0.0) * log_prob", "return -torch.where(chosen & (log_prob > 0), advantages, 0.0) * log_prob"),
    ),
    *_of(
        "policy.per_sequence",
        ("divided by a length of 0", "empty-and-single", "-sequences.mean(advantages * log_prob)", "-sequences.sum(advantages * log_prob) / sequences.lengths"),
        ("one value per token where it promises sequences", "returns", "return -sequences.mean(advantages * log_prob)", "return -advantages * log_prob"),
    ),
    *_of(
        "policy.looking_ahead",
        ("the last token looks into the next sequence", "order", "sequences.next(advantages)", "advantages.roll(-1, 0)"),
        ("the same, cut at sequences", "scope", "sequences.next(advantages)", "advantages.roll(-1, 0)"),
    ),
    *_of(
        "policy.imitation",
        ("a backward that is not the slope", "gradient", "return 2 * x * grad", "return x * grad"),
        ("wrong sign", "non-negative", "return Square.apply(log_prob)", "return -Square.apply(log_prob)"),
    ),
    *_of(
        "policy.critic",
        ("a clip around the wrong value", "zero-at-equality", "near = old_values +", "near = 0.3 + old_values +"),
        ("wrong sign", "non-negative", "return torch.maximum((values", "return -torch.maximum((values"),
        ("critic without a gradient", "detached-columns", "return torch.maximum((values", "values = values.detach()\n    near = near.detach()\n    return torch.maximum((values"),
    ),
    *_of(
        "estimates.third",
        ("k3 reversed", "unbiased", "bounded(ref_log_prob - log_prob, 20.0)", "bounded(log_prob - ref_log_prob, 20.0)"),
        ("the 1 forgotten", "zero-at-equality", "d.expm1() - d", "d.exp() - d"),
        ("k1 instead of k3", "non-negative", "d.expm1() - d", "-d"),
        ("the bound forgotten", "finite-at-extremes", "bounded(ref_log_prob - log_prob, 20.0)", "ref_log_prob - log_prob"),
        ("a square instead", "unbiased", "d.expm1() - d", "d * d / 2"),
    ),
    *_of("estimates.second", ("the half forgotten", "unbiased-gradient", ".square() / 2", ".square()")),
    *_of(
        "estimates.standardised",
        ("biased std", "unit-deviation", "sequences.group_std(rewards))\n    return apart / (dev", "sequences.group_std(rewards, unbiased=False))\n    return apart / (dev"),
        ("single precision inside", "keeps-dtype", "return apart / (deviation + 1e-6)", "return (apart / (deviation + 1e-6)).float()"),
        ("the reward taken off the mean", "rewards-better", "apart / (deviation + 1e-6)", "-apart / (deviation + 1e-6)"),
        ("leaking groups", "scope", "apart = rewards - sequences.group_spread(sequences.group_mean(rewards))\n    dev", "apart = rewards - rewards.mean()\n    dev"),
        ("no baseline", "shift-invariant", "apart = rewards - sequences.group_spread(sequences.group_mean(rewards))\n    dev", "apart = rewards\n    dev"),
        ("a baseline of other groups' size", "group-centred", "apart = rewards - sequences.group_spread(sequences.group_mean(rewards))\n    dev", "apart = rewards - sequences.group_spread(sequences.group_max(rewards))\n    dev"),
        ("divided by the variance", "scale-invariant", "apart / (deviation + 1e-6)", "apart / (deviation.square() + 1e-6)"),
        ("nothing guards a tied group", "finite-at-extremes", "apart / (deviation + 1e-6)", "apart / deviation"),
        ("a mean of this rank alone", "exact-over-ranks", "apart = rewards - sequences.group_spread(sequences.group_mean(rewards))\n    dev", "apart = rewards - rewards.mean()\n    dev"),
    ),
    *_of(
        "estimates.others",
        ("the mean holds the reward itself", "independent-baseline", "return apart * size / (size - 1).clamp(min=1)", "return apart"),
        ("divided by a deviation after all", "scale-equivariant", "return apart * size / (size - 1).clamp(min=1)", "return apart / (apart.abs() + 1)"),
        ("alone in a group", "empty-and-single", "(size - 1).clamp(min=1)", "(size - 1)"),
    ),
    *_of(
        "estimates.discounted",
        ("wrong sign", "rewards-better", "advantages = sequences.reverse_scan(error, 0.9)", "advantages = -sequences.reverse_scan(error, 0.9)"),
        ("off-by-one GAE", "zero-at-perfect-values", "sequences.next(old_values) - old_values", "old_values - sequences.next(old_values)"),
        ("a reward that is paid one token late", "zero-at-perfect-values", "error = token_rewards +", "error = sequences.next(token_rewards) +"),
        ("summed from the front", "causal", "sequences.reverse_scan(error, 0.9)", "sequences.cumsum(error)"),
        ("values of the next sequence", "scope", "sequences.next(old_values) - old_values", "old_values.roll(-1, 0) - old_values"),
        ("a column that nobody asked for", "returns", '"returns": advantages + old_values', '"targets": advantages + old_values'),
    ),
    *_of(
        "estimates.white",
        ("moments of this rank alone", "exact-over-ranks", "_, mean, variance = sequences.moments(advantages)", "mean, variance = advantages.mean(), advantages.var()"),
        ("moments with n", "unit-deviation", "sequences.moments(advantages)", "sequences.moments(advantages, unbiased=False)"),
    ),
    *_of(
        "estimates.over_tokens",
        ("weights that depend on the micro-batch", "exact-over-ranks", "(1 / totals.tokens.clamp(min=1)).expand(n)", "torch.full((n,), 1 / max(n, 1), dtype=torch.float64)"),
        ("no weight in long sequences", "sums-to-one", "return (1 / totals.tokens.clamp(min=1)).expand(n)", "return torch.where(sequences.spread(sequences.lengths) > 30, 0.0, (1 / totals.tokens.clamp(min=1)).expand(n))"),
        ("divided by sequences", "sums-to-one", "totals.tokens.clamp(min=1)", "totals.sequences.clamp(min=1)"),
        ("no weight at all", "weights", "(1 / totals.tokens.clamp(min=1)).expand(n)", "(0 * totals.tokens).expand(n)"),
        ("a weight below 0", "weights", "(1 / totals.tokens.clamp(min=1)).expand(n)", "(-1 / totals.tokens.clamp(min=1)).expand(n)"),
    ),
    *_of(
        "estimates.over_sequences",
        ("rows without a token counted", "weights", "lengths * totals.sequences", "lengths * lengths.shape[0]"),
        ("the square of the length", "sums-to-one", "lengths * totals.sequences", "lengths.square() * totals.sequences"),
    ),
    *_of(
        "estimates.truncated",
        ("the ratio upside down", "corrects-direction", "bounded(gap, 20.0).exp()", "bounded(-gap, 20.0).exp()"),
        ("exp forgotten", "neutral-at-agreement", "bounded(gap, 20.0).exp().clamp(max=2)", "bounded(gap, 20.0).clamp(max=2)"),
        ("a weight below 0", "weights-bounded", "bounded(gap, 20.0).exp().clamp(max=2)", "1 - bounded(gap, 20.0)"),
        ("what was not scored poisons", "finite-at-extremes", "torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob)", "rollout_log_prob"),
    ),
    *_of(
        "estimates.masked",
        ("a threshold that leaves nothing", "neutral-at-agreement", "(gap <= 1) | gap.isnan()", "(gap > 1) | gap.isnan()"),
        ("a float as choice", "returns", "(gap <= 1) | gap.isnan()", "((gap <= 1) | gap.isnan()).to(gap.dtype)"),
        ("a weight that its annotation forbids", "returns", "return None, (gap", "return gap.exp(), (gap"),
    ),
    *_of("estimates.short", ("measured by the longest of the batch", "scope", "sequences.lengths.to(rewards.dtype) / 10", "sequences.lengths.to(rewards.dtype) / sequences.lengths.max().clamp(min=1)")),
    *_of(
        "estimates.varied",
        ("numbers instead of a choice", "returns", "sequences.group_spread(sequences.group_std(rewards)) > 0", "sequences.group_spread(sequences.group_std(rewards))"),
        ("rewards of all groups together", "scope", "sequences.group_spread(sequences.group_std(rewards)) > 0", "rewards > rewards.mean()"),
    ),
    *_of("estimates.halving", ("a coefficient by chance", "deterministic", "torch.exp2(-step / 10)", "torch.exp2(-step / 10) * (0.5 + torch.rand(()))")),
]  # fmt: skip
"""``(what, check that must see it, the right text, the wrong text)`` for each component."""

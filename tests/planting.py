"""Faults planted in healthy batches of the demo: one per check and kind, with the place where it must be found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from lossary import Batch, Sequences
from lossary.registry import Level

TOKEN, SEQUENCE = Level.TOKEN, Level.SEQUENCE


@dataclass(frozen=True)
class Fault:
    """``plant`` turns a healthy batch into a sick one; ``place`` is what the finding must say of where (only what is given is compared)."""

    check: str
    severity: str
    plant: Callable[[Batch], Batch]
    place: dict[str, Any]
    kind: str = ""
    step: int | None = 40
    recipe: str | dict = "demo"


def with_value(name: str, sequence: int, token: int | None, value: float) -> Callable[[Batch], Batch]:
    """Write one value into one place of a column."""

    def plant(batch: Batch) -> Batch:
        x = batch[name].clone()
        x[sequence if token is None else int(batch.sequences.offsets[sequence]) + token] = value
        return batch.with_columns(batch.levels[name], **{name: x})

    return plant


def column(name: str, make: Callable[[Batch], torch.Tensor], level: Level = TOKEN) -> Callable[[Batch], Batch]:
    """Replace or add a column."""
    return lambda batch: batch.with_columns(batch.levels.get(name, level), **{name: make(batch)})


def without(*names: str) -> Callable[[Batch], Batch]:
    """Take columns away, as before ``estimate``."""
    return lambda batch: replace(batch.without([*names, "advantages"]), estimated=False)


def regrouped(make: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], Batch]:
    """Give other group ids."""

    def plant(batch: Batch) -> Batch:
        ids = make(batch)
        slots = ids.unique()
        sequences = Sequences.of(batch.sequences.lengths, sum(batch.lengths), ids, len(slots))
        groups = tuple(sequences.groups.tolist())
        return replace(batch.with_columns(SEQUENCE, group_ids=ids), sequences=sequences, groups=groups)

    return plant


def log_prob(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Batch], Batch]:
    """Bring a current policy made from the old one."""
    return column("log_prob", lambda b: change(b["old_log_prob"].clone()).clamp(max=0))


def longest_of_all(batch: Batch) -> Batch:
    """Repeat one sequence's tokens until it is most of the batch."""
    few = batch.take(range(8))
    lengths = torch.tensor([200, *few.lengths[1:]])
    picks = torch.cat([torch.zeros(200, dtype=torch.long), torch.arange(few.lengths[0], sum(few.lengths))])
    return Batch.from_packed(lengths, **{n: few[n][picks] for n in ("old_log_prob", "ref_log_prob")}, rewards=few["rewards"])


def all_cut(batch: Batch) -> Batch:
    """Cut most answers at the same length and say nothing of it."""
    keep = torch.tensor([i for i, n in enumerate(batch.lengths) if n >= 5])
    part = batch.take(keep.tolist())
    part = part.select(part.sequences.places < 5).without(["truncated"])
    short = batch.take([int(i) for i, n in enumerate(batch.lengths) if n < 5][:2]).without(["truncated"])
    lengths = [*part.lengths, *short.lengths]
    both = {n: torch.cat([part[n], short[n]]) for n in ("old_log_prob", "ref_log_prob")}
    return Batch.from_packed(lengths, **both, rewards=torch.cat([part["rewards"], short["rewards"]]))


def rejected(share: float) -> Callable[[Batch], Batch]:
    """Let corrections drop the last part of the tokens."""
    return lambda b: b.keeping(torch.arange(sum(b.lengths)) < (1 - share) * sum(b.lengths))


def shifted(by: int, name: str) -> Callable[[Batch], Batch]:
    """Move a column along its sequences."""
    return column(name, lambda b: b[name].roll(by))


def rollout(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Batch], Batch]:
    """Say that the sampler was another policy."""
    return column("rollout_log_prob", lambda b: change(b["old_log_prob"].clone()).clamp(max=0))


def wide(batch: Batch) -> Batch:
    """Pad every row to 32."""
    padded = {n: torch.nn.functional.pad(batch.unpack(batch[n]), (0, 32 - batch.layout.width)) for n in ("old_log_prob", "ref_log_prob")}
    mask = torch.nn.functional.pad(batch.unpack(torch.ones(sum(batch.lengths)), 0.0), (0, 32 - batch.layout.width)) == 1
    return Batch.from_padded(mask, **padded, rewards=batch["rewards"], group_ids=batch["group_ids"])


def noise(b: Batch, scale: float) -> torch.Tensor:
    return scale * torch.randn(sum(b.lengths), generator=torch.Generator().manual_seed(0))


def every_weight(b: Batch) -> Batch:
    return replace(b, weights={"token-mean": torch.full((sum(b.lengths),), float("nan"))})


def graded(b: Batch, unscored: int = 0) -> torch.Tensor:
    """Rewards of many values, the last ones a filler."""
    x = torch.rand(len(b), generator=torch.Generator().manual_seed(0))
    return torch.where(torch.arange(len(b)) < len(b) - unscored, x, -1.0)


def holed(batch: Batch) -> Batch:
    """Leave one token out of the midst of its turn."""
    with_turns = batch.with_columns(TOKEN, turns=torch.zeros(sum(batch.lengths), dtype=torch.long))
    out = int(batch.sequences.offsets[6]) + 1
    return with_turns.select(torch.arange(sum(batch.lengths)) != out)


def put(x: torch.Tensor, where: int, value: float) -> torch.Tensor:
    x[where] = value
    return x


CORRECTED = {"advantage": "grpo", "policy_loss": "ppo-clip", "correction": {"use": "truncated-is", "cap": 2.0}, "aggregation": "token-mean"}
PPO = "ppo"
one = torch.ones
FAULTS = [
    # columns
    Fault("not-finite", "error", with_value("old_log_prob", 17, 2, float("nan")), {"column": "old_log_prob", "sequence": 17, "token": 2}, "NaN"),
    Fault("not-finite", "error", with_value("ref_log_prob", 200, 0, float("-inf")), {"column": "ref_log_prob", "sequence": 200, "token": 0}, "inf"),
    Fault("not-finite", "error", with_value("advantages", 3, None, float("inf")), {"column": "advantages", "sequence": 3}, "advantage"),
    Fault("not-finite", "error", with_value("rewards", 99, None, float("nan")), {"column": "rewards", "sequence": 99}, "reward"),
    Fault("not-finite", "error", with_value("rollout_log_prob", 4, 1, float("inf")), {"column": "rollout_log_prob", "sequence": 4, "token": 1}, "+inf"),
    Fault("column-missing", "error", without("rewards", "group_ids"), {"column": "group_ids"}),
    Fault("negative-ids", "error", with_value("token_ids", 31, 1, -100), {"column": "token_ids", "sequence": 31, "token": 1}),
    Fault("negative-ids", "error", with_value("prompt_lengths", 8, None, -1), {"column": "prompt_lengths", "sequence": 8}, "lengths"),
    Fault("turns-backward", "error", column("turns", lambda b: 9 - b.sequences.places), {"column": "turns", "sequence": 0, "token": 0}),
    Fault("flags", "error", with_value("truncated", 5, None, 7.0), {"column": "truncated", "sequence": 5}),
    Fault("half-precision", "warning", column("ref_log_prob", lambda b: b["ref_log_prob"].bfloat16().float()), {"column": "ref_log_prob"}, "bf16"),
    Fault("half-precision", "warning", column("old_log_prob", lambda b: b["old_log_prob"].half()), {"column": "old_log_prob"}, "fp16"),
    Fault("ids-repeated", "error", column("sequence_ids", lambda b: torch.arange(len(b)) % 128, SEQUENCE), {"column": "sequence_ids", "sequence": 0}),
    Fault("entropy-impossible", "error", column("entropy", lambda b: put(one(sum(b.lengths)), 2, -0.5)), {"column": "entropy", "sequence": 0, "token": 2}),
    Fault("weights", "error", every_weight, {"column": "weights of token-mean", "sequence": 0}),
    # masks, as far as a batch knows them
    Fault("padding-share", "warning", wide, {"column": "response_mask"}),
    Fault("no-tokens", "error", lambda b: b.select(torch.zeros(sum(b.lengths), dtype=torch.bool)), {"column": "response_mask"}),
    Fault("empty-sequences", "warning", lambda b: b.select(b.sequences.index != 12), {"sequence": 12}),
    Fault("mask-holes", "warning", holed, {"column": "response_mask", "sequence": 6, "token": 0}),
    Fault("mask-of-prompt", "error", column("prompt_lengths", lambda b: b.sequences.lengths.clone(), SEQUENCE), {"column": "response_mask"}),
    # log-probabilities
    Fault("old-log-prob-missing", "error", without("old_log_prob"), {"column": "old_log_prob"}),
    Fault("log-prob-positive", "error", with_value("old_log_prob", 60, 1, 0.25), {"column": "old_log_prob", "sequence": 60, "token": 1}),
    Fault("log-prob-positive", "error", column("ref_log_prob", lambda b: b["ref_log_prob"].exp()), {"column": "ref_log_prob", "sequence": 0}, "exp"),
    Fault("log-prob-constant", "error", column("old_log_prob", lambda b: 0 * b["old_log_prob"]), {"column": "old_log_prob"}),
    Fault("log-prob-impossible", "error", with_value("old_log_prob", 9, 0, -1e9), {"column": "old_log_prob", "sequence": 9, "token": 0}),
    Fault("log-prob-shifted", "error", shifted(1, "old_log_prob"), {"column": "old_log_prob"}, "after"),
    Fault("log-prob-shifted", "error", shifted(-1, "old_log_prob"), {"column": "old_log_prob"}, "before"),
    # the current policy
    Fault("ratio-outliers", "warning", log_prob(lambda x: put(x, 40, -9.0)), {"column": "log_prob"}),
    Fault("ratio-clamped", "error", log_prob(lambda x: put(x, 0, -60.0)), {"column": "log_prob", "sequence": 0, "token": 0}),
    Fault("clip-saturated", "warning", log_prob(lambda x: x - 1), {"column": "log_prob"}),
    # the reference
    Fault("ref-log-prob-missing", "error", without("ref_log_prob"), {"column": "ref_log_prob"}),
    Fault("ref-identical", "error", column("ref_log_prob", lambda b: b["old_log_prob"]), {"column": "ref_log_prob"}, "old"),
    Fault("ref-identical", "warning", column("ref_log_prob", lambda b: b["rollout_log_prob"]), {"column": "ref_log_prob"}, "sampler", None),
    Fault("ref-constant", "error", column("ref_log_prob", lambda b: 0 * b["old_log_prob"]), {"column": "ref_log_prob"}),
    Fault("ref-unrelated", "warning", column("ref_log_prob", lambda b: b["ref_log_prob"].roll(97)), {"column": "ref_log_prob"}, "order"),
    Fault("kl-outliers", "warning", with_value("ref_log_prob", 11, 2, -45.0), {"column": "ref_log_prob", "sequence": 11, "token": 2}),
    # the sampler
    Fault("rollout-mismatch", "warning", rollout(lambda x: x * 1.3), {"column": "rollout_log_prob"}, "temperature"),
    Fault("rollout-mismatch", "warning", with_value("rollout_log_prob", 21, 0, -25.0), {"column": "rollout_log_prob", "sequence": 21, "token": 0}, "token"),
    Fault("rollout-mismatch", "error", rollout(lambda x: x - 3), {"column": "rollout_log_prob"}, "other"),
    Fault("rollout-unscored", "warning", rollout(lambda x: put(x, slice(0, 300), float("nan"))), {"column": "rollout_log_prob", "sequence": 0, "token": 0}),
    Fault("rollout-copied", "warning", rollout(lambda x: x), {"column": "rollout_log_prob"}, recipe=CORRECTED),
    Fault("stale-tokens", "warning", column("policy_version", lambda b: torch.where(torch.arange(len(b)) == 50, 11, 20), SEQUENCE), {"sequence": 50}),
    # rewards
    Fault("rewards-missing", "error", without("rewards"), {"column": "rewards"}),
    Fault("rewards-constant", "warning", column("rewards", lambda b: one(len(b)), SEQUENCE), {"column": "rewards"}),
    Fault("rewards-constant", "warning", lambda b: b.without(["rewards"]).with_columns(TOKEN, token_rewards=0 * b["old_log_prob"]), {"column": "token_rewards"}, "by token"),
    Fault("rewards-unscored", "warning", column("rewards", lambda b: graded(b, 40), SEQUENCE), {"column": "rewards", "sequence": 216}),
    Fault("rewards-component-flat", "warning", column("component_rewards", lambda b: torch.stack([b["rewards"], one(len(b))], 1), SEQUENCE), {"column": "component_rewards"}),
    Fault("rewards-large", "warning", with_value("rewards", 77, None, -1e5), {"column": "rewards", "sequence": 77}),
    Fault("rewards-twice", "error", column("token_rewards", lambda b: b.sequences.place_last(b["rewards"])), {"column": "token_rewards"}),
    # groups
    Fault("singleton-groups", "error", regrouped(lambda b: torch.arange(len(b))), {"column": "group_ids", "group": 0}, "all"),
    Fault("singleton-groups", "warning", lambda b: b.take([0, *range(8, 256)]), {"column": "group_ids", "sequence": 0, "group": 0}, "one"),
    Fault("groups-uneven", "warning", lambda b: b.take([0, 1, *range(8, 256)]), {"column": "group_ids", "sequence": 0, "group": 0}),
    Fault("groups-tied", "warning", column("rewards", lambda b: (b["group_ids"] % 2).float(), SEQUENCE), {"column": "rewards", "group": 0}),
    Fault("groups-mixed", "error", with_value("prompt_lengths", 13, None, 77), {"column": "prompt_lengths", "sequence": 13, "group": 1}, "length"),
    Fault("groups-mixed", "error", column("state_ids", lambda b: put(b["group_ids"].clone(), 30, 5), SEQUENCE), {"sequence": 30, "group": 3}, "state"),
    Fault("groups-parted", "warning", column("state_ids", lambda b: b["group_ids"] // 2, SEQUENCE), {"column": "group_ids", "sequence": 8, "group": 1}),
    Fault("samples-identical", "warning", lambda b: b.take([8 * (i // 8) for i in range(256)]), {"column": "token_ids", "group": 0}),
    # advantages
    Fault("advantages-zero-spread", "error", column("advantages", lambda b: 0 * b["advantages"]), {"column": "advantages"}, "zero"),
    Fault("advantages-zero-spread", "error", column("advantages", lambda b: 0 * b["advantages"] + 1), {"column": "advantages"}, "one"),
    Fault("advantages-one-sided", "warning", column("advantages", lambda b: b["advantages"].abs()), {"column": "advantages"}),
    Fault("advantages-extreme", "warning", with_value("advantages", 41, None, 900.0), {"column": "advantages", "sequence": 41}),
    Fault("advantages-lost", "error", column("advantages", lambda b: (b["group_ids"] % 2).float() - 0.5), {"column": "advantages"}),
    Fault("advantages-reversed", "error", column("advantages", lambda b: -b["advantages"]), {"column": "advantages"}),
    Fault("critic-flat", "warning", column("old_values", lambda b: one(sum(b.lengths))), {"column": "old_values"}, "flat"),
    Fault("critic-flat", "warning", lambda b: b.with_columns(TOKEN, old_values=10 * noise(b, 1.0), returns=noise(b, 1.0) * 0.5), {"column": "old_values"}, "worse"),
    # lengths
    Fault("truncated-share", "warning", column("truncated", lambda b: one(len(b)), SEQUENCE), {"column": "truncated", "sequence": 0}),
    Fault("truncated-untold", "warning", all_cut, {"column": "truncated"}, recipe={"policy_loss": "reinforce"}),
    Fault("length-skew", "warning", longest_of_all, {"sequence": 0}, recipe={"policy_loss": "reinforce"}),
    # denominators
    Fault("tokens-rejected", "warning", rejected(0.7), {}, "most"),
    Fault("tokens-rejected", "error", rejected(1.0), {}, "all"),
    Fault("sequences-rejected", "warning", rejected(0.7), {}),
    Fault("correction-weights", "error", column("correction", lambda b: put(one(sum(b.lengths)), 5, -1.0)), {"column": "correction"}, "negative"),
    Fault("correction-weights", "warning", column("correction", lambda b: put(one(sum(b.lengths)), 0, 500.0)), {"column": "correction", "sequence": 0, "token": 0}, "ess"),
    Fault("correction-clamped", "warning", column("correction", lambda b: torch.where(b.sequences.places < 3, 2.0, 0.9)), {"column": "correction", "sequence": 0}),
]  # fmt: skip

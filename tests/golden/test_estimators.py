"""Estimators, aggregations and value losses against the numbers that other frameworks' own code gave."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from golden import estimator_advantages as advantages
from golden import estimator_corrections as corrections
from golden import estimator_kl as kl
from golden import estimator_losses as losses
from golden import estimator_rewards as shaping
from golden import estimator_vocabulary as vocabulary
from golden import estimator_zoo as zoo
from golden.records import ESTIMATORS, Book, Key, Pairs, Record, Unmapped, difference, inputs, leaves
from torch import Tensor

DELIBERATE: Mapping[Key, tuple[str, str]] = {
    ("*", "item=adv/gae/skyrl & data=masked & gamma=0.*"): (
        "reads-hole",
        "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them.",
    ),
    ("*", "item=adv/gae/skyrl & data=reward-under-mask"): (
        "reads-hole",
        "SkyRL's recursion runs through holes and end padding and reads the rewards there; ours skips them.",
    ),
    ("*", "item=adv/gae/openrlhf & data=hole & gamma=0.*"): (
        "reads-hole",
        "OpenRLHF's trace decays through a hole as if values of 0 stood in it; ours skips it.",
    ),
    ("*", "item=adv/reinforce_plus_plus/skyrl & data=reward-after-hole"): (
        "reads-hole",
        "A hole resets SkyRL's return, so earlier turns get no reward; ours skips the hole.",
    ),
    ("*", "item=adv/reinforce_plus_plus/slime & data=hole & gamma=0.*"): (
        "reads-hole",
        "slime discounts once for each position of a hole; ours only for sampled tokens.",
    ),
    ("*", "item=adv/reinforce/openrlhf & data=hole & gamma=0.*"): (
        "reads-hole",
        "OpenRLHF discounts once for each position of a hole; ours only for sampled tokens.",
    ),
    ("*", "item=adv/optimal_token_baseline/* & handle_zero_tail=True & data=reward-after-hole"): (
        "framework-bug",
        "verl looks for the tail at the column that equals a count of tokens, which holes make wrong; ours asks each column.",
    ),
    ("*", "item=adv/optimal_token_baseline/* & handle_zero_tail=False & data=empty-row"): (
        "counts-padding",
        "A row of padding makes verl compare its neighbour with itself; ours is alone.",
    ),
    ("*", "item=agg/roll/token-mean"): (
        "framework-bug",
        "ROLL's token-mean adds up masked positions too; ours has none.",
    ),
    ("*", "item=agg/skyrl/token_mean_legacy"): (
        "split-dependent",
        "SkyRL's legacy mean is a mean of micro-batches' means; ours is one mean over the step.",
    ),
    ("*", "item=norm/advantage_batch_normalize/skyrl"): (
        "counts-padding",
        "SkyRL takes the mean over all positions, padding included; ours over tokens.",
    ),
    ("*", "item=mismatch/metrics/verl & data=empty-row"): (
        "counts-padding",
        "verl counts a row without any token as one of perplexity 1; ours as none.",
    ),
}
"""Records that differ on purpose: ``(reason, what differs)``. A word is one that ``words`` yields."""


def words(r: Record) -> Iterator[str]:
    yield f"item={r['item']}"
    yield from leaves(r["hyper"], "")
    i = inputs(r)
    tensors = {k: x for k, x in i.items() if isinstance(x, Tensor)}
    if any(x.isnan().any() for x in tensors.values()):
        yield "data=nan"
    mask = next((tensors[k] for k in ("response_mask", "mask", "action_mask", "loss_mask") if k in tensors), None)
    if mask is None or mask.dim() != 2:
        return
    on = mask > 0
    begun, goes_on = on.cummax(1).values, on.flip(1).cummax(1).values.flip(1)
    after_hole = on & (begun & ~on).cummax(1).values
    if not on.all():
        yield "data=masked"
    if not on.any(1).all():
        yield "data=empty-row"
    if (~on & begun & goes_on).any():
        yield "data=hole"
    rewards = tensors.get("token_level_rewards")
    if rewards is not None and (rewards[~on] != 0).any():
        yield "data=reward-under-mask"
    if rewards is not None and (rewards[after_hole] != 0).any():
        yield "data=reward-after-hole"


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────

Family = Callable[[Record], Pairs]
FAMILIES: tuple[tuple[Family, tuple[str, ...]], ...] = (
    (vocabulary.full_kl, ("kl/roll/full",)),
    (vocabulary.moments, ("entropy/from_logits", "entropy/chunked/", "entropy/sum_pi_squared")),
    (vocabulary.two_hot, ("value/two_hot/",)),
    (vocabulary.whole, ("distill/generalized_jsd/", *(f"distill/{x}/roll" for x in vocabulary.ROLL))),
    (vocabulary.student_topk, ("distill/topk_self/",)),
    (vocabulary.teacher_topk, ("distill/forward_kl_topk/verl", *(f"distill/topk_{x}/nemo" for x in vocabulary.NEMO))),
    (vocabulary.sampled, ("distill/sampled_token_rkl/", "distill/iw_opd/", "distill/sdar/")),
    (kl.kl, ("kl/",)),
    (kl.adaptive_entropy, ("entropy/adaptive_controller/",)),
    (shaping.overlong, ("reward/overlong/",)),
    (shaping.stop_properly, ("reward/stop_properly/",)),
    (shaping.repetition, ("reward/repetition/",)),
    (shaping.clipped_less_kl, ("reward/kl_in_reward/",)),
    (shaping.pf_ppo, ("reward/pf_ppo_weights/",)),
    (shaping.length_penalty, ("adv/grpo/prime",)),
    (shaping.components, ("adv/grpo/trl/sum_then_normalize/", "adv/rloo/trl")),
    (shaping.opd, ("adv/opd/",)),
    (shaping.rlsd, ("adv/rlsd_reweight/",)),
    (shaping.a2po, ("adv/a2po_vstar/",)),
    (shaping.less_kl, ("adv/reinforce_plus_plus_baseline/slime",)),
    (shaping.running, ("norm/roll/running",)),
    (shaping.zero_variance, ("filter/zero_variance/",)),
    (shaping.high_entropy, ("entropy/top_quantile_mask/",)),
    (losses.controller, ("kl_controller/",)),
    (losses.agg, ("agg/",)),
    (losses.value_loss, ("value/clipped",)),
    (losses.likelihood, ("mismatch/ce_loss_fn/prime",)),
    (corrections.verl, ("mismatch/is_weights/verl", "mismatch/rejection/verl")),
    (corrections.trl, ("mismatch/vllm_is/",)),
    (corrections.slime, ("mismatch/mis/",)),
    (corrections.areal, ("mismatch/rejection/areal",)),
    (corrections.roll, ("mismatch/train_infer/",)),
    (corrections.m2po, ("mismatch/m2po/",)),
    (corrections.off_policy_sequence, ("mismatch/opsm/", "mismatch/off_policy_sequence_mask/")),
    (corrections.skyrl, ("mismatch/off_policy_correction/",)),
    (corrections.nemo, ("mismatch/tis/",)),
    (corrections.openrlhf, ("mismatch/is_correction/",)),
    (corrections.prime, ("mismatch/default_loss_fn/", "mismatch/ipo_loss_fn/", "mismatch/ref_kl_loss_fn/")),
    (corrections.metrics, ("mismatch/metrics/",)),
    (zoo.gae_decoupled, ("adv/gae/nemo",)),
    (zoo.gae_turn, ("adv/agentic_reinforce/",)),
    (zoo.vtrace, ("adv/vtrace/",)),
    (zoo.leave_one_out, ("adv/grpo/nemo",)),
    (zoo.verl_groups, ("adv/reinforce_plus_plus_baseline/verl", "adv/opo/", "adv/gpg/")),
    (zoo.swift_baseline, ("adv/reinforce_plus_plus/swift/",)),
    (zoo.flash_reinforce, ("adv/flash_reinforce/",)),
    (zoo.remax, ("adv/remax/",)),
    (zoo.gdpo, ("adv/gdpo/", "adv/grpo/swift/gdpo", "adv/grpo/trl/normalize_then_sum/")),
    (zoo.mt_grpo, ("adv/mt_grpo",)),
    (zoo.grpo_per_turn, ("adv/grpo_per_step/",)),
    (zoo.prime, ("adv/prime_rloo",)),
    (zoo.openrlhf, ("adv/reinforce_baseline/openrlhf", "adv/reinforce/openrlhf")),
    (zoo.raw_reward, ("adv/raw_reward/",)),
    (zoo.areal, ("norm/areal/",)),
    (zoo.sequence_whiten, ("norm/masked_normalize/",)),
    (zoo.grpo_passk, ("adv/grpo_passk/",)),
    (zoo.one_group, ("adv/passk_analytic", "adv/pkpo", "adv/max_rl/")),
    (zoo.maxrl, ("adv/maxrl/",)),
    (zoo.optimal_token_baseline, ("adv/optimal_token_baseline/", "adv/tir_optimal_token_baseline/")),
    (advantages.gae, ("adv/gae/",)),
    (advantages.lambda_returns, ("adv/lambda_returns/rlax",)),
    (advantages.reinforce_plus_plus, ("adv/reinforce/roll", *(f"adv/reinforce_plus_plus/{x}" for x in ("verl", "skyrl", "slime", "nemo")))),
    (advantages.whiten, ("norm/masked_whiten", "norm/distributed_masked_whiten", "norm/advantage_batch_normalize")),
    (advantages.kl_in_reward, ("kl_in_reward/verl",)),
    (advantages.padded_groups, ("adv/grpo/verl", "adv/grpo/skyrl", "adv/grpo_vectorized/", "adv/rloo_vectorized/")),
    (advantages.padded_groups, ("adv/rloo/verl", "adv/rloo/skyrl", "adv/rloo/openrlhf", "adv/group_norm/", "adv/dr_grpo/")),
    (advantages.blocked_groups, ("adv/grpo/", "adv/rloo/", "adv/group/slime", "adv/mcadvantage/torchrl")),
    (advantages.blocked_groups, ("adv/compute_", "norm/roll/reward_norm")),
)
"""By the beginning of an item, which function compares it."""

ROUNDED_INSIDE = {
    "adv/grpo/trl/": 1e-7,  # the degrees of freedom are float32
    "adv/rloo/trl": 1e-7,  # the same
    "adv/grpo/verl/": 1e-7,  # the deviation of a singleton is a float32 one
    "adv/grpo_per_step/": 1e-5,  # the statistics of a group are float32
    "adv/gae/openrlhf": 1e-5,  # the mean and the variance are float32
    "adv/reinforce/openrlhf": 1e-5,  # the same
    "adv/reinforce_baseline/openrlhf": 1e-5,  # the same
    "value/clipped/verl": 1e-7,  # 1e-8 added to lengths
    "agg/openrlhf": 1e-7,  # the same
    "agg/roll/": 1e-7,  # the same
    "mismatch/is_weights/verl": 1e-7,  # the same, and to means
    "mismatch/metrics/verl": 1e-7,  # the same
    "reward/overlong/areal": 1e-6,  # the penalty is float32
    "reward/pf_ppo_weights/": 1e-7,  # the weights are float32
    "norm/roll/running": 1e-6,  # the moments are float32
}
"""Items whose frameworks round or add an epsilon inside without their notes saying so, and what that costs."""


def tolerance(r: Record) -> tuple[float, float]:
    """Return ``(relative, absolute)``."""
    if "float32" in r["compute_dtype"]:
        return 2e-5, 2e-6
    if "float32" in r.get("notes", ""):
        return 1e-5, 1e-9
    return next((rtol for start, rtol in ROUNDED_INSIDE.items() if r["item"].startswith(start)), 1e-9), 1e-9


def differences(r: Record) -> list[str]:
    """Return what of a record ours does not meet."""
    family = next((f for f, starts in FAMILIES if r["item"].startswith(starts)), None)
    if family is None:
        raise Unmapped(r)
    return [found for what, ours, theirs in family(r) for found in difference(what, ours, theirs, *tolerance(r))]


BOOK = Book("golden_estimators.json", ESTIMATORS["cases"], words, differences, DELIBERATE)


# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("identity", BOOK.compared)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(BOOK.records[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE, ids=" ".join)
def test_what_differs_on_purpose_does_differ(key: Key) -> None:
    BOOK.check_deliberate(key)


def test_nothing_is_dropped_and_little_differs() -> None:
    BOOK.check_sum()

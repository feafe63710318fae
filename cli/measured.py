"""Which metrics are explained: those of the pipeline, the bundled trainer and our own components, as the page on metrics lists them."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

_SPREAD = ("mean", "max", "min")

KNOWN = (
    "step", "reward", *(f"response_length/{x}" for x in (*_SPREAD, "clip_ratio")), "response/tool_tokens", "eval/accuracy", "groups/zero_variance", "groups/zero_variance/*", "rollout/age",
    *(f"time/{x}" for x in ("rollout", "estimate", "update", "step", "tokens_per_second", "cpu_seconds", "wall_seconds")),
    "perf/padding_share", "perf/total_num_tokens", "training/rollout_version", "rank_tokens/*", "skipped_steps", "skipped_because",
    *(f"{role}/{x}" for role in ("actor", "critic") for x in ("loss", "grad_norm", "*_loss", "*_coef")),
    *(f"actor/{x}" for x in (
        "pg_loss", "kl_loss", "entropy_loss", "entropy", "pg_clipfrac", "pg_clipfrac_lower", "pg_clipfrac_inverse", "ppo_kl", "ppo_kl_abs",
        "behave_imp_weight", "behave_clipfrac", "clip_cov_frac", "kl_cov_frac", "entropy_keepfrac", "opsm_clipfrac", "drift", "bapo/clip_low",
        "bapo/clip_high", "fipo/influence_weight", "flowrl/log_z", "flowrl/weight", "gvpo/implicit_reward", "a2po/implicit_reward",
        "real/mixed_groups", "vespo/phi", "iw_opd/weight", "teacher_kl", "student_mass", "teacher_mass", "demonstration_frac", "chord/phi",
        "positive_frac", "positive_nll", "sdar/gate", "sdar/gate_active", "sdar/teacher_gap",
    )),
    *(f"critic/{x}/{y}" for x in ("score", "rewards", "advantages", "returns") for y in _SPREAD),
    *(f"critic/{x}" for x in ("reward_*", "vf_loss", "vf_clipfrac", "vf_out_of_range", "vpred_mean", "returns_outside")),
    "filter/*_kept",
    *(f"correction/{x}" for x in (
        "*_dropped", "*_dropped_positive", "*_dropped_negative", "weight", "weight/max", "weight/min", "ess", "ess_*", "rollout_is_raw",
        "rollout_is", "rollout_is_clipfrac", "m2", "m2_dropfrac",
    )),
    *(f"rollout_corr/{x}" for x in (
        "kl", "k3_kl", "chi2_token", "chi2_seq", "rollout_is_mean", "rollout_is_eff_sample_size", "training_ppl", "rollout_ppl",
        "training_log_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min", "ppl_ratio",
    )),
)  # fmt: skip


def explained(name: str) -> bool:
    """Say whether a metric is one of ours."""
    return any(fnmatchcase(name, known) for known in KNOWN)


def of_strangers(names: Iterable[str]) -> list[str]:
    """Return the metrics that only a component of somebody else's can have reported, in the order they came."""
    return [name for name in dict.fromkeys(names) if not explained(name)]

"""What other frameworks call our columns."""

from collections.abc import Mapping

from ..registry import ColumnError, listing, nearest

FRAMEWORKS: Mapping[str, Mapping[str, str]] = {
    "lossary": {},
    "verl": {
        "old_log_probs": "old_log_prob",
        "ref_log_probs": "ref_log_prob",
        "rollout_log_probs": "rollout_log_prob",
        "values": "old_values",  # verl's column holds what the critic said before the update
        "vpreds": "values",
        "token_level_rewards": "token_rewards",
        "uid": "group_ids",
        "reward_baselines": "baseline_rewards",
        "responses": "token_ids",
    },
}


def translation(names: str) -> Mapping[str, str]:
    """Return the map from a framework's column names to ours."""
    if names not in FRAMEWORKS:
        raise ColumnError(f"names={names!r}: no such framework.{nearest(names, FRAMEWORKS)} Known: {listing(FRAMEWORKS)}.")
    return FRAMEWORKS[names]

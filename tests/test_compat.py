"""What components say of other frameworks and of settings that hardly anyone means."""

import re
import warnings
from typing import Any

import pytest

import lossary
from lossary.registry import Component, bounds_of

OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
LOSSES = [c for c in OURS if c.kind.name in ("policy_loss", "auxiliary_loss", "value_loss")]
ALONE = {
    "cpgd", "hl-gauss", "gae-turn", "vtrace", "passk-analytic", "pkpo", "mt-grpo", "grpo-per-turn", "prime", "running-whiten", "length-power",
    "constant-divisor",
}  # fmt: skip
"""Components whose like no trainer among the frameworks has, as far as was read."""


@pytest.mark.parametrize("c", LOSSES, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_a_loss_says_how_frameworks_call_it(c: Component) -> None:
    assert bool(c.compat) is (c.name not in ALONE)
    for framework, how in c.compat.items():
        assert framework == framework.strip() != ""
        assert how.endswith("."), "a sentence"
        assert len(how) < 140, "a short one"


def settings(how: str) -> dict[str, Any]:
    """Return what a sentence sets: ``name: value`` with a value that YAML reads as a number, null, true, false or one word."""
    said = re.findall(
        r"\b([a-z][a-z0-9_]*): (null|true|false|old|current|ratio|score|token|sequence|reward|advantage|-?[0-9][0-9.e-]*)(?=[,;. ]|$)", how
    )
    plain = {"null": None, "true": True, "false": False}
    return {k: plain[v] if v in plain else float(v.rstrip(".")) if v[0].isdigit() else v for k, v in said}


@pytest.mark.parametrize("c", [c for c in OURS if c.kind.name in ("aggregation", "advantage")], ids=lambda c: f"{c.kind.name}-{c.name}")
def test_so_do_aggregations_and_advantages_in_short_sentences(c: Component) -> None:
    assert bool(c.compat) is (c.name not in ALONE)
    assert all(how.endswith(".") and len(how) < 170 for how in c.compat.values())


@pytest.mark.parametrize(
    "c", [c for c in OURS if c in LOSSES or c.kind.name in ("aggregation", "advantage")], ids=lambda c: f"{c.kind.name}-{c.name}"
)
def test_the_settings_that_it_names_are_its_own(c: Component) -> None:
    needed = {name: 1 for name, f in c.params.model_fields.items() if f.is_required()}
    for how in c.compat.values():
        said = needed | settings(how)
        assert set(said) <= set(c.params.model_validate(said).model_fields_set)


def test_settings_are_found_in_sentences() -> None:
    assert settings("`x`: a_b and c; log_ratio_bound: null; student: old, cap: 0.5, n: 3.") == {
        "log_ratio_bound": None,
        "student": "old",
        "cap": 0.5,
        "n": 3.0,
    }


@pytest.mark.parametrize("c", [c for c in OURS if c.params.model_fields], ids=lambda c: f"{c.kind.name}-{c.name}")
def test_every_hyperparameter_says_what_it_means(c: Component) -> None:
    for name, _, _, _, said in bounds_of(c.params):
        assert said, f"{name} says nothing"
        assert said == said.strip()
        assert len(said) <= 110
        assert not said.endswith(".")
        assert re.sub(r"\W+", " ", said.lower()).strip() != name.replace("_", " ")


# ── traps ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SEQUENCES = "seq-mean-token-mean"
TRAPS: dict[str, tuple[str | dict[str, Any], str, str]] = {
    "PPO's clip range with GSPO": ({"use": "gspo", "clip_ratio_low": 0.2}, SEQUENCES, "clip_ratio_low: 0.2 does not suit 'gspo'"),
    "the same with GSPO-token": ({"use": "gspo-token", "clip_ratio_high": 0.2}, SEQUENCES, "clip_ratio_high: 0.2 does not suit 'gspo-token'"),
    "the same with LUSPO": ({"use": "luspo", "clip_ratio_low": 0.2}, "seq-mean-token-sum", "clip_ratio_low: 0.2 does not suit 'luspo'"),
    "GSPO by token-mean": ("gspo", "token-mean", "'gspo' is made for the aggregation seq-mean-token-mean"),
    "GSPO-token by token-mean": ("gspo-token", "token-mean", "'gspo-token' is made for the aggregation seq-mean-token-mean"),
    "dual-clip below the clip": ({"use": "dual-clip", "clip_ratio_c": 1.1}, "token-mean", "made for clip_ratio_c > 1 + clip_ratio_high"),
    "the same in distillation": ({"use": "opd", "clip_ratio_c": 1.1}, "token-mean", "made for clip_ratio_c > 1 + clip_ratio_high"),
    "the same with BAPO's widest clip": ({"use": "bapo", "clip_ratio_c": 1.5}, "token-mean", "made for clip_ratio_c > ratio_upper_max"),
    "delta below the clip": ({"use": "two-sided-delta", "delta": 1.1}, "token-mean", "made for delta > 1 + clip_ratio_high"),
    "the same in FIPO": ({"use": "fipo", "delta": 1.2}, "token-mean", "made for delta > 1 + clip_ratio_high"),
    "a cap that is no ratio": ({"use": "cispo", "imp_ratio_cap": 0.28}, "token-mean", "made for imp_ratio_cap >= 1"),
    "the same as a score": ({"use": "importance-sampling", "imp_ratio_cap": 0.2}, "token-mean", "made for imp_ratio_cap >= 1"),
    "CISPO that lifts small weights": ({"use": "cispo", "clip_ratio_low": 0.2}, "token-mean", "made for clip_ratio_low >= 1"),
    "truncation below 1": ({"use": "tis", "tis_upper_bound": 0.5}, "token-mean", "made for tis_upper_bound >= 1"),
    "a floor above 1": ({"use": "tis", "tis_lower_bound": 1.5, "tis_upper_bound": 2.0}, "token-mean", "made for tis_lower_bound <= 1"),
    "a behaviour weight below 1": ({"use": "decoupled-ppo", "behav_imp_weight_cap": 0.5}, "token-mean", "made for behav_imp_weight_cap >= 1"),
    "an empty band of covariance": ({"use": "clip-cov", "clip_cov_ub": 0.5}, "token-mean", "made for clip_cov_ub > clip_cov_lb"),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_warned_of_and_its_neighbour_is_not(trap: str) -> None:
    loss, aggregation, say = TRAPS[trap]
    with pytest.warns(lossary.RecipeWarning) as caught:
        lossary.compose({"policy_loss": loss, "aggregation": aggregation})
    assert [say in str(w.message) for w in caught] == [True]
    name = loss if isinstance(loss, str) else loss["use"]
    suited = lossary.catalog().get("policy_loss", name).suits.get("aggregation", "token-mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lossary.compose({"policy_loss": name, "aggregation": suited})


@pytest.mark.parametrize("c", [c for c in LOSSES if c.kind.name == "policy_loss"], ids=lambda c: c.name)
def test_defaults_are_never_warned_of(c: Component) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", lossary.RecipeWarning)
        made = lossary.compose({"policy_loss": c.name, "aggregation": c.suits.get("aggregation", "token-mean")})
    assert made.warnings == ()

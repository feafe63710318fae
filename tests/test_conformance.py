"""The conformance kit: all that is built in keeps what it promises, and what does not is told in words that help."""

import importlib.util
import random
from dataclasses import replace
from typing import Annotated

import pytest
import torch
from pydantic import Field

import lossary
from lossary import PerSequence, PerToken, Sequences, SignatureError, advantage_estimator, column, correction, policy_loss
from lossary.conformance import Broken, NotExamined, checks_for
from lossary.conformance.kit import RULES
from lossary.conformance.settings import varied
from lossary.registry.claims import CHECKS, CLAIMS

OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
HERE = "test_conformance.py"


@policy_loss(paper="a test", scope="token", claims={"on_policy_gradient"})
def right(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Multiply the two: ``-A l``."""
    return -advantages * log_prob


@policy_loss(paper="a test", scope="token", claims=("on-policy-gradient",))
def wrong(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Multiply the two, with the wrong sign: ``A l``."""
    return advantages * log_prob


def named(function, **how):
    return {str(c): c for c in checks_for(function, **how)}


def told(check) -> str:
    with pytest.raises(Broken) as caught:
        check()
    return str(caught.value)


# ── the catalog ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}/{c.name}")
def test_every_built_in_component_keeps_its_promises(c):
    for check in checks_for(c, examples=1):
        replace(check, subjects=check.subjects[:1])()


@pytest.mark.slow
@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}/{c.name}")
def test_every_built_in_component_keeps_them_at_every_choice_of_its_hyperparameters(c):
    for check in checks_for(c, examples=6):
        check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("c", [c for c in OURS if c.kind.name in ("policy_loss", "kl", "value_loss", "auxiliary_loss")], ids=lambda c: f"{c.kind.name}/{c.name}")  # fmt: skip
def test_the_compiler_makes_one_graph_of_every_loss(c):
    named(c, compile=True)["compiles"]()


def test_every_claim_is_made_by_some_built_in_component_and_has_a_check():
    assert {claim for c in OURS for claim in c.claims} == set(CLAIMS)
    for c in OURS:
        assert set(c.claims) <= set(named(c))


def test_the_registry_knows_every_check_by_name():
    assert sorted(CHECKS) == sorted(rule.name for rule in RULES)


def test_few_deviate_and_all_say_why():
    deviating = {f"{c.name}: {check}": reason for c in OURS for check, reason in c.deviates.items()}
    assert sum("@other-numbers" not in key for key in deviating) <= 22
    assert sum("@other-numbers" in key for key in deviating) <= 4
    assert all(reason.endswith(".") and len(reason.split()) >= 5 for reason in deviating.values())


# ── how it is used ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("check", checks_for(right), ids=str)
def test_as_a_package_would_use_it(check):
    check()


def test_names_and_claims_are_for_people():
    checks = checks_for(right)
    assert len({str(c) for c in checks}) == len(checks)
    assert all(str(c) == c.name and c.name == c.name.lower() and " " not in c.name for c in checks)
    assert all(c.claim.endswith(".") and len(c.claim) < 160 for c in checks)
    assert "compiles" not in named(right)
    assert "compiles" in named(right, compile=True)
    named(right, compile=True)["compiles"]()


def test_what_is_broken_is_told_with_place_input_and_cause():
    text = told(named(wrong)["on-policy-gradient"])
    assert text.splitlines() == [
        f"policy_loss 'wrong' ({HERE}:{wrong.__code__.co_firstlineno}) breaks 'on-policy-gradient'",
        "  promised     On policy its gradient is the plain policy gradient.",
        "  input        1 sequence of 1 token",
        "               log_prob    -1",
        "               advantages  0.01",
        "  expected     the gradient by log_prob[0] = -0.01, minus the advantage",
        "  found        0.01",
        "  usual cause  a sign, a weight that should be detached and is not (its own gradient adds to it), or a mean inside",
    ]


def test_the_input_is_the_smallest():
    @advantage_estimator(paper="a test", scope="group")
    def leaking(rewards: PerSequence, sequences: Sequences) -> PerSequence:
        """Compare with all: ``s - mean``."""
        return rewards - rewards.mean()

    text = told(named(leaking)["scope"])
    assert "2 sequences of" in text
    assert "rewards  " in text
    loud = told(replace(named(leaking)["scope"], shrink=False))
    assert len(loud) > len(text)


def test_without_hypothesis_the_first_input_is_shown_and_the_extra_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("lossary.conformance.shrinking.find_spec", lambda name: None if name == "hypothesis" else real(name))
    named(right)["scope"]()
    text = told(named(wrong)["on-policy-gradient"])
    assert "not the smallest: pip install 'lossary[conformance]' makes it small." in text
    assert "sequences of" in text


def test_what_rests_on_a_broken_promise_is_not_told_again():
    @policy_loss(paper="a test", scope="token", claims=("on-policy-gradient",))
    def mean(log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Average: ``-mean(A l)``."""
        return (-advantages * log_prob).mean()

    checks = named(mean)
    assert "a mean or a sum inside: lossary sums, return one value per token" in told(checks["returns"])
    with pytest.raises(NotExamined, match=r"'scope' cannot be looked at before 'returns' holds\."):
        checks["scope"]()


def test_an_error_of_its_own_is_told_with_its_line():
    @policy_loss(paper="a test", scope="token")
    def failing(log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Divide: ``1 / 0``."""
        return log_prob / (1 // 0)

    assert f"failed at {HERE}:{failing.__code__.co_firstlineno + 3}: ZeroDivisionError" in told(named(failing)["returns"])


def test_a_check_that_comes_to_no_end_is_broken_and_takes_nothing_with_it():
    def surprised(subject, case):
        raise RuntimeError("Float did not match Double")

    check = named(right)["scope"]
    text = told(replace(check, rule=replace(check.rule, test=surprised)))
    assert "breaks 'scope'" in text
    assert "  found        RuntimeError: Float did not match Double" in text
    declared = replace(check, rule=replace(check.rule, test=surprised), deviation="It is declared.")
    assert "RuntimeError" in told(declared)


# ── deviations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_declared_deviation_must_be_there():
    @policy_loss(paper="a test", scope="token", deviates={"finite_at_extremes": "It is only ever used on policy."})
    def far(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Weigh by the ratio: ``-r A``."""
        return -(log_prob - old_log_prob).exp() * advantages

    check = named(far)["finite-at-extremes"]
    assert check.deviation == "It is only ever used on policy."
    check()

    @policy_loss(paper="a test", scope="token", deviates={"finite-at-extremes": "It is only ever used on policy."})
    def mended(log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Multiply: ``-A l``."""
        return -advantages * log_prob

    text = told(named(mended)["finite-at-extremes"])
    assert "keeps 'finite-at-extremes', though it declares that it does not ('It is only ever used on policy.')" in text
    assert "take the declaration out of deviates" in text


def test_a_deviation_at_one_choice_leaves_the_others_checked():
    grpo = named(lossary.catalog().get("advantage", "grpo"))
    assert grpo["scope"].deviation == ""
    assert grpo["scope@scale=batch-std"].deviation.startswith("The deviation of the whole step divides")
    assert all(s.settings["scale"] != "batch-std" for s in grpo["scope"].subjects)


def test_a_deviation_at_one_number_is_tried_at_that_number():
    found = named(lossary.catalog().get("policy_loss", "dual-clip"))
    early, usual = found["pulls-back@clip_ratio_c=1.5"], found["pulls-back"]
    assert early.subjects[0].settings["clip_ratio_c"] == 1.5
    assert (usual.deviation, usual.subjects[0].settings["clip_ratio_c"]) == ("", 3.0)
    early()
    usual()
    text = told(replace(early, subjects=usual.subjects))
    assert "keeps 'pulls-back@clip_ratio_c=1.5', though it declares that it does not" in text


def test_numbers_are_moved_only_as_far_as_suits_the_component():
    tis = lossary.catalog().get("policy_loss", "tis")
    usual = {"tis_lower_bound": 0.5, "tis_upper_bound": 1.0, "log_ratio_bound": 20.0}
    down, up = (varied(tis, usual, flip=flip) for flip in (False, True))
    assert (down["tis_lower_bound"], down["tis_upper_bound"], down["log_ratio_bound"]) == (0.6, 1.0, 24.0)
    assert (up["tis_lower_bound"], up["tis_upper_bound"], up["log_ratio_bound"]) == (0.425, 1.2, 17.0)


@pytest.mark.parametrize(
    ("deviates", "said"),
    [
        ({"zero-at-perfect-values": "why"}, "deviates from 'zero-at-perfect-values', which is not asked of it"),
        ({"scope@tilt=9": "why"}, "deviates from 'scope' at 'tilt=9', which is no choice of its hyperparameters"),
        ({"precision@tilt=9": "why"}, "but 'precision' is asked at the defaults only"),
        (
            {"on-policy-direction@tilt=9": "why"},
            "deviates from 'on-policy-direction' at 'tilt=9', which is no choice of its hyperparameters",
        ),
    ],
)
def test_a_deviation_that_means_nothing_is_refused(deviates, said):
    def f(log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Multiply: ``-A l``."""
        return -advantages * log_prob

    with pytest.raises(SignatureError) as caught:
        checks_for(policy_loss(deviates=deviates)(f))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"deviates": {"scope": " "}}, "deviates from 'scope' without a reason; say why in a sentence"),
        ({"deviates": ("scope",)}, "deviates says why for each check"),
        (
            {"deviates": {"finite_at_extreme": "why"}},
            "deviates from 'finite_at_extreme', which is no check. Did you mean 'finite-at-extremes'?",
        ),
        (
            {"deviates": {"nope@tilt=1": "why"}},
            "deviates from 'nope', which is no check. Did you mean 'scope'? Checks are any-device, causal,",
        ),
        (
            {"claims": ("sums_to_one",)},
            "claims 'sums_to_one', which is for kind aggregation; for policy_loss there are on-policy-gradient and pulls-back",
        ),
        ({"claims": ("on-policy-gradeint",)}, "Did you mean 'on-policy-gradient'?"),
    ],
)
def test_claims_and_deviations_are_looked_at_by_the_decorator(traits, said):
    with pytest.raises(SignatureError) as caught:
        policy_loss(**traits)(lambda log_prob: log_prob)
    assert said in str(caught.value)


# ── what it must be told ─────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_of_ones_own():
    @policy_loss(paper="a test", scope="token")
    def valid_only(log_prob: PerToken, advantages: PerToken, valid: PerSequence) -> PerToken:
        """Weigh by a column: ``-v A l``."""
        raise NotImplementedError

    @policy_loss(paper="a test", scope="token")
    def weighed(log_prob: PerToken, advantages: PerToken, valid: PerToken) -> PerToken:
        """Weigh by a column: ``-v A l``."""
        return -valid * advantages * log_prob

    alone = named(weighed)
    assert list(alone) == ["signature"]
    assert "asks for the column 'valid', which nobody declared" in told(alone["signature"])
    for check in checks_for(weighed, columns=[column("valid", level="sequence", doc="whether it counts")]):
        check()
    assert len(named(valid_only, columns=[column("valid", level="sequence", doc="")])) > 10


def test_settings_where_no_example_is_known():
    @policy_loss(paper="a test", scope="token", requires={"low": "< high"})
    def between(
        log_prob: PerToken,
        advantages: PerToken,
        *,
        low: Annotated[float, Field(gt=0, lt=1, description="the least")],
        power: Annotated[int, Field(ge=2, description="a power")],
        high: Annotated[float, Field(gt=0, description="the most")] = 3.0,
    ) -> PerToken:
        """Clamp the size: ``-clamp(|A|, low, high)^k A l``."""
        return -(advantages.abs().clamp(low, high) ** power) * advantages * log_prob

    first = checks_for(between)[0].subjects[0].settings
    assert first == {"low": 0.5, "power": 3, "high": 3.0}
    assert checks_for(between, settings={"low": 0.2})[0].subjects[0].settings == {**first, "low": 0.2}
    for wrong_one in ({"low": 2.0}, {"lo": 0.2}):
        with pytest.raises(SignatureError, match="settings"):
            checks_for(between, settings=wrong_one)
    for check in checks_for(between):
        check()


def test_only_what_a_decorator_marked_is_checked():
    with pytest.raises(SignatureError, match="carries no lossary decorator"):
        checks_for(len)


def test_it_leaves_no_trace():
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()
    for check in checks_for(right):
        check()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_correction_without_an_annotation_is_a_pair_all_the_same():
    @correction(paper="a test", scope="token")
    def triple(old_log_prob: PerToken):
        """Return too much: ``1 + 2``."""
        return old_log_prob, None, None

    assert "expected     (weight, keep), or ((weight, keep), report)" in told(named(triple)["returns"])

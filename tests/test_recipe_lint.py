"""Recipes that are allowed and hardly meant, or that throw away what they ask for: a sentence each, by name."""

import pytest
from commands import run

from lossary import RecipeError, RecipeWarning, compose, load_recipe
from lossary.trainer.settings import Settings

PG = {"policy_loss": "ppo-clip"}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"entropy": -0.01}, "entropy.coef: -0.01 is below 0, so the policy is paid for making up its mind; above 0 it is a bonus for staying undecided."),
        ({"kl": {"use": "k3", "coef": -0.1}}, "kl.coef: -0.1 is below 0, so the policy is driven away from the reference."),
        ({"kl": [{"use": "k3", "coef": 0.1}, {"use": "k1", "coef": -0.1, "apply": "reward"}], "advantage": "gae"}, "kl.1.coef: -0.1 is below 0, so the policy is driven away from the reference."),
        ({"policy_loss": {"use": "ppo-clip", "coef": -1}}, "policy_loss.coef: -1 is below 0, so what is good is unlearnt."),
        ({"value_loss": {"use": "clipped-mse", "coef": -0.5}}, "value_loss.coef: -0.5 is below 0, so the critic is driven away from the returns."),
        ({"auxiliary": {"use": "sft", "coef": -0.5}}, "auxiliary.coef: -0.5 is below 0, so 'sft' is maximised."),
    ],
)  # fmt: skip
def test_a_coefficient_below_0_is_told_what_it_does(sections, said):
    with pytest.warns(RecipeWarning) as caught:
        objective = compose(PG | sections)
    assert objective.warnings.count(said) == 1
    assert said in [str(w.message) for w in caught]


def test_an_entropy_bonus_and_a_term_that_is_off_are_left_in_peace():
    assert compose(PG | {"entropy": 0.01, "kl": {"use": "k3", "coef": 0}}).warnings == ()


def test_lossary_check_shows_a_coefficient_below_0(tmp_path):
    (tmp_path / "r.yaml").write_text("policy_loss: ppo-clip\nentropy: -0.01\n")
    code, out, _ = run("check", str(tmp_path / "r.yaml"))
    assert code == 0
    assert "entropy.coef: -0.01 is below 0, so the policy is paid for making up its mind" in " ".join(out.split())


@pytest.mark.parametrize(
    ("chain", "path", "lost", "by"),
    [
        (["grpo", "rloo"], "advantage.1", "grpo", "rloo"),
        (["gae", "grpo"], "advantage.1", "gae", "grpo"),
        (["grpo", "whiten", {"use": "gae", "lam": 0.9}], "advantage.2", "whiten", "gae"),
        (["grpo", "grpo"], "advantage.1", "grpo", "grpo"),
    ],
)
def test_two_estimators_of_the_same_column_are_refused_by_name(chain, path, lost, by):
    with pytest.raises(RecipeError) as caught:
        compose(PG | {"advantage": chain})
    (fault,) = caught.value.faults
    assert fault.path == path
    assert f"'{by}' makes advantages anew and does not read those of '{lost}' before it, which would be lost" in fault.message


def test_an_estimator_that_reads_advantages_goes_on_with_them():
    assert [b.component.name for b in compose(PG | {"advantage": ["gae", "whiten", "clip-advantages"]}).plan.advantages] == [
        "gae",
        "whiten",
        "clip-advantages",
    ]


@pytest.mark.parametrize(
    ("policy_loss", "minibatches", "said"),
    [
        ("ppo-clip", 12, None),
        ("ppo-clip", 13, "minibatches must be <= 12: a rollout has 12 sequences, and a minibatch without any is a step on nothing"),
        ("gvpo", 4, None),
        ("gvpo", 5, "minibatches must be <= 4: a rollout has 4 groups, which stay whole, and a minibatch without any is a step on nothing"),
    ],
)
def test_more_minibatches_than_a_rollout_can_fill_are_refused(policy_loss, minibatches, said, tmp_path):
    (tmp_path / "r.yaml").write_text(
        f"policy_loss: {policy_loss}\nadvantage: rloo\naggregation: seq-mean-token-mean\ntask: sort-letters\n"
        f"rollout: {{prompts: 4, samples_per_prompt: 3}}\ntrain: {{minibatches: {minibatches}}}\n"
    )
    recipe = load_recipe(tmp_path / "r.yaml")
    if said is None:
        assert Settings.of(recipe).train.minibatches == minibatches
        return
    with pytest.raises(RecipeError) as caught:
        Settings.of(recipe)
    (fault,) = caught.value.faults
    assert (fault.path, fault.message) == ("train.minibatches", said)
    assert "r.yaml:6:" in str(fault)

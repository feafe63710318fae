"""Ablations: what is varied, how it is named, and what is wrong with a file."""

from pathlib import Path

import pytest

from lossary.ablation.ablation import bundled_ablations, parsed, read_ablation
from lossary.ablation.folder import AblationFolder, Run
from lossary.ablation.variants import slugs, spread
from lossary.registry import RecipeError
from lossary.trainer.run_folder import RunFolder


def grid(text):
    return spread(parsed(text, "mine", Path.cwd(), "mine.yaml"))


def names(text):
    return [v.name for v in grid(text).variants]


def faults(text):
    with pytest.raises(RecipeError) as caught:
        grid(text)
    return [str(f) for f in caught.value.faults]


# ── what is varied ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_variants_are_named_by_what_differs():
    text = "base: demo\nvary: {policy_loss: [ppo-clip, {use: ppo-clip, clip_ratio_high: 0.3}, gspo], train.lr: [1e-3, 1e-4], kl: [null, {use: k3, coef: 0.1}]}"
    found = names(text)
    assert len(found) == len(set(found)) == 12
    assert found[0] == "ppo-clip, lr=0.001, no kl"
    assert "ppo-clip(clip_ratio_high=0.3), lr=0.0001, k3" in found


def test_the_base_is_the_variant_that_changes_nothing():
    made = grid("base: {base: grpo, aggregation: token-mean}\nvary: {aggregation: [seq-mean-token-sum, {use: token-mean}]}")
    assert (made.base, made.base_is_recipe) == ("token-mean", True)
    made = grid("base: grpo\nvary: {train.lr: [1e-4, 1e-5]}")
    assert (made.base, made.base_is_recipe) == ("lr=0.0001", False)


def test_a_run_is_found_by_its_variants_name(tmp_path):
    """The trainer names a run's folder after the recipe's file; whatever is in a name, the two agree and stay apart."""
    said = [
        "lr=0.001, no kl",
        "ppo-clip(clip_ratio_high=0.3)",
        "a/b",
        "../up",
        "a=1",
        "a-1",
        "A 1",
        "lr=1 #2",
        "[x*]?",
        "ü" * 300,
        "ü" * 299,
        "...",
    ]
    made = slugs(said)
    assert len({s.lower() for s in made}) == len(said)
    folder = AblationFolder(tmp_path)
    for name, slug in zip(said, made, strict=True):
        run = Run(name, slug, 0, 1)
        path = RunFolder.new(folder.home(run), slug, "").path
        assert folder.run_path(run) == path
        assert path.name == f"{slug}-0001"
        assert path.parent == tmp_path / "runs" / "seed-0"


def test_zip_and_exclude():
    assert names("base: demo\nvary: {train.lr: [1e-3, 1e-4], train.epochs: [1, 4]}\nzip: [[train.lr, train.epochs]]") == [
        "lr=0.001, epochs=1",
        "lr=0.0001, epochs=4",
    ]
    text = "base: demo\nvary: {policy_loss: [ppo-clip, {use: reinforce}], train.epochs: [1, 4]}\nexclude: [{policy_loss: reinforce, train.epochs: 4}]"
    assert names(text) == ["ppo-clip, epochs=1", "ppo-clip, epochs=4", "reinforce, epochs=1"]


def test_variants_pool_across_a_task():
    made = grid("base: demo\nvary: {policy_loss: [ppo-clip, reinforce], task: [spell-backward, add-numbers]}\nacross: [task]")
    assert [(v.contestant, v.stratum) for v in made.variants][:2] == [("ppo-clip", "spell-backward"), ("ppo-clip", "add-numbers")]


def test_a_varied_recipe_says_what_is_varied():
    a, b = grid("base: demo\nvary: {policy_loss: [gspo, {use: ppo-clip, clip_ratio_high: 0.3}], kl.coef: [0.5]}").variants
    assert "use: gspo" in a.recipe or "policy_loss: gspo" in a.recipe
    assert "clip_ratio_high: 0.3" in b.recipe
    assert "coef: 0.5" in a.recipe


def test_every_fault_of_every_variant_at_once():
    text = "base: demo\nvary:\n  policy_loss: [gsppoo, {use: ppo-clip, clip_ratio_hi: 0.3}]\n  train.lr: [fast, 1e-3]\n"
    said = faults(text)
    assert len(said) == 3
    assert said[0].startswith("mine.yaml:3:17: policy_loss")
    assert "No policy_loss is called 'gsppoo'. Did you mean" in said[0]
    assert "mine.yaml:3:" in said[1]
    assert "clip_ratio_high" in said[1]
    assert said[2].startswith("mine.yaml:4:14: train.lr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vary: {train.lr: [1]}", "base: required"),
        ("base: demo", "vary: required"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseed: 3", "Did you mean 'seeds'"),
        ("base: demo\nvary: {train.lr: 1e-3}", "mine.yaml:2:8: vary.train.lr: expected a list"),
        ("base: demo\nvary: {train.lr: [1e-3, 1e-3]}", "the same value as entry 0"),
        ("base: demo\nvary: {train.seed: [0, 1]}", "say seeds:"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nzip: [[train.lr, train.epoch]]", "'train.epoch' is not varied"),
        ("base: demo\nvary: {train.lr: [1e-3], train.epochs: [1, 2]}\nzip: [[train.lr, train.epochs]]", "equally many"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nexclude: [{train.lr: 5}]", "no variant is like this"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseeds: [1, 1]", "twice"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseeds: yes", "expected how many"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nbudget: {step: 3}", "Did you mean 'steps'"),
        ("base: demo\nvary: {train.lr: [1e-3, 1e-4]}\nbudget: {runs: 3}", "mine.yaml:3:1: budget: 2 variants with 3 seeds are 6 runs"),
        (
            f"base: demo\nvary: {{{', '.join(f'train.x{i}: {list(range(10))}' for i in range(9))}}}",
            "1,000,000,000 combinations, even before exclude",
        ),
        ("base: dema\nvary: {train.lr: [1e-3]}", "mine.yaml:1:1: base: no recipe has this name. Did you mean 'demo'?"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nexclude: [{train.lr: 1e-3}]", "every variant is excluded"),
        ("base: [demo]\nvary: {train.lr: [1e-3]}", "expected the name of a recipe"),
        ("base: demo\nbase: grpo", "stands here again"),
    ],
)
def test_faults_of_the_file(text, said):
    assert any(said in f for f in faults(text)), faults(text)


def test_an_override_of_what_is_varied_is_refused():
    made = parsed("base: demo\nvary: {policy_loss: [ppo-clip, gspo]}", "mine", Path.cwd(), "mine.yaml")
    with pytest.raises(RecipeError, match=r"policy_loss is varied, so that 'policy_loss\.clip_ratio_low=0\.1' would change nothing"):
        spread(made, ["train.steps=3", "policy_loss.clip_ratio_low=0.1"])


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "losses.yaml").write_text("base: demo\nvary: {train.lr: [1e-3, 1e-4]}\n")
    with pytest.raises(RecipeError, match=r"no such file. Did you mean 'losses.yaml'"):
        read_ablation(str(tmp_path / "loses.yaml"))
    with pytest.raises(RecipeError, match="no ablation has this name"):
        read_ablation("stale")


@pytest.mark.parametrize("name", sorted(bundled_ablations()))
def test_bundled_ablations_are_right(name):
    made = spread(read_ablation(name))
    assert len(made.variants) >= 4
    assert made.base_is_recipe

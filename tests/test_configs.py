"""Configurations of other frameworks read into recipes: what becomes of each key, and losses against those frameworks' own numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ended, run

import lossary
from lossary.integrations.configs.exporting import export
from lossary.integrations.configs.importing import FRAMEWORKS, import_config, import_file
from lossary.integrations.gate import IntegrationError
from lossary.registry import LossaryError

HERE = Path(__file__).parent
GOLDEN: dict[str, Any] = json.loads((HERE / "golden/golden_policy.json").read_text())
RECORDS = {r["id"]: r for r in GOLDEN["records"]}
FILES = {
    "verl_dapo.sh": "ppo_clip_dual/clip_higher/verl/{}/token-mean",
    "verl_gspo.yaml": "gspo/verl/{}/seq-mean-token-mean",
    "trl_grpo.yaml": "grpo_family/grpo/trl/{}/seq-mean-token-mean (mean over ALL rows)",
    "trl_gspo.yaml": "gspo/sequence(grad through mean)/trl/{}/seq-mean-token-mean (mean over ALL rows)",
    "skyrl_regular.yaml": "ppo_clip_dual/regular(no dual)/skyrl/{}/sequence_mean",
    "skyrl_gspo.sh": "gspo/skyrl/{}/sequence_mean",
    "openrlhf_icepop.sh": "openrlhf_policy_loss/icepop/openrlhf/{}/token-mean",
    "openrlhf_gspo.sh": "openrlhf_policy_loss/gspo/openrlhf/{}/seq-mean-token-mean",
}
"""By file the golden record of the framework's own code with these settings."""


def values(case: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    found = {k: torch.tensor(v, dtype=torch.float64) for k, v in GOLDEN["cases"][case].items()}
    return found, found.pop("response_mask")


MET = [(name, case) for name, said in FILES.items() for case in GOLDEN["cases"] if said.format(case) in RECORDS]


@pytest.mark.parametrize(("name", "case"), MET)
def test_an_imported_recipe_gives_the_frameworks_own_loss(name: str, case: str) -> None:
    recipe = import_file(name.partition("_")[0], HERE / "configs" / name).recipe
    compare(recipe, RECORDS[FILES[name].format(case)])


def compare(recipe: dict[str, Any], record: dict[str, Any], **columns_of: str) -> None:
    """Check a recipe's loss and gradient against a record, which begins with advantages."""
    recipe = {k: v for k, v in recipe.items() if k not in ("advantage", "reward", "filter", "value_loss")}
    columns, mask = values(record["case"])
    if "column 0" in "".join(record["inputs"]):
        columns["advantages"] = columns["advantages"][:, :1].expand_as(mask).contiguous()
    objective = lossary.compose(recipe)
    given = {"old_log_prob": "old_log_prob", "advantages": "advantages", "rollout_log_prob": "rollout_log_prob", **columns_of}
    batch = lossary.Batch.from_padded(mask, **{ours: columns[theirs] for ours, theirs in given.items() if theirs in columns})
    if "correction" in recipe:
        batch = objective.estimate(batch)
    leaf = columns["log_prob"].clone().requires_grad_()
    loss = objective.loss(objective.weigh(batch), log_prob=leaf).actor
    loss.backward()
    loose = 2e-5 if "float32" in record["dtype"] else 1e-6
    assert loss.item() == pytest.approx(record["loss"], rel=loose, abs=1e-9)
    wanted = torch.tensor([[float(x or 0) for x in row] for row in record["grad_log_prob"]], dtype=torch.float64)
    torch.testing.assert_close(leaf.grad, wanted, rtol=loose, atol=1e-9)


def test_all_files_meet_numbers() -> None:
    assert {name for name, _ in MET} == set(FILES)


FLAGS = {
    "policy_loss_type": "--actor.policy_loss_type", "dual_clip": "--actor.dual_clip", "is_correction_level": "--algo.advantage.is_correction_level",
    "is_correction_mode": "--algo.advantage.is_correction_mode", "is_correction_gating": "--algo.advantage.is_correction_gating",
}  # fmt: skip
OPENRLHF = [i for i, r in RECORDS.items() if r["framework"] == "openrlhf" and "token_level_loss" not in r["hyperparameters"]]


@pytest.mark.parametrize("record", OPENRLHF)
def test_openrlhfs_flags_give_its_own_loss(record: str) -> None:
    """Every record of its loss, with the settings as its command line has them; its loss by sequence has no flag but gspo."""
    h = dict(RECORDS[record]["hyperparameters"])
    words = ["--algo.advantage.estimator group_norm --algo.kl.init_coef 0"]
    words.append(f"--actor.eps_clip_low_high {h.pop('clip_eps_low')} {h.pop('clip_eps_high')}")
    if (bounds := h.pop("is_correction_threshold", None)) is not None:
        words.append("--algo.advantage.is_correction_threshold {} {}".format(*bounds))
    words += [f"{FLAGS[k]} {v}" for k, v in h.items()]
    found = import_config("openrlhf", " ".join(words))
    sampled = found.recipe.get("rollout", {}).get("bypass")
    assert bool(sampled) == bool(found.approximations)
    compare(found.recipe, RECORDS[record], **({"old_log_prob": "rollout_log_prob"} if sampled else {}))


def test_openrlhfs_old_names_and_new_ones_say_the_same() -> None:
    old = "--advantage_estimator rloo --init_kl_coef 0 --eps_clip_low_high 0.2 0.27 --enable_vllm_is_correction --vllm_is_truncated_threshold 2"
    new = """
    algo:
      advantage: {estimator: rloo, is_correction_level: token, is_correction_mode: clip, is_correction_threshold: [0, 2]}
      kl: {init_coef: 0}
    actor: {eps_clip_low_high: [0.2, 0.27]}
    """
    assert import_config("openrlhf", old).recipe == import_config("openrlhf", new).recipe
    assert import_config("openrlhf", old.replace("threshold 2", "threshold 0.5 5 --use_icepop")).recipe["correction"]["use"] == "icepop"
    with pytest.raises(IntegrationError, match=r"eps_clip and actor\.eps_clip are one setting"):
        import_config("openrlhf", "--eps_clip 0.1 --actor.eps_clip 0.2")


def test_what_openrlhf_does_beyond_the_loss() -> None:
    text = "--algo.advantage.estimator reinforce --algo.kl.target 6 --reward.stop_properly_penalty_coef -0.5 --actor.entropy_coef 0.01"
    recipe = import_config("openrlhf", text).recipe
    assert recipe["advantage"] == [{"use": "reinforce-plus-plus", "gamma": 1.0}, {"use": "batch-normalise"}]
    assert recipe["kl"]["coef"] == {"use": "adaptive-kl", "kl_coef": 0.01, "target": 6, "horizon": 10000}
    assert [t["use"] for t in recipe["reward"]] == ["stop-properly", "clip-rewards"]
    assert recipe["entropy"] == {"coef": 0.01, "aggregation": "token-mean"}
    (row,) = import_config("openrlhf", "--algo.advantage.estimator group_norm").approximations
    assert "the KL to come is taken from each token" in row.reason


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_variables_of_a_script_are_put_where_they_stand() -> None:
    text = """
    set -x
    clip_high=0.28  # of the paper
    export MAX_LEN=$((1024 * 2))
    python3 -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=grpo actor.clip_ratio_high=${clip_high} \\
        data.max_response_length=$((MAX_LEN + 6)) actor.clip_ratio_low=${LOW:-0.1} \\
        actor.loss_agg_mode=seq-mean-token-sum-norm "$@"
    """.replace("\\\\", "\\")
    recipe = import_config("verl", text).recipe
    assert (recipe["policy_loss"]["clip_ratio_low"], recipe["policy_loss"]["clip_ratio_high"]) == (0.1, 0.28)
    assert recipe["aggregation"] == {"use": "seq-mean-token-sum-norm", "loss_scale_factor": 2054}


def test_words_after_an_option_are_its_values() -> None:
    found = import_config("openrlhf", "run --reward.clip_range -5 5 --algo.advantage.estimator gae --ds.targets q_proj k_proj -- --bf16")
    assert found.recipe["reward"] == {"use": "clip-rewards", "reward_clip_range": [-5.0, 5.0]}
    assert {row.key: row.value for row in found.rows}["ds.targets"] == ["q_proj", "k_proj"]


@pytest.mark.parametrize("name", FILES)
def test_every_key_has_its_row(name: str) -> None:
    framework = name.partition("_")[0]
    found = import_file(framework, HERE / "configs" / name)
    assert found.approximations == ()
    assert {row.fate for row in found.rows} == {"mapped", "dropped"}
    assert all(row.reason for row in found.rows if row.fate == "dropped")


TOLD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "verl: a KL that is clamped": (
        "verl",
        "actor.use_kl_loss=True actor.kl_loss_type=k3+ algorithm.adv_estimator=rloo",
        {"kl": {"use": "k3", "cap": 10, "gradient": "straight-through", "coef": 0.001, "apply": "loss"}},
    ),
    "verl: what rejects bounds the inverse": (
        "verl",
        "algorithm.adv_estimator=rloo algorithm.rollout_correction.rollout_rs=seq_mean_k1 algorithm.rollout_correction.rollout_rs_threshold=0.5_2.5",
        {"correction": {"use": "reject-k1", "agg": "mean", "lower": 0.4, "upper": 2.0, "denominator": "kept"}},
    ),
    "TRL: its defaults": (
        "trl",
        "beta: 0.04",
        {"kl": {"use": "k3-importance", "coef": 0.04, "log_ratio_bound": None, "importance_cap": None}, "aggregation": "token-mean"},
    ),
    "SkyRL: its KL is a mean over rows": (
        "skyrl",
        "trainer.algorithm.loss_reduction=token_mean",
        {"kl": {"use": "k3", "cap": 10, "coef": 0.001, "apply": "loss", "aggregation": "seq-mean-token-mean"}},
    ),
    "OpenRLHF: flags": (
        "openrlhf",
        "--algo.advantage.estimator dr_grpo --actor.eps_clip_low_high 0.1 0.3 --algo.kl.init_coef 0 --ds.zero_stage 3",
        {
            "advantage": {"use": "grpo", "scale": "none"},
            "policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "log_ratio_bound": 20},
        },
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_a_setting_becomes(case: str) -> None:
    framework, text, wanted = TOLD[case]
    recipe = import_config(framework, text).recipe
    assert {k: recipe[k] for k in wanted} == wanted


def test_approximations_are_told_with_their_reason() -> None:
    (row,) = import_config("trl", "loss_type: bnpo").approximations
    assert (row.key, row.here) == ("loss_type", "aggregation")
    assert "micro-batch" in row.reason
    (slip,) = import_config("trl", "epsilon_hihg: 0.3").approximations
    assert "was epsilon_high meant?" in slip.reason


@pytest.mark.parametrize(
    ("framework", "text", "say"),
    [
        ("vrl", "a: 1", "Did you mean 'verl'"),
        ("verl", "actor.policy_loss.loss_mode=mine", "'mine' has no counterpart here"),
        ("trl", "loss_type: ppo", "is none of TRL"),
        ("verl", "actor.clip_ratio_low=1 actor.clip_ratio_low=2", "said twice"),
        ("trl", "epsilon: [", "the configuration:1"),
        ("verl", "actor.clip_ratio_low=$LOW algorithm.adv_estimator=rloo", "clip_ratio_low: what the shell puts for .* is not known"),
        ("verl", "actor.clip_ratio_low='0.1", "no command line: No closing quotation"),
        ("openrlhf", "--actor.eps_clip_low_high 0.1", "is not two numbers"),
        ("openrlhf", "--algo.advantage.estimator group_nrm", "Did you mean 'group_norm'"),
        ("openrlhf", "--actor.policy_loss_type cispo", "ppo and gspo"),
        ("openrlhf", "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip", "'seq' with mode 'clip'"),
    ],
)
def test_what_cannot_be_read_is_an_error(framework: str, text: str, say: str) -> None:
    with pytest.raises(LossaryError, match=say):
        import_config(framework, text)


def test_names_are_those_that_components_say_they_have_there() -> None:
    """The tables of this folder and the components' ``compat`` agree on who is whose counterpart."""
    from lossary.integrations.configs import verl

    for theirs, (ours, _, _) in verl.LOSSES.items():
        assert f"`{theirs}`" in lossary.catalog().get("policy_loss", ours).compat["verl"]
    for theirs, slot in verl.ESTIMATORS.items():
        said = lossary.catalog().get("advantage", slot["use"]).compat["verl"]
        assert theirs.removesuffix("_vectorized") in said or slot["use"] in said
    assert set(FRAMEWORKS) == {"verl", "trl", "skyrl", "openrlhf"}


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_export_says_what_verl_must_be_told(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("advantage: rloo\npolicy_loss: gspo\nkl: {use: k3, coef: 0.01, cap: 10}\naggregation: seq-mean-token-mean\n")
    made = export("verl", str(own))
    assert made.environment == {"LOSSARY_RECIPES": str(own)}
    assert made.settings["actor_rollout_ref.actor.policy_loss.loss_mode"] == "lossary/recipe/mine"
    assert made.settings["actor_rollout_ref.actor.kl_loss_coef"] == 0.01
    with pytest.raises(IntegrationError, match="runs a recipe already: 'mine'"):
        import_config("verl", " ".join(f"{k}={v}" for k, v in made.settings.items()))
    assert export("trl", "grpo").settings == {"beta": 0.001}


@pytest.mark.parametrize(
    ("framework", "recipe", "say"),
    [("verl", "sft", "has no policy_loss"), ("trl", "ppo", "value_loss"), ("openrlhf", "dapo", "Known: trl and verl")],
)
def test_export_refuses_what_would_not_run(framework: str, recipe: str, say: str) -> None:
    with pytest.raises(LossaryError, match=say):
        export(framework, recipe)


def test_a_group_loss_is_not_exported(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("policy_loss: gvpo\naggregation: seq-mean-token-mean\n")
    for framework in ("verl", "trl"):
        with pytest.raises(IntegrationError, match="'group_ids'"):
            export(framework, str(own))


def test_the_command_prints_a_recipe_and_what_became_of_the_keys(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    code, out, err = run("import-config", "--from", "trl", str(HERE / "configs/trl_grpo.yaml"))
    assert code == 0
    lossary.compose(__import__("yaml").safe_load(out))
    assert "mapped" in err
    assert "3 mapped, 0 approximated, 2 dropped" in err
    rough = tmp_path / "rough.yaml"
    rough.write_text("loss_type: bnpo\n")
    code, out, err = run("import-config", "--from", "trl", str(rough), "--strict", "--out", str(tmp_path / "made.yaml"))
    assert code == 1
    assert not (tmp_path / "made.yaml").exists()
    code, out, _ = run("import-config", "--from", "trl", str(rough), "--json")
    assert [row["fate"] for row in json.loads(out)["keys"]] == ["approximated"]
    assert run("import-config", "--from", "trl", str(rough), "--out", str(tmp_path / "made.yaml"))[0] == 0
    code, _, err = ended(monkeypatch, capsys, "import-config", "--from", "trl", str(rough), "--out", str(tmp_path / "made.yaml"))
    assert code == 2
    assert "it is not overwritten" in err
    assert run("export", "--to", "trl", "dapo")[1] == "beta: 0.0\n"
    assert json.loads(run("export", "--to", "verl", "dapo", "--json")[1])["settings"]["algorithm.adv_estimator"] == "lossary/recipe/dapo"

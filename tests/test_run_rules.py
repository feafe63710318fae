"""The rules over a run's metric lines: each planted curve is named at its step, and a healthy one is left in peace."""

import json
import math

import pytest
from tiny_runs import GRPO

from lossary import LossaryError, load_recipe
from lossary.diagnostics import RULES, warned
from lossary.diagnostics.watching import Watch, health
from lossary.trainer.loop import Trainer, train
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings


def healthy(steps=60):
    """A run that learns: reward and accuracy rise, entropy falls, groups become tied only in part."""
    lines = [{"step": 0, "eval/accuracy": 0.2}]
    for i in range(1, steps + 1):
        t = i / steps
        line = {
            "step": i, "reward": 0.2 + 0.6 * t + 0.02 * math.sin(9 * i), "actor/entropy": 1.2 - 0.8 * t, "actor/ppo_kl": 0.002 * math.sin(i),
            "actor/kl_loss": 0.01 + 0.2 * t, "actor/pg_clipfrac": 0.02 + 0.01 * math.sin(i), "groups/zero_variance": 0.3 + 0.3 * t,
            "groups/zero_variance/prompt_4-7": 0.4, "groups/zero_variance/prompt_8-15": 0.2, "rollout/age": 0.0,
        }  # fmt: skip
        lines.append(line | ({"eval/accuracy": 0.2 + 0.55 * t} if i % 10 == 0 else {}))
    return lines


def planted(change, start=40):
    """The same, changed from a step on by ``change(line, steps since)``."""
    lines = healthy()
    for line in lines[start:]:
        line.update(change(line, line["step"] - start))
    return lines


def judged(lines):
    """Every warning, as a trainer gives them: line by line."""
    return [w for n in range(1, len(lines) + 1) for w in warned(lines[:n])]


CURVES = {
    "kl-spike": (lambda line, k: {"actor/ppo_kl": 3.0 if k == 0 else line["actor/ppo_kl"]}, [40]),
    "kl-spike in the loss": (lambda line, k: {"actor/kl_loss": 9.0 if k == 3 else line["actor/kl_loss"]}, [43]),
    "entropy-collapse": (lambda line, k: {"actor/entropy": 0.4 / (k + 1), "reward": 0.5}, [43]),
    "entropy-collapse to nothing": (lambda line, k: {"actor/entropy": 0.01}, [40]),
    "reward-up-held-out-flat": (lambda line, k: {"eval/accuracy": 0.4} if "eval/accuracy" in line else {}, [50]),
    "zero-variance": (lambda line, k: {"groups/zero_variance": 0.95}, [42]),
    "zero-variance-bucket": (lambda line, k: {"groups/zero_variance/prompt_8-15": 1.0}, [59]),
    "clip-saturated": (lambda line, k: {"actor/pg_clipfrac": 0.5}, [42]),
    "stale-data": (lambda line, k: {"rollout/age": 9.0 if k == 5 else 0.0}, [45]),
    "rollout-mismatch": (lambda line, k: {"rollout_corr/rollout_is_eff_sample_size": 0.3, "rollout_corr/k3_kl": 0.4}, [40]),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_planted_curve_is_named_once(name):
    change, steps = CURVES[name]
    found = judged(planted(change))
    assert [(w.check, w.place.step) for w in found] == [(name.partition(" ")[0], step) for step in steps]
    assert all(w.found and w.why and w.remedy for w in found)


def test_a_healthy_run_is_left_in_peace():
    assert judged(healthy()) == []
    assert judged(healthy(700)) == []
    assert warned([]) == warned([{"warm_up": 3}]) == []


def test_a_gap_or_a_nan_in_the_lines_strikes_no_rule():
    lines = healthy()
    lines[45]["actor/ppo_kl"] = lines[46]["actor/entropy"] = float("nan")
    del lines[47]["actor/pg_clipfrac"]
    assert judged(lines) == []


def test_every_rule_has_a_planted_curve():
    assert {name.partition(" ")[0] for name in CURVES} == {rule.name for rule in RULES}
    assert all(any(c.isdigit() for c in rule.threshold) for rule in RULES)


def test_a_policy_that_is_sure_and_right_has_not_collapsed():
    lines = planted(lambda line, k: {"actor/entropy": 0.01, **({"eval/accuracy": 0.97} if "eval/accuracy" in line else {})}, start=40)
    assert judged(lines) == []


# ── in the trainer ───────────────────────────────────────────────────────────────────────────────────────────────────

SICK = GRPO | {"rollout": {"prompts": 4, "samples_per_prompt": 2, "temperature": 1.0}, "train": {"steps": 3}}


def sick(monkeypatch, tmp_path, *overrides, steps=3):
    """A run in which the reference is the policy itself from the second step on, and what was heard of it."""
    settings = Settings.of(load_recipe(SICK, [f"train.steps={steps}", *overrides]))
    heard = []
    trainer = Trainer(settings, RunFolder.new(tmp_path, "run", "{}\n"), heard.append)
    remember = trainer._remember

    def same(inputs, batch):
        batch = remember(inputs, batch)
        return batch.with_columns(batch.levels["ref_log_prob"], ref_log_prob=batch["old_log_prob"])

    monkeypatch.setattr(trainer, "_remember", same)
    trainer.run()
    return trainer, [line for line in heard if "warning" in line]


def test_the_trainer_writes_what_it_finds_and_says_what_lasts_once(monkeypatch, tmp_path):
    trainer, heard = sick(monkeypatch, tmp_path)
    written = [json.loads(line) for line in trainer.watch.path.read_text().splitlines()]
    assert written == heard
    of = [line for line in written if line["warning"] == "ref-identical"]
    assert [(line["step"], line["severity"]) for line in of] == [(2, "error")]
    assert of[0]["place"] == {"column": "ref_log_prob"}
    assert "2 updates" not in of[0]["found"]


def test_diagnose_off_looks_at_nothing(monkeypatch, tmp_path):
    trainer, heard = sick(monkeypatch, tmp_path, "diagnose.every=0")
    assert heard == []
    assert not trainer.watch.path.exists()
    assert not any(name.startswith("groups/") for line in trainer.lines for name in line)


def test_every_k_steps_all_checks_run(monkeypatch, tmp_path):
    costs = []
    monkeypatch.setattr(
        "lossary.diagnostics.watching.inspect", lambda batch, plan, cost, step: costs.append(cost) or real(batch, plan, cost=cost)
    )
    from lossary.diagnostics import inspect as real

    sick(monkeypatch, tmp_path, "diagnose.every=2", steps=4)
    assert costs == ["full", "cheap", "full", "cheap"]


def test_a_resumed_run_drops_the_warnings_of_steps_it_takes_again(tmp_path):
    watch = Watch(None, 1, tmp_path, lambda line: None)
    watch.keep_until(3)
    watch.path.write_text('{"step": 2}\n{"step": 5}\n{"st')
    watch.keep_until(3)
    assert watch.path.read_text() == '{"step": 2}\n'


def test_the_share_of_tied_groups_is_told_by_length_of_prompt(tmp_path):
    lines = train(Settings.of(load_recipe(SICK, ["task.letters=3"])), tmp_path)[1]
    for line in lines[1:]:
        assert 0 <= line["groups/zero_variance"] <= 1
        assert line["rollout/age"] == 0
    assert {name for name in lines[1] if name.startswith("groups/zero_variance/")}


def test_health_counts_groups_by_hand():
    import torch

    from lossary import Batch

    batch = Batch.from_packed(
        [1] * 6, rewards=torch.tensor([1.0, 1, 0, 1, 0, 0]), group_ids=["a", "a", "b", "b", "c", "c"], prompt_lengths=[5, 5, 6, 6, 9, 9],
        old_log_prob=-torch.ones(6), policy_version=torch.tensor([3, 3, 4, 4, 4, 4]), per_sequence=["rewards", "prompt_lengths", "policy_version"],
    )  # fmt: skip
    told = health(batch, 7)
    assert told == {
        "groups/zero_variance": pytest.approx(2 / 3), "groups/zero_variance/prompt_4-7": 0.5, "groups/zero_variance/prompt_8-15": 1.0,
        "rollout/age": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize("torn", ['{"step": 2, "warning": "x", "evidence": {"a": 1}', '{"step": 2', ""])
def test_a_warning_that_was_cut_off_by_a_kill_is_dropped_and_a_damaged_one_is_an_error(torn, tmp_path):
    watch = Watch(None, 1, tmp_path, print)
    watch.path.write_text('{"step": 1, "warning": "x"}\n' + torn)
    watch.keep_until(5)
    assert watch.path.read_text() == '{"step": 1, "warning": "x"}\n'
    watch.path.write_text('{"step": 1, "war\n{"step": 2}\n')
    with pytest.raises(LossaryError, match=r"warnings\.jsonl:1: no line of warnings"):
        watch.keep_until(5)

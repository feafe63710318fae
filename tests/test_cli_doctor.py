"""``lossary doctor``: what it prints, what it exits with, what a machine reads, and what it does not open."""

import json

import pytest
import torch
from commands import ended, run
from safetensors.torch import save_file

from lossary import Batch, compose
from lossary.diagnostics import save_batch


@pytest.fixture
def batch():
    torch.manual_seed(0)
    old = -torch.rand(40)
    rewards = torch.tensor([1.0, 0, 0, 1])
    return Batch.from_packed(
        [10] * 4, old_log_prob=old, ref_log_prob=old - 0.1 * torch.rand(40), rewards=rewards, group_ids=["a", "a", "b", "b"]
    )


def with_nan(batch):
    x = batch["old_log_prob"].clone()
    x[23] = float("nan")
    return batch.with_columns(batch.levels["old_log_prob"], old_log_prob=x)


def test_a_healthy_batch_exits_with_0(batch, tmp_path):
    save_batch(tmp_path / "b.safetensors", batch)
    for recipe in ([], ["grpo"]):
        code, out, _ = run("doctor", str(tmp_path / "b.safetensors"), *recipe)
        assert code == 0
        assert "no errors, no warnings" in out
        assert "4 sequences, 40 tokens, 2 groups" in out


def test_a_fault_is_printed_with_its_place_and_exits_with_1(batch, tmp_path):
    save_batch(tmp_path / "b.safetensors", with_nan(batch))
    code, out, _ = run("doctor", str(tmp_path / "b.safetensors"))
    assert code == 1
    assert "error  not-finite  column 'old_log_prob', sequence 2, token 3" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "] == ["found", "why", "do"]


def test_a_machine_may_read_it(batch, tmp_path):
    save_batch(tmp_path / "b.safetensors", with_nan(batch))
    code, out, _ = run("doctor", str(tmp_path / "b.safetensors"), "--json")
    told = json.loads(out)
    assert code == 1
    assert told["findings"][0] | {"found": "", "why": "", "remedy": ""} == {
        "check": "not-finite", "severity": "error", "place": {"column": "old_log_prob", "sequence": 2, "token": 3}, "found": "", "why": "", "remedy": "",
    }  # fmt: skip
    assert set(told["skipped"]) & set(told["ran"]) == set()


def test_the_recipe_says_what_must_be_there(batch, tmp_path):
    save_batch(tmp_path / "b.safetensors", batch.without(["ref_log_prob"]))
    assert run("doctor", str(tmp_path / "b.safetensors"))[0] == 0
    code, out, _ = run("doctor", str(tmp_path / "b.safetensors"), "grpo")
    assert code == 1
    assert "ref-log-prob-missing" in out


def test_a_dumps_own_recipe_and_step_and_policy_are_used(batch, tmp_path):
    objective = compose("grpo")
    objective.memory.step = 12
    weighed = objective.weigh(objective.estimate(batch.with_columns(batch.levels["ref_log_prob"], ref_log_prob=batch["old_log_prob"])))
    current = batch["old_log_prob"].clone()
    current[5] = -70.0
    save_batch(tmp_path / "b.safetensors", weighed, objective=objective, recipe="grpo", outputs={"log_prob": current})
    code, out, _ = run("doctor", str(tmp_path / "b.safetensors"), "--json")
    found = {f["check"]: f for f in json.loads(out)["findings"]}
    assert code == 1
    assert found["ratio-clamped"]["place"] == {"column": "log_prob", "sequence": 0, "token": 5}
    assert found["ref-identical"]["severity"] == "error"
    assert "12 updates" in found["ref-identical"]["found"]


def test_somebodys_padded_tensors_are_read(tmp_path):
    mask = torch.ones(2, 3)
    mask[1, 2] = 2.0
    save_file({"response_mask": mask, "old_log_probs": -torch.rand(2, 3)}, tmp_path / "theirs.safetensors")
    code, out, _ = run("doctor", str(tmp_path / "theirs.safetensors"), "--names", "verl")
    assert code == 1
    assert "mask-values  column 'response_mask', sequence 1, token 2" in out


def test_a_run_is_judged_by_its_lines(tmp_path):
    lines = [{"step": i, "actor/pg_clipfrac": 0.5 if i > 4 else 0.01} for i in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for target in (tmp_path, tmp_path / "metrics.jsonl"):
        code, out, _ = run("doctor", str(target))
        assert (code, "warning  clip-saturated  step 7" in out, "1 warning; 8 rules" in out) == (0, True, True)
    told = json.loads(run("doctor", str(tmp_path), "--json")[1])
    assert [(w["check"], w["place"]["step"]) for w in told["warnings"]] == [("clip-saturated", 7)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.pt", b"", "can run code"), ("b.npz", b"", "can run code"), ("b.safetensors", b"nothing", "no safetensors file"),
        ("m.jsonl", b"nothing", "no metric lines"), ("m.jsonl", b"[1]\n", "no mapping"), ("gone.safetensors", None, "no such file"),
    ],
)  # fmt: skip
def test_what_it_does_not_open_it_refuses_with_a_word(name, content, said, tmp_path, monkeypatch, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, err = ended(monkeypatch, capsys, "doctor", str(tmp_path / name))
    assert code == 2
    assert said in " ".join(err.split())


def test_a_file_of_other_tensors_is_refused(tmp_path, monkeypatch, capsys):
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    code, _, err = ended(monkeypatch, capsys, "doctor", str(tmp_path / "x.safetensors"))
    assert code == 2
    assert "'response_mask'" in err


def test_help_tells_of_it():
    assert "doctor" in run("--help")[1]

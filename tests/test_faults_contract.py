"""Known faults of what a custom loss or estimator is promised: each by its number."""

import json
import sys

import pytest
import torch
from commands import run
from heads import headed, layer

import lossary
from lossary import Batch, PerSequence, PerToken, Sequences, advantage_estimator, column, compose, load_recipe, policy_loss
from lossary.trainer.loop import train
from lossary.trainer.settings import Settings

MINE = '''
"""An estimator of mine, without a decorator."""

from lossary import PerSequence

def my_fn(rewards: PerSequence, sequences, *, scale: float = 2.0) -> PerSequence:
    """Twice the centred reward."""
    return scale * (rewards - sequences.group_spread(sequences.group_mean(rewards)))
'''
SMALL = """plugins: [foo_loss.py]
policy_loss: foo-loss
advantage: rloo
task: {use: sort-letters, letters: 2}
model: {d_model: 8, layers: 1, heads: 2}
rollout: {prompts: 2, samples_per_prompt: 2}
train: {steps: 2}
evaluate: {items: 4}
"""
FOO = '''
from lossary import PerToken, Report, policy_loss

@policy_loss
def foo_loss(log_prob: PerToken, advantages: PerToken) -> tuple[PerToken, Report]:
    """The plain policy gradient, and a metric."""
    return -advantages * log_prob, {"foo": 1.0}
'''


@pytest.fixture
def my_pkg(tmp_path, monkeypatch):
    """An importable package with an estimator in it."""
    (tmp_path / "contract_pkg").mkdir()
    (tmp_path / "contract_pkg" / "adv.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "contract_pkg.adv"
    for name in [n for n in sys.modules if n.startswith("contract_pkg")]:
        del sys.modules[name]


def t(*x):
    return torch.tensor(x, dtype=torch.float64)


def test_contract_o1_a_loss_and_one_metric_of_its_own_are_enough(tmp_path):
    (tmp_path / "foo_loss.py").write_text(
        FOO.replace("PerToken, Report,", "PerToken,").replace("tuple[PerToken, Report]", "tuple[PerToken, dict]")
    )
    (tmp_path / "r.yaml").write_text(SMALL)
    _, lines = train(Settings.of(load_recipe(tmp_path / "r.yaml")), tmp_path / "run")
    steps = [line for line in lines if "actor/pg_loss" in line]
    assert [line["actor/foo"] for line in steps] == [1.0, 1.0]


def test_contract_o2_an_estimator_reads_a_flag_of_the_batch():
    valid = column("valid", level="sequence", doc="whether the sample counts")

    @advantage_estimator(scope="group")
    def of_the_valid(rewards: PerSequence, valid: PerSequence, sequences: Sequences) -> PerSequence:
        """Centre over what is valid."""
        mean = sequences.group_sum(torch.where(valid > 0, rewards, 0.0)) / sequences.group_sum(valid)
        return torch.where(valid > 0, rewards - sequences.group_spread(mean), 0.0)

    objective = compose({"policy_loss": "reinforce", "advantage": "of-the-valid"}, components=[of_the_valid], columns=[valid])
    batch = Batch.from_packed(
        [1, 1, 1], fields=[valid], valid=torch.tensor([True, False, True]), rewards=t(1, 9, 3), group_ids=[0, 0, 0], old_log_prob=t(0, 0, 0)
    )
    assert objective.estimate(batch)["advantages"].tolist() == pytest.approx([-1, 0, 1], abs=1e-9)


def test_contract_o3_a_function_and_its_import_path_are_the_same(my_pkg, tmp_path):
    import importlib

    function = importlib.import_module(my_pkg).my_fn
    (tmp_path / "r.yaml").write_text(f"policy_loss: reinforce\nadvantage: {{use: '{my_pkg}:my_fn', scale: 3}}\n")
    batch = Batch.from_packed([1, 2, 1], rewards=t(1, 9, 3), group_ids=[0, 0, 0], old_log_prob=t(0, 0, 0, 0))
    found = [
        compose(recipe).estimate(batch)["advantages"]
        for recipe in (tmp_path / "r.yaml", {"policy_loss": "reinforce", "advantage": {"use": function, "scale": 3.0}})
    ]
    assert torch.equal(*found)
    assert found[0].tolist() == pytest.approx([-10, 14, -4])


def test_contract_o4_what_was_overridden_is_what_runs_and_what_is_shown(my_pkg):
    class Mine:
        def __call__(self, log_prob, advantages):
            return -2 * advantages * log_prob

    mine = Mine()
    objective = compose("dapo", {"policy_loss": mine})
    assert objective.plan.terms[0].bound.component.function is mine
    assert "Mine" in repr(objective)
    code, out, _ = run("check", "dapo", f"advantage={my_pkg}:my_fn")
    assert (code, "my-fn" in out, "grpo" in out) == (0, True, False)
    code, out, _ = run("check", "dapo", f"advantage={my_pkg}:my_fn", "--json")
    (advantage,) = (s for s in json.loads(out)["stages"] if s["stage"] == "advantage")
    assert (advantage["use"], advantage["from"]) == ("my-fn", f"module {my_pkg}")


@pytest.mark.parametrize("way", ["log-probs", "head", "chunked head", "compiled"])
def test_contract_o5_a_users_loss_is_called_by_every_way_to_a_loss(way):
    calls = []

    @policy_loss(scope="token" if "head" in way else "sequence")
    def counted(log_prob: PerToken, advantages: PerToken) -> PerToken:
        """Count."""
        calls.append(1)
        return -advantages * log_prob

    objective = compose({"policy_loss": "counted"}, components=[counted])
    if way == "compiled":
        objective = lossary.Objective(compose({"policy_loss": "counted", "compile": True}, components=[counted]).plan, compile_with="eager")
    x = torch.randn(3, 2, 6, dtype=torch.float64)
    batch = objective.weigh(Batch.from_padded(torch.ones(3, 2), advantages=torch.ones(3, 2).double(), token_ids=torch.ones(3, 2).long()))
    if "head" in way:
        out = headed(objective, batch, x.requires_grad_(), layer(), chunk=2 if way == "chunked head" else 64)
    else:
        out = objective.loss(batch, log_prob=x[..., 0].clone().requires_grad_())
    out.total.backward()
    assert len(calls) >= 1


def test_contract_o6_a_loss_per_token_is_there_without_subclassing():
    old, new, advantages = t(-1, -2, -1.5), t(-0.5, -2.5, -1.5), t(1, -1, 2)
    ppo = lossary.catalog().get("policy_loss", "ppo-clip")
    per_token, _ = ppo.function(new, old, advantages, **ppo.params().model_dump())
    ratio = (new - old).exp()
    assert torch.allclose(per_token, torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages))
    batch = Batch.from_packed([1, 2], old_log_prob=old, advantages=advantages)
    for aggregation, value in {
        "token-mean": per_token.mean(),
        "seq-mean-token-mean": (per_token[0] + per_token[1:].mean()) / 2,
    }.items():
        objective = compose({"policy_loss": "ppo-clip", "aggregation": aggregation})
        assert objective.loss(objective.weigh(batch), log_prob=new).total.item() == pytest.approx(value.item(), abs=1e-12)

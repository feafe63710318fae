"""The input checks: every planted fault is found under its name and at its place, and healthy batches are left in peace."""

import time

import pytest
import torch
from planting import FAULTS

from lossary import Batch, ColumnError, compose, load_recipe
from lossary.diagnostics import CHECKS, Inspection, inspect
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

STEPS = 20


def rollouts(folder, recipe, steps, *more):
    """``(optimizer steps before it, batch, estimated)`` of each of a recipe's first rollouts."""
    settings = Settings.of(load_recipe(recipe, [f"train.steps={steps}", "evaluate.items=4", "evaluate.every=1000", *more]))
    trainer = Trainer(settings, RunFolder.new(folder, "run", "{}\n"))
    seen, estimate = [], trainer.objective.estimate

    def listening(batch: Batch) -> Batch:
        seen.append((trainer.objective.memory.step, batch, estimate(batch)))
        return seen[-1][2]

    trainer.objective.estimate = listening
    trainer.run()
    return seen


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The demo's first rollouts."""
    return rollouts(tmp_path_factory.mktemp("runs"), "demo", STEPS)


OTHERS = {
    "dapo": ("dapo", ()),
    "dr-grpo": ("dr-grpo", ()),
    "rloo": ("rloo", ()),
    "reinforce-plus-plus": ("reinforce-plus-plus", ()),
    "a ratio of whole sequences": ("demo", ("policy_loss=gspo", "aggregation=seq-mean-token-mean")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_healthy_batches_of_other_recipes_are_left_in_peace(name, tmp_path):
    recipe, more = OTHERS[name]
    plan = compose(load_recipe(recipe, more)).plan
    found = rollouts(tmp_path, recipe, 2, *more)
    assert len(found) == 2
    for step, raw, estimated in found:
        for batch in (raw, estimated):
            assert list(inspect(batch, plan, step=step)) == []


def test_what_a_tool_said_between_two_turns_is_no_hole():
    mask, turns = torch.tensor([[1, 1, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1, 1]])
    assert "mask-holes" in inspect(mask=mask, turns=turns).ran
    assert said(inspect(mask=mask, turns=turns)) == []
    assert said(inspect(mask=mask, turns=0 * turns)) == [("mask-holes", "warning", {"column": "response_mask", "sequence": 0, "token": 1})]


def test_the_later_steps_of_a_first_rollout_have_the_reference_of_the_first(healthy):
    _, raw, _ = healthy[0]
    assert torch.equal(raw["ref_log_prob"], raw["old_log_prob"])
    assert list(inspect(raw, compose("demo"), step=3)) == []
    newer = raw.with_columns(raw.levels["policy_version"], policy_version=raw["policy_version"] + 4)
    assert [(f.check, f.severity) for f in inspect(newer, compose("demo"), step=4)] == [("ref-identical", "error")]


def test_a_ratio_of_whole_sequences_is_not_judged_token_by_token(healthy):
    batch, noise = healthy[-1][2], torch.randn(sum(healthy[-1][2].lengths), generator=torch.Generator().manual_seed(0))
    even = batch.sequences.spread(batch.sequences.mean(noise))
    moved = batch.with_columns(batch.levels["old_log_prob"], log_prob=batch["old_log_prob"] + 0.5 * (noise - even))
    recipes = {loss: {"policy_loss": loss, "aggregation": "seq-mean-token-mean"} for loss in ("gspo", "ppo-clip")}
    told = {loss: {f.check for f in inspect(moved, compose(r), step=40)} for loss, r in recipes.items()}
    assert "clip-saturated" not in told["gspo"]
    assert "clip-saturated" in told["ppo-clip"]


def test_healthy_batches_are_left_in_peace(healthy):
    demo = compose("demo")
    assert len(healthy) == STEPS
    for step, raw, estimated in healthy:
        for batch in (raw, estimated):
            assert list(inspect(batch, demo, step=step)) == []
        for mini in demo.minibatches(estimated, 4, seed=step):
            assert list(inspect(demo.weigh(mini), demo, step=step)) == []


def test_a_batch_alone_is_left_in_peace_too(healthy):
    for _, raw, estimated in healthy[1:]:
        assert list(inspect(raw)) == list(inspect(estimated)) == []


def said(found: Inspection) -> list:
    return [(f.check, f.severity, {k: v for k, v in vars(f.place).items() if v is not None}) for f in found]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.check}{f'-{f.kind}' if f.kind else ''}")
def test_a_planted_fault_is_found(fault, healthy):
    sick = fault.plant(healthy[-1][2])
    found = inspect(sick, compose(fault.recipe), step=fault.step)
    hits = [(severity, place) for check, severity, place in said(found) if check == fault.check]
    assert any(severity == fault.severity and fault.place.items() <= place.items() for severity, place in hits), said(found)
    assert all(f.why and f.remedy and f.found for f in found)


PADDED = {
    "mask-values": ("error", {"column": "response_mask", "sequence": 1, "token": 2}),
    "rewards-outside-mask": ("error", {"column": "token_rewards", "sequence": 0, "token": 5}),
    "advantages-outside-mask": ("warning", {"column": "advantages", "sequence": 2, "token": 5}),
    "float-ids": ("warning", {"column": "token_ids"}),
    "padding-share": ("warning", {"column": "response_mask"}),
    "mask-short": ("warning", {"column": "response_mask", "sequence": 0, "token": 3}),
}


def padded() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Somebody's tensors: three rows of 5 tokens, six wide."""
    draw = torch.Generator().manual_seed(1)
    mask = (torch.arange(6) < torch.tensor([[5], [5], [5]])).float()
    old = -torch.rand(3, 6, generator=draw) * mask
    advantages = torch.tensor([[1.0], [-1.0], [0.5]]) * mask
    return mask, {
        "old_log_prob": old,
        "advantages": advantages,
        "token_rewards": torch.eye(3, 6) * advantages,
        "token_ids": (40 * torch.rand(3, 6)).long(),
    }


def test_somebodys_healthy_tensors_are_left_in_peace():
    mask, columns = padded()
    assert list(inspect(mask=mask, **columns)) == []
    theirs = {"old_log_probs": columns["old_log_prob"], "advantages": columns["advantages"], "uid": ["a", "b", "b"]}
    assert [f.check for f in inspect(mask=mask, names="verl", **theirs)] == ["singleton-groups"]


@pytest.mark.parametrize("check", PADDED)
def test_a_fault_of_padded_tensors_is_found(check):
    mask, columns = padded()
    if check == "mask-values":
        mask[1, 2] = 0.5
    elif check == "rewards-outside-mask":
        columns["token_rewards"][0, 5] = 1.0
    elif check == "advantages-outside-mask":
        columns["advantages"][2, 5] = 3.0
    elif check == "mask-short":
        columns["rollout_log_prob"] = columns["old_log_prob"].clone()
        mask[0, 3:] = 0
        columns["advantages"] = columns["advantages"] * mask
    elif check == "float-ids":
        columns["token_ids"] = columns["token_ids"].float()
    else:
        mask = torch.nn.functional.pad(mask, (0, 4))
        columns = {name: torch.nn.functional.pad(x, (0, 4)) for name, x in columns.items()}
    assert said(inspect(mask=mask, **columns)) == [(check, *PADDED[check])]


def test_every_check_has_a_planted_fault():
    planted = {f.check for f in FAULTS} | set(PADDED) | {"trailing-repeats"}
    assert planted == {c.name for c in CHECKS}
    assert len({c.name for c in CHECKS}) == len(CHECKS)
    assert len(FAULTS) + len(PADDED) >= 40


def test_a_tail_of_end_tokens_is_found():
    ids = torch.arange(5, 65).reshape(3, 20)
    ids[1, 8:], ids[2, 11:] = 2, 2
    found = inspect(mask=torch.ones(3, 20), token_ids=ids)
    assert said(found) == [("trailing-repeats", "warning", {"column": "token_ids", "sequence": 1, "token": 8})]
    assert "12 times, token 2" in found.findings[0].found


def test_one_fault_is_not_reported_as_ten(healthy):
    x = healthy[-1][2]["old_log_prob"].clone()
    x[100] = float("nan")
    found = inspect(healthy[-1][2].with_columns(healthy[-1][2].levels["old_log_prob"], old_log_prob=x), compose("demo"), step=40)
    assert {f.check for f in found} == {"not-finite"}


def test_a_nan_among_a_million_tokens_is_named_in_time():
    draw = torch.Generator().manual_seed(0)
    old = -torch.rand(1_000_000, generator=draw)
    batch = Batch.from_packed([1000] * 1000, old_log_prob=old, ref_log_prob=old - 0.01 * torch.rand(1_000_000, generator=draw))
    broken = batch["ref_log_prob"].clone()
    broken[765_432] = float("nan")
    batch = batch.with_columns(batch.levels["ref_log_prob"], ref_log_prob=broken)
    began = time.perf_counter()
    (found,) = inspect(batch)
    took = time.perf_counter() - began
    assert said(Inspection((found,), ()))[0] == ("not-finite", "error", {"column": "ref_log_prob", "sequence": 765, "token": 432})
    assert took < 5  # the promise itself, with two orders of magnitude to spare


def test_cheap_is_a_part_of_full(healthy):
    batch = healthy[-1][2]
    cheap, full = (inspect(batch, compose("demo"), step=40, cost=cost) for cost in ("cheap", "full"))
    assert set(cheap.ran) < set(full.ran)
    assert set(full.ran) | set(full.skipped) == {c.name for c in CHECKS}
    assert full.skipped["critic-flat"] == "no column 'old_values'"


def test_an_objective_can_be_asked(healthy):
    step, raw, _ = healthy[3]
    demo = compose("demo")
    assert list(demo.inspect(raw)) == []
    same = raw.with_columns(raw.levels["ref_log_prob"], ref_log_prob=raw["old_log_prob"])
    assert [f.severity for f in demo.inspect(same)] == ["warning"]
    assert [f.severity for f in demo.inspect(same, step=step)] == ["error"]
    assert list(demo.inspect(same, step=0)) == []


def test_what_cannot_be_inspected_says_so():
    with pytest.raises(ColumnError, match="either a batch, or mask"):
        inspect()
    with pytest.raises(ColumnError, match=r"no column 'old_logprob'.*'old_log_prob'"):
        inspect(mask=torch.ones(1, 2), old_logprob=torch.zeros(1, 2))
    with pytest.raises(ColumnError, match=r"has the shape \[3\]; expected \[1, 2\] or \[1\]"):
        inspect(mask=torch.ones(1, 2), old_log_prob=torch.zeros(3))

"""A step that was left out says who broke it, and its batch can be replayed."""

import math

import pytest
import torch
import torch.distributed as dist  # noqa: TID251
from ranked import on_ranks

from lossary import PerToken, load_recipe, policy_loss
from lossary.diagnostics import localise, skipping
from lossary.diagnostics.dump import load_batch
from lossary.diagnostics.packing import DumpError
from lossary.diagnostics.skipping import KEPT
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

TINY = {
    "task": {"use": "sort-letters", "letters": 2}, "model": {"d_model": 8, "layers": 1, "heads": 2},
    "rollout": {"prompts": 2, "samples_per_prompt": 2}, "train": {"steps": 6, "lr": 1e-2, "checkpoint_every": 0, "max_skipped": 9},
    "evaluate": {"every": 9, "items": 2}, "diagnose": {"every": 0},
}  # fmt: skip


@policy_loss
def rooted(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Take the root of what is negative."""
    return log_prob.sqrt() * advantages


def run_of(recipe, tmp_path, *overrides):
    return Trainer(Settings.of(load_recipe(recipe, overrides)), RunFolder.new(tmp_path, "r", "{}\n"))


def test_the_cause_names_term_component_sequence_and_token_and_the_first_batches_are_kept(tmp_path):
    trainer = run_of({"advantage": "grpo", "policy_loss": rooted} | TINY, tmp_path)
    lines = trainer.run()
    whole = lines[1]["skipped_because"]
    assert whole.startswith("the loss is not finite; the step was not taken and nothing was changed. It comes from policy_loss 'rooted'.")
    assert "The loss of term 'policy' (policy_loss 'rooted') is broken: sqrt at test_trainer_skips.py:" in whole
    assert "gives nan at sequence 0, token 0; there " in whole
    assert "log_prob = -" in whole
    assert whole.endswith(" The batch is in skipped-1-1.safetensors.")
    assert lines[-1]["skipped_steps"] == 6
    assert not lines[-1]["skipped_because"].endswith(".safetensors.")
    assert sorted(p.name for p in trainer.folder.path.glob("skipped*")) == [f"skipped-{i}-{i}.safetensors" for i in range(1, KEPT + 1)]


def test_what_is_kept_can_be_asked_again(tmp_path):
    trainer = run_of({"advantage": "grpo", "policy_loss": rooted} | TINY, tmp_path, "train.steps=1")
    trainer.run()
    dump = load_batch(trainer.folder.path / "skipped-1-1.safetensors")
    found = localise(trainer.objective, dump.batch, dump.outputs)
    assert (found.term, found.component, found.sequence, found.token) == ("policy", "policy_loss 'rooted'", 0, 0)
    assert math.isnan(found.value)
    assert "policy_loss 'rooted'" in dump.note


def test_a_critic_that_breaks_is_named_with_its_column(tmp_path, monkeypatch):
    recipe = {"advantage": ["gae", "whiten"], "policy_loss": "ppo-clip", "value_loss": "clipped-mse"} | TINY
    trainer = run_of(recipe, tmp_path, "train.steps=1")
    remembered = trainer._remember

    def broken(inputs, batch):
        batch = remembered(inputs, batch)
        with torch.no_grad():
            trainer.critic.value_head.weight.fill_(math.inf)
        return batch

    monkeypatch.setattr(trainer, "_remember", broken)
    monkeypatch.setattr(trainer, "save", lambda: None)
    told = trainer.run()[-1]["skipped_because"]
    assert "of term 'value' (value_loss 'clipped-mse') is broken: column 'values' is " in told
    assert " at sequence 0, token 0; " in told


@pytest.mark.parametrize(
    ("kind", "said"),
    [(DumpError, "The batch was not kept: no room"), (ZeroDivisionError, "The cause was not found: ZeroDivisionError: no room")],
)
def test_a_full_disk_or_a_term_that_raises_does_not_end_the_run(kind, said, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise kind("no room")

    monkeypatch.setattr(skipping, "blame_and_dump", fails)
    lines = run_of({"advantage": "grpo", "policy_loss": rooted} | TINY, tmp_path, "train.steps=1").run()
    assert lines[-1]["skipped_because"].endswith(said)


@policy_loss
def broken_on_one(log_prob: PerToken) -> PerToken:
    """Divide by zero on the second rank alone."""
    return log_prob / (1.0 - dist.get_rank())


def skipping_on(rank, size, folder):
    """One run of which the second rank's loss breaks."""
    at = RunFolder(folder / "run")
    if rank == 0:
        at.path.mkdir()
        at.keep_recipe("{}\n")
    dist.barrier()
    for how in ("ddp", "fsdp2"):
        settings = Settings.of(load_recipe({"policy_loss": broken_on_one} | TINY, ["train.steps=1", f"train.parallel={how}"]))
        yield Trainer(settings, at).run()[-1]["skipped_because"]


def test_of_several_ranks_the_one_with_the_cause_is_named(tmp_path):
    one, other = on_ranks(2, skipping_on, tmp_path)
    assert one == other
    assert len(one) == 2
    for told in one:
        first, second = told.partition(" On rank 1: ")[::2]
        assert first.endswith(" On rank 0: No term is broken in the batch, which is in skipped-1-1-rank-0.safetensors.")
        assert second.startswith("The loss of term 'policy' (policy_loss 'broken-on-one') is broken: div at test_trainer_skips.py:")
        assert second.endswith(" The batch is in skipped-1-1-rank-1.safetensors.")

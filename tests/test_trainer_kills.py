"""Processes that are killed outright, at random moments, inside the writing of a checkpoint too: resumed, they end as the run in one piece."""

import multiprocessing
import random
import shutil
import time
import traceback

import pytest
import torch
from checkpoints import RECIPE, same

from lossary import load_recipe
from lossary.trainer import checkpoint
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

LONGER = ("train.steps=12", "rollout.staleness=1")
LIMIT = 120
"""Seconds until one life of a run is taken for one that hangs."""


def live(folder, said):
    """One life of a run: begin it, or go on from its checkpoint, to the end unless it is killed."""
    try:
        torch.set_num_threads(1)
        run = folder / "run"
        if run.exists() and not checkpoint.newest(run):
            shutil.rmtree(run)  # killed before its first checkpoint: there is nothing to go on from
        if begun := not run.exists():
            run.mkdir()
        at, recipe = RunFolder(run), load_recipe(folder / "r.yaml", LONGER)
        if begun:
            at.keep_recipe(recipe.text())
        trainer = Trainer(Settings.of(recipe), at)
        if not begun:
            trainer.resume()
        trainer.run()
    except Exception:
        said.write_text(traceback.format_exc())
        raise


@pytest.fixture(scope="module")
def nursery():
    """Where processes are born with everything imported, so that a life lasts as long as its steps."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lossary.trainer.loop", "torch._dynamo"])
    return context


@pytest.fixture(scope="module")
def straight(tmp_path_factory, nursery):
    """The run in one piece, and how long it took."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "r.yaml").write_text(RECIPE)
    process = nursery.Process(target=live, args=(folder, folder / "said"))
    process.start()
    ended(process, folder)
    lines = RunFolder(folder / "run").keep_until(10**9, write=False)
    return RunFolder(folder / "run"), lines[-1]["time/wall_seconds"]


def ended(process, folder):
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("it hangs")
    assert process.exitcode == 0, (folder / "said").read_text()


def killed_and_resumed(folder, nursery, draw, kills, whole):
    """A run that is killed that often before it may come to its end; returns how many kills left a half-written checkpoint behind."""
    folder.mkdir()
    (folder / "r.yaml").write_text(RECIPE)
    halves = 0
    for _ in range(kills):
        process = nursery.Process(target=live, args=(folder, folder / "said"))
        process.start()
        until, writing = time.monotonic() + draw.uniform(0.0, whole / kills), draw.random() < 0.7
        while process.is_alive() and time.monotonic() < until:
            time.sleep(0.0005)
        if writing:  # wait for the next checkpoint to be begun, and a little more
            late = time.monotonic() + LIMIT
            while process.is_alive() and not any((folder / "run").glob("checkpoint-*.partial")) and time.monotonic() < late:
                pass
            time.sleep(draw.uniform(0.0, 0.004))
        process.kill()
        process.join()
        halves += any((folder / "run").glob("checkpoint-*.partial"))
    process = nursery.Process(target=live, args=(folder, folder / "said"))
    process.start()
    ended(process, folder)
    return halves


def test_a_run_that_is_killed_three_times_ends_as_the_run_in_one_piece(tmp_path, nursery, straight):
    whole, seconds = straight
    killed_and_resumed(tmp_path / "run", nursery, random.Random(1), 3, seconds)
    same(RunFolder(tmp_path / "run" / "run"), whole)


@pytest.mark.slow
def test_twenty_runs_that_are_killed_end_as_the_run_in_one_piece(tmp_path, nursery, straight):
    whole, seconds = straight
    halves = 0
    for seed in range(20):
        halves += killed_and_resumed(tmp_path / str(seed), nursery, random.Random(seed), 1 + seed % 3, seconds)
        same(RunFolder(tmp_path / str(seed) / "run"), whole)
    assert halves >= 5  # inside the writing of a checkpoint, too

"""One run on one, two and four ranks, whole or in parts, in few or many micro-batches: the same losses, metrics and weights."""

import json
import multiprocessing
import time
import warnings

import pytest
import torch
import torch.distributed as dist  # noqa: TID251

from lossary import load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.ranks import weights
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

RECIPE = """
advantage: [{use: gae, lam: 0.9}, whiten]
policy_loss: ppo-clip
value_loss: {use: clipped-mse, coef: 0.5}
entropy: {coef: 0.01}
kl:
  - {use: k1, apply: reward, coef: {use: adaptive-kl, kl_coef: 0.5, target: 1e-4, horizon: 20}}
  - {use: k3, coef: 0.1}
task: {use: sort-letters, letters: 2}
model: {d_model: 16, layers: 1, heads: 2, dtype: float64}
warm_up: {steps: 2, batch: 5}
rollout: {prompts: 5, samples_per_prompt: 2}
train: {steps: 5, lr: 1e-2, checkpoint_every: 0}
evaluate: {every: 9, items: 8}
"""
LIMIT = 240
"""Seconds until a rank that waits for another is taken for one that waits for ever."""


def work(rank, size, cases, folder, queue):
    """Run all cases on one rank and hand back what came out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    found = {}
    for name, overrides in cases.items():
        at = RunFolder(folder / f"run-{name}")
        if rank == 0:
            at.path.mkdir()
            at.keep_recipe("{}\n")
        if size > 1:
            dist.barrier()
        trainer = Trainer(Settings.of(load_recipe(folder / "r.yaml", overrides)), at)
        lines = trainer.run()
        trained = {
            f"{r}.{k}": x.tolist() for r, m in (("policy", trainer.policy), ("critic", trainer.critic)) for k, x in weights(m).items()
        }
        found[name] = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines], trained
    queue.put((rank, json.dumps(found)))
    queue.close()
    queue.join_thread()
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def ran(size, cases, folder):
    """Run cases on some ranks; one that hangs fails within the limit."""
    folder.mkdir()
    (folder / "r.yaml").write_text(RECIPE)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(rank, size, cases, folder, queue)) for rank in range(size)]
    for p in processes:
        p.start()
    results, deadline = {}, time.monotonic() + LIMIT
    try:
        while len(results) < size:
            assert time.monotonic() < deadline, f"only ranks {sorted(results)} of {size} came to an end"
            assert not any(p.exitcode for p in processes), [p.exitcode for p in processes]
            try:
                rank, said = queue.get(timeout=1)
            except Exception:
                continue
            results[rank] = json.loads(said)
        for p in processes:
            p.join(30)
    finally:
        for p in processes:
            p.kill() if p.is_alive() else None
    for rank in range(1, size):
        assert results[rank].keys() == results[0].keys()
        assert all(results[rank][name][1] == results[0][name][1] for name in cases)
    return results[0]


def same(found, wanted, tolerance, who):
    """Lines and weights are equal, but for what only several ranks say."""
    for a, b in zip(found[0], wanted[0], strict=True):
        a = {k: v for k, v in a.items() if not k.startswith("rank_tokens/")}
        assert a.keys() == b.keys(), who
        for key in a:
            assert a[key] == pytest.approx(b[key], rel=tolerance, abs=tolerance), (who, a["step"], key)
    assert found[1].keys() == wanted[1].keys()
    for name, x in found[1].items():
        torch.testing.assert_close(torch.tensor(x), torch.tensor(wanted[1][name]), rtol=tolerance, atol=tolerance, msg=f"{who} {name}")


def budget(parts):
    """Micro-batches: the whole minibatch at once, or cut by tokens."""
    return {1: [], 3: ["train.max_tokens=30"], 7: ["train.max_tokens=16"]}[parts]


def cases(parallel, parts=(1, 3, 7), **more):
    """Every case that a number of ranks is to go through."""
    tails = {"plain": [], "minibatches": ["train.minibatches=3", "train.steps=2"], **more}
    return {
        f"{tied}-{how}-{n}-{tail}": [f"model.tied={tied}", f"train.parallel={how}", *budget(n), *extra]
        for tied in ("true", "false") for how in parallel for n in parts for tail, extra in tails.items()
    }  # fmt: skip


def test_two_ranks_train_as_one(tmp_path):
    some = {k: v for k, v in cases(["ddp", "fsdp2"], parts=[3]).items() if "minibatches" in k}
    one, two = ran(1, some, tmp_path / "one"), ran(2, some, tmp_path / "two")
    for name in some:
        same(two[name], one[name], 1e-10, name)
        counts = [{k: v for k, v in line.items() if k.startswith("rank_tokens/")} for line in two[name][0][1:]]
        assert all(c["rank_tokens/0"] != c["rank_tokens/1"] and sum(c.values()) > 0 for c in counts)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_and_micro_batches_do_not_change_a_run(size, tmp_path):
    wanted = ran(1, cases(["ddp"], parts=[1]), tmp_path / "wanted")
    found = ran(size, cases(["ddp", "fsdp2"] if size > 1 else ["ddp"]), tmp_path / "found")
    for name, run in found.items():
        tied, _, _, tail = name.split("-")
        same(run, wanted[f"{tied}-ddp-1-{tail}"], 1e-10, f"{size} ranks, {name}")

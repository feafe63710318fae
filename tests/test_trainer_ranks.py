"""One run on one, two and four ranks, whole weights or parts of them, in few or many micro-batches: the same losses, metrics and weights."""

import shutil
import zlib

import pytest
import torch
import torch.distributed as dist  # noqa: TID251
from ranked import on_ranks

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
evaluate: {every: 1, items: 4}
"""
GROUPS = """
filter: group-spread
advantage: grpo
policy_loss: ppo-clip
"""


def in_parts(trainer, parts, seen):
    """Have every optimizer step cut into so many micro-batches, and note how many weights of this rank's are not zero."""
    real = trainer.objective.split

    def split(batch, max_tokens=None):
        if batch.totals is None:
            return real(batch, max_tokens)
        cut = real(batch, parts=parts)
        seen.append([sum(int(w.count_nonzero()) for w in part.weights.values()) for part in cut])
        return cut

    trainer.objective.split = split


def one(case, name, folder, rank, size):
    """Go through one case: overrides, number of micro-batches, and another case's run to go on with."""
    overrides, parts, after = case
    at, seen = RunFolder(folder / f"run-{name}"), []
    if rank == 0:
        if after:
            shutil.copytree(after, at.path)
        else:
            at.path.mkdir()
            at.keep_recipe("{}\n")
    if size > 1:
        dist.barrier()
    trainer = Trainer(Settings.of(load_recipe(folder / "r.yaml", overrides)), at)
    if trainer.settings.plan.filters:  # every other answer is right, so about every other group is tied and goes
        type(trainer.task).reward = lambda _, item, said: float(zlib.crc32(said.encode()) % 2)
    if after:
        trainer.resume()
    in_parts(trainer, parts, seen)
    lines = trainer.run()
    roles = {"policy": trainer.policy, "critic": trainer.critic}
    trained = {f"{r}.{k}": x.tolist() for r, m in roles.items() if m is not None for k, x in weights(m).items()}
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines], trained, seen


def every(rank, size, folder, cases):
    """Run all cases on one rank and yield what came out."""
    for name, case in cases.items():
        yield name, one(case, name, folder, rank, size)


def ran(size, cases, folder, recipe=RECIPE):
    """Run cases on some ranks, all in one group of processes, which come to the same end."""
    folder.mkdir()
    (folder / "r.yaml").write_text(recipe)
    results = [dict(told) for told in on_ranks(size, every, folder, cases)]
    for rank in range(1, size):
        assert results[rank].keys() == results[0].keys()
        for name in cases:
            assert results[rank][name][1] == results[0][name][1], (rank, name)
            assert [len(s) for s in results[rank][name][2]] == [len(s) for s in results[0][name][2]], (rank, name)
    return results[0], [{name: run[2] for name, run in results[rank].items()} for rank in range(size)]


def plain(lines, only=None):
    """Lines without what only several ranks say."""
    return [{k: v for k, v in x.items() if not k.startswith("rank_tokens/") and (only is None or k in only)} for x in lines]


def same_lines(found, wanted, tolerance, who, only=None, near_zero=None):
    """Equal to a relative tolerance, and by default to the same figure as an absolute one, for what is zero but for rounding."""
    near_zero = tolerance if near_zero is None else near_zero
    for a, b in zip(plain(found, only), plain(wanted, only), strict=True):
        assert a.keys() == b.keys(), who
        for key in a:
            assert a[key] == pytest.approx(b[key], rel=tolerance, abs=near_zero), (who, key)


def same(found, wanted, who, tolerance=1e-10):
    """Lines and final weights are equal."""
    same_lines(found[0], wanted[0], tolerance, who)
    assert found[1].keys() == wanted[1].keys()
    for name, x in found[1].items():
        torch.testing.assert_close(torch.tensor(x), torch.tensor(wanted[1][name]), rtol=tolerance, atol=tolerance, msg=f"{who} {name}")


def case(how="ddp", parts=1, *more, tied="true", after=None):
    return [f"model.tied={tied}", f"train.parallel={how}", *more], parts, after


def cases(parallel, parts=(1, 3, 7), *more):
    """Every way to cut a run: head tied or separate, whole weights or parts, micro-batches."""
    return {f"{tied}-{how}-{n}": case(how, n, *more, tied=tied) for tied in ("true", "false") for how in parallel for n in parts}


LOSSES = {"actor/loss", "critic/loss", "actor/entropy", "actor/grad_norm", "critic/grad_norm"}
BOTH = ("ddp", "fsdp2")


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The runs on one rank in one piece, by whether the head is tied."""
    folder = tmp_path_factory.mktemp("wanted")
    return ran(1, cases(["ddp"], [1]), folder / "double")[0]


def test_two_ranks_with_unequal_work_train_as_one(tmp_path, wanted):
    some = {how: case(how, 3, "train.steps=2") for how in BOTH}
    found, work = ran(2, some, tmp_path / "two")
    for how in BOTH:
        same_lines(found[how][0], wanted["true-ddp-1"][0][:3], 1e-10, how)
        counts = [{k: v for k, v in line.items() if k.startswith("rank_tokens/")} for line in found[how][0][1:]]
        assert all(0 < c["rank_tokens/0"] < c["rank_tokens/1"] for c in counts)
        assert all(len(step) == 3 for rank in work for step in rank[how])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_and_micro_batches_do_not_change_a_run(size, tmp_path, wanted):
    found, work = ran(size, cases(BOTH if size > 1 else ["ddp"]), tmp_path / "found")
    for name, run in found.items():
        tied, _, parts = name.split("-")
        assert len(run[2]) == 5
        assert all(len(step) == int(parts) for rank in work for step in rank[name])
        same(run, wanted[f"{tied}-ddp-1"], f"{size} ranks, {name}")


@pytest.mark.slow
def test_a_rank_without_a_valid_token_neither_hangs_nor_changes_the_run(tmp_path):
    recipe = GROUPS + RECIPE[RECIPE.index("task:") :]
    one = ran(1, {"whole": case()}, tmp_path / "one", recipe)[0]["whole"]
    found, work = ran(4, {f"{how}-{n}": case(how, n) for how in BOTH for n in (1, 3)}, tmp_path / "four", recipe)
    for name, run in found.items():
        same(run, one, name)
        shares = [[sum(rank[name][step]) for rank in work] for step in range(5)]
        assert any(0 in share and any(share) for share in shares)


@pytest.mark.slow
def test_a_run_goes_on_with_other_ranks_and_other_parts_of_weights(tmp_path, wanted):
    begun = ran(2, {how: case(how, 1, "train.steps=3") for how in BOTH}, tmp_path / "begun")[0]
    assert all(len(run[0]) == 4 for run in begun.values())
    for size in (1, 4):
        on = {
            f"{a}-{b}": case(b, 3, after=str(tmp_path / "begun" / f"run-{a}"))
            for a in BOTH for b in BOTH
        }  # fmt: skip
        found, _ = ran(size, on, tmp_path / f"on-{size}")
        for name, run in found.items():
            assert len(run[2]) == 2
            same(run, wanted["true-ddp-1"], f"2 to {size} ranks, {name}")


@pytest.mark.slow
def test_a_policy_without_its_adapters_is_the_reference_on_all_ranks(tmp_path):
    recipe = RECIPE.replace("warm_up: {steps: 2, batch: 5}", "reference: {adapters_off: true}").replace("use: k3", "use: full")
    more = ["model.lora_rank=2", "train.steps=3"]
    wanted = ran(1, {tied: case("ddp", 1, *more, tied=tied) for tied in ("true", "false")}, tmp_path / "one", recipe)[0]
    assert all(abs(run[0][-1]["actor/kl_loss"]) > 1e-9 for run in wanted.values())
    for name, run in ran(2, cases(BOTH, [2], *more), tmp_path / "two", recipe)[0].items():
        same(run, wanted[name.split("-")[0]], f"2 ranks, {name}")


@pytest.mark.slow
def test_in_single_precision_every_step_has_the_same_loss_and_gradient_norm(tmp_path):
    """Weights are left out: where a gradient is all but zero, Adam makes a step of full size out of the rounding's sign.

    Whitened advantages make a policy loss of all but zero, of which no relative error can be told; entropy keeps the actor's loss away from it.
    """
    recipe = RECIPE.replace("entropy: {coef: 0.01}", "entropy: {coef: 0.5}")
    assert recipe != RECIPE
    single = "model.dtype=float32"
    one = ran(1, cases(["ddp"], [1], single), tmp_path / "one", recipe)[0]
    for run in one.values():
        steps = plain(run[0], LOSSES)[1:]
        assert len(steps) == 5
        assert all(step.keys() == LOSSES and abs(step["actor/loss"]) > 0.1 for step in steps)
    for size in (1, 2, 4):
        found, work = ran(size, cases(BOTH if size > 1 else ["ddp"], (1, 3, 7), single), tmp_path / str(size), recipe)
        for name, run in found.items():
            tied, _, parts = name.split("-")
            assert all([len(step) for step in rank[name]] == [int(parts)] * 5 for rank in work)
            same_lines(run[0], one[f"{tied}-ddp-1"][0], 1e-5, f"{size} ranks, {name}", LOSSES, near_zero=0)

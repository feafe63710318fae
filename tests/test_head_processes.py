"""The head in two processes: data parallel and sharded weights give the gradients of one process."""

import multiprocessing
import warnings

import pytest
import torch
import torch.distributed as dist  # noqa: TID251
from heads import WIDTH, WORDS, composed, error, hidden_of, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID251
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: TID251
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: TID251

import lossary
from lossary import LossaryError, LossHead

PPO = {"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}
RECIPES = {"one pass": PPO, "recompute": {"policy_loss": "gspo", "entropy": 0.1}}


KINDS = ("ddp", "units", "one unit", "half")
"""The head in a DDP model; in a unit of FSDP2 of its own or of the tied embedding; in the model's; in a unit of half precision."""


class Gloo:
    """Ranks over a process group that averages gradients."""

    grad_average = 2

    def sum(self, x):
        out = x.clone()
        dist.all_reduce(out)
        return out

    def max(self, x):
        out = x.clone()
        dist.all_reduce(out, dist.ReduceOp.MAX)
        return out

    def gather(self, x):
        found = [None, None]
        dist.all_gather_object(found, x)
        return torch.cat(found)


class Model(nn.Module):
    """A body and a head, whose weight may be that of the embedding."""

    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(WORDS, WIDTH, dtype=torch.float64)
        self.body = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        linear = nn.Linear(WIDTH, WORDS, bias=not tied, dtype=torch.float64)
        if tied:
            linear.weight = self.embedding.weight
        self.lm_head = LossHead(linear, scale=0.7, chunk_tokens=4)

    def forward(self, ids, noise, micro, objective):
        hidden = torch.tanh(self.body(self.embedding(ids)) + noise)
        return objective.loss(micro, policy=self.lm_head.on(hidden)).total


def gradients(model, ranks, recipe, rows):
    """Gradients after one step of some of the world's rows, in two micro-batches, under the names of the parameters."""
    where = world(2, rows=8)
    noise, ids = hidden_of(where), where.columns["token_ids"]
    objective = composed(recipe)
    if ranks is not None:
        objective = lossary.Objective(objective.plan, ranks)
    batch = objective.weigh(where.batch(rows))
    for micro in objective.split(batch, parts=2):
        chosen = torch.tensor(rows)[micro.rows]
        model(ids[chosen], noise[chosen], micro, objective).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def whole(x):
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def wrapped(kind, tied):
    model = Model(tied)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (2,))
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if kind == "half" else {"mesh": mesh}
    if kind != "one unit":
        fully_shard([model.embedding, model.lm_head] if tied else model.lm_head, **options)
    fully_shard(model, **options)
    return model


def _work(rank, path, queue):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    found = {}
    for kind in KINDS:
        for tied in (False, True):
            for name, recipe in RECIPES.items():
                got = gradients(wrapped(kind, tied), Gloo(), recipe, [0, 1, 2, 3] if rank == 0 else [4, 5, 6, 7])
                found[kind, tied, name] = {k.removeprefix("module."): v.tolist() for k, v in got.items()}
    elsewhere, parallel = wrapped("units", False).lm_head, nn.Linear(WIDTH, 8, bias=False)
    parallel.weight = nn.Parameter(distribute_tensor(parallel.weight.data, init_device_mesh("cpu", (2,)), [Shard(0)]))
    for name, layer in (("outside its unit", elsewhere), ("cut vocabulary", parallel)):
        try:
            LossHead(layer).scores(torch.zeros(2, WIDTH, dtype=layer.weight.dtype), torch.zeros(2))
        except LossaryError as refused:
            found[name] = str(refused)
    queue.put((rank, found))
    queue.close()
    queue.join_thread()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_work, args=(rank, tmp_path / "meet", queue)) for rank in range(2)]
    for p in processes:
        p.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for p in processes:
        p.join(60)
    assert [p.exitcode for p in processes] == [0, 0]
    assert results[0] == results[1]
    for refused in ("outside its unit", "cut vocabulary"):
        assert "the weight of the head is a DTensor [Shard(dim=0)]. FSDP2 makes it whole" in results[0][refused]
        assert "A vocabulary cut over ranks (tensor parallel) is not supported." in results[0][refused]
    for tied in (False, True):
        for name, recipe in RECIPES.items():
            wanted = gradients(Model(tied), None, recipe, list(range(8)))
            for kind in KINDS:
                found = results[0][kind, tied, name]
                assert found.keys() == wanted.keys()
                for key, x in wanted.items():
                    assert x.norm() > 0
                    wrong = error(torch.tensor(found[key], dtype=torch.float64), x)
                    assert wrong < (1e-12 if kind != "half" else 3e-2), (wrong, kind, tied, name, key)

"""Ranks: the processes that share a run. Each trains on its own prompts; what a step must know of the others is asked for here.

Every rank samples the whole batch of a step, from the same seed and the same weights, and keeps its share of the prompts. So what is
sampled never depends on how many ranks there are, whatever engine does it, at the price of sampling it on each of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist  # noqa: TID251
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard  # noqa: TID251
from torch.distributed.tensor import DTensor  # noqa: TID251

from ..registry import LossaryError


class Group:
    """The :class:`lossary.Ranks` of ``torch.distributed``, or of this one process; reductions add in the order of the ranks."""

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        self.grad_average = self.size  # both DDP and FSDP2 average over all of them
        self.first = self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """Return the elementwise sum over ranks."""
        return x if self.size == 1 else torch.stack(self._all(x)).sum(0)

    def max(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum over ranks."""
        return x if self.size == 1 else torch.stack(self._all(x)).amax(0)

    def gather(self, x: Tensor) -> Tensor:
        """Return all ranks' rows one after the other; their numbers may differ."""
        if self.size == 1:
            return x
        counts = [int(n) for n in self._all(torch.tensor([x.shape[0]], device=x.device))]
        room = x.new_zeros(max(counts), *x.shape[1:])
        room[: x.shape[0]] = x.detach()
        return torch.cat([part[:n] for part, n in zip(self._all(room), counts, strict=True)])

    def any(self, yes: bool) -> bool:
        """Whether it holds on some rank: all decide alike, or those that go on would wait for the one that does not."""
        return bool(self.max(torch.tensor([float(yes)]))[0])

    def meet(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()

    def agreed(self, make: Callable[[], str]) -> str:
        """Return what the first rank makes, on all of them; where it cannot, all raise ``LossaryError``."""
        found: list[str | LossaryError] = [""]
        if self.first:
            try:
                found = [make()]
            except LossaryError as error:
                found = [error]
        if self.size > 1:
            dist.broadcast_object_list(found)
        if isinstance(found[0], LossaryError):
            raise found[0]
        return found[0]

    def heard(self, mine: str) -> str:
        """Return what every rank says, after its number where there are several; what some say alike stands once."""
        if self.size == 1:
            return mine
        found, alike = [mine] * self.size, dict[str, list[int]]()
        dist.all_gather_object(found, mine)
        for rank, said in enumerate(found):
            alike.setdefault(said, []).append(rank)
        return "".join(f" On rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}:{said}" for said, ranks in alike.items())

    def own(self, name: str) -> str:
        """Return a name that is this rank's alone, if there are others."""
        return name if self.size == 1 else f"{name}-rank-{self.rank}"

    def share(self, n: int) -> range:
        """Return this rank's part of ``n`` things, as even as can be and never out of order; too few raise ``LossaryError``."""
        if n < self.size:
            raise LossaryError(
                f"a step has {n} prompts for {self.size} ranks; each needs at least one: raise rollout.prompts (or warm_up.batch)."
            )
        return range(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def _all(self, x: Tensor) -> list[Tensor]:
        x = x.detach().contiguous()
        found = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(found, x)
        return found


@contextmanager
def joined() -> Iterator[None]:
    """Join the ranks that ``torchrun`` started, if it did, and leave them at the end."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def parallel(model: nn.Module, how: str, group: Group) -> nn.Module:
    """Return what to call in the model's place: gradients are averaged over ranks (``ddp``), or weights lie in parts as well (``fsdp2``).

    The head is a unit of its own, together with the embedding where they share a weight: it is called outside of the model's forward.
    """
    if group.size == 1:
        return model
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    head, embedding = getattr(model, "lm_head", None), getattr(model, "embedding", None)
    for block in getattr(model, "blocks", ()):
        fully_shard(block)
    if head is not None:
        tied = embedding is not None and embedding.weight is head.weight
        # Kept whole after the embedding's forward: the head's has to find it, and what is in between need not gather it again.
        fully_shard([embedding, head] if tied else head, reshard_after_forward=not tied)
    fully_shard(model)
    return model


@contextmanager
def syncing(models: list[nn.Module], last: bool) -> Iterator[None]:
    """Leave the averaging over ranks to the last micro-batch of a step, where gradients are whole on each rank until then."""
    waiting = [m for m in models if isinstance(m, nn.parallel.DistributedDataParallel)]
    for m in waiting:
        m.require_backward_grad_sync = last
    try:
        yield
    finally:
        for m in waiting:
            m.require_backward_grad_sync = True


def whole(x: Tensor) -> Tensor:
    """Return all of a tensor of which each rank has a part."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Return whole weights by name, on every rank."""
    return {name: whole(x.detach()) for name, x in model.state_dict().items()}


def told(group: Group, counts: Mapping[str, float]) -> dict[str, Any]:
    """Return what each rank did, as ``{name/rank}``."""
    if group.size == 1:
        return {}
    rows = torch.stack(group._all(torch.tensor(list(counts.values()), dtype=torch.float64)))
    return {f"{name}/{rank}": rows[rank, i].item() for i, name in enumerate(counts) for rank in range(group.size)}

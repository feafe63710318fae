"""What a step must be told of other ranks: three reductions and one number."""

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """The group of processes that share one batch. The trainer implements it over ``torch.distributed``; nothing below imports that."""

    grad_average: int
    """Over how many ranks the host averages gradients (1: it sums them). Not the world size, and not always the data-parallel size."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the elementwise sum over ranks; every rank brings the same shape."""

    def max(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum over ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """Return all ranks' rows one after the other; ranks may bring unequal numbers of rows."""


class OneRank:
    """A single process."""

    grad_average = 1

    def sum(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x

    def max(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x


ONE_RANK = OneRank()


class SimulatedRanks:
    """``n`` ranks as threads of one process, so that exactness over ranks is tested without any process group.

    ``SimulatedRanks.run(4, function)`` calls ``function(ranks, rank)`` in four threads that meet in every reduction, and returns the
    four results. A rank that raises breaks the barrier for the others, and its own error is raised.
    """

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier, grad_average: int) -> None:
        self.rank, self._shared, self._barrier, self.grad_average = rank, shared, barrier, grad_average

    @classmethod
    def run(
        cls, n: int, function: Callable[["SimulatedRanks", int], T], *, grad_average: int | None = None, timeout: float = 60
    ) -> list[T]:
        """Return ``[function(ranks, 0), ..., function(ranks, n - 1)]``."""
        shared: list[Any] = [None] * n
        barrier = threading.Barrier(n, timeout=timeout)
        results: list[Any] = [None] * n
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                results[rank] = function(cls(rank, shared, barrier, n if grad_average is None else grad_average), rank)
            except BaseException as error:
                if not isinstance(error, threading.BrokenBarrierError):
                    errors.insert(0, error)
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors and isinstance(errors[0], threading.BrokenBarrierError):
            raise RuntimeError(f"the {n} ranks did not all meet in the same reductions within {timeout} s.") from errors[0]
        if errors:
            raise errors[0]
        return results

    def _all(self, x: Tensor) -> list[Tensor]:
        self._shared[self.rank] = x.detach().clone()
        self._barrier.wait()
        found = list(self._shared)
        self._barrier.wait()
        return found

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over ranks, always added in the order of the ranks."""
        return torch.stack(self._all(x)).sum(0)

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum over ranks."""
        return torch.stack(self._all(x)).amax(0)

    def gather(self, x: Tensor) -> Tensor:
        """Return all ranks' rows in the order of the ranks."""
        return torch.cat(self._all(x))

"""Races: every round runs each peer once, then the bound, then ours. A ratio never compares numbers of two runs."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import cases
import peers as environments
import torch
from device import Device
from sides import byhand
from sides import ours as our_side

HERE = Path(__file__).parent
NAMES = {"liger": "liger-kernel", "cce": "cut-cross-entropy", "trl": "TRL", "byhand": "by hand", "ours": "lossary"}
HERE_TOO: dict[str, Any] = {"byhand": byhand, "ours": our_side}
QUICK = "not in the quick run"
PATIENCE = 240.0
"""Seconds until a peer that does not answer is ended."""
Step = Callable[[], Any]


@dataclass(frozen=True)
class Entrant:
    """A peer in one race."""

    peer: str
    case: str
    what: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    truth: dict[str, Any] = field(default_factory=dict)
    """How the float64 result is made, where it differs from ours: a peer may compute less."""
    targets: dict[str, float] = field(default_factory=dict)
    """What we ask of ours against it: ``ratio`` at most this, ``over`` at most so many seconds more."""
    slow: bool = False
    """It compiles something: left out of quick runs."""


@dataclass(frozen=True)
class Bound:
    """What no program passes: ``factor`` times the seconds of ``step``."""

    what: str
    step: Step
    factor: float = 1.0
    target: float | None = None


class Peer:
    """A child process that runs one peer's side, or the same code in this one for what is written by hand."""

    def __init__(self, name: str, device: Device) -> None:
        self.name, self.why, self.version = name, environments.missing(name), ""
        if not self.why:
            command = [str(environments.interpreter(name)), str(HERE / "worker.py"), name, device.name]
            with (environments.PLACE / name / "log.txt").open("w") as log:  # a pipe nobody reads would stop it when full
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environments.environment(name)
                )
            said = self._answer()
            self.why, self.version = f"does not start: {said['error']}" if "error" in said else "", said.get("version", "")

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        patience = threading.Timer(PATIENCE, self.process.kill)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        return json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}

    def load(self, key: int, entrant: Entrant, inputs: Path, results: Path) -> dict[str, torch.Tensor]:
        """Build an entrant's step and return what it computes; a process can hold several."""
        said = self.ask(do="load", key=key, case=entrant.case, options=entrant.options, inputs=str(inputs), results=str(results))
        if "error" in said:
            raise RuntimeError(said["error"])
        found: dict[str, torch.Tensor] = torch.load(results)
        return found

    def seconds(self, key: int, iterations: int) -> float:
        said = self.ask(do="run", key=key, iterations=iterations)
        if "error" in said:
            raise RuntimeError(f"{self.name}: {said['error']}")
        return float(said["seconds"])

    def drop(self) -> None:
        if not self.why:
            self.ask(do="drop")

    def close(self) -> None:
        if not self.why and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(timeout=60)


class Here(Peer):
    """What is written by hand, and another way of ours, need no process of their own."""

    def __init__(self, name: str, device: Device) -> None:
        self.name, self.why, self.version, self.device = name, "", "", device
        self.side = HERE_TOO[name]
        self.steps: dict[int, Step] = {}

    def load(self, key: int, entrant: Entrant, inputs: Path, results: Path) -> dict[str, torch.Tensor]:
        x = torch.load(inputs, map_location=self.device.torch)
        self.steps[key], told = getattr(self.side, entrant.case)(x, **entrant.options)
        return {name: value.detach().cpu() for name, value in told().items()}

    def seconds(self, key: int, iterations: int) -> float:
        return self.device.seconds(self.steps[key], iterations)

    def drop(self) -> None:
        self.steps.clear()

    def close(self) -> None:
        pass


class Races:
    """All races of one session: the device, the peers' processes, and the rows so far."""

    def __init__(self, device: Device, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.rows: list[dict[str, Any]] = []
        self._peers: dict[str, Peer] = {}

    def peer(self, name: str) -> Peer:
        if name not in self._peers:
            self._peers[name] = Here(name, self.device) if name in HERE_TOO else Peer(name, self.device)
        return self._peers[name]

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def left_out(self, figure: str, why: str) -> None:
        nobody = {"name": "", "seconds": None, "note": "", "error": None}
        self.rows.append(
            {"figure": figure, "ours": {**nobody, "note": f"left out: {why}"}, "peer": nobody, "bound": None, "targets": {}, "rounds": 0}
        )

    def run(
        self,
        benchmark: Any,
        figure: str,
        x: dict[str, Any],
        ours: Entrant,
        against: Sequence[Entrant],
        *,
        bound: Bound | None = None,
        rounds: int = 7,
        iterations: int = 1,
        tolerance: float = 1e-5,
    ) -> None:
        """Check that all agree with float64, then race. ``tolerance`` is relative to the largest value of a result."""
        rounds = min(rounds, 3 if iterations == 1 else 9) if self.quick else rounds
        mask, known = x.get("mask"), dict[str, Any]()

        def truth(options: dict[str, Any]) -> Any:
            key = json.dumps(options)
            if key not in known:
                known[key] = cases.exact(ours.case, x, self.device.torch, **options)
            return known[key]

        left_out = QUICK if ours.slow and self.quick else ""
        step, note, errors = self._ours(ours, x, truth, mask, tolerance) if not left_out else (None, QUICK, {})
        there: dict[int, Peer] = {}
        notes: dict[int, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            inputs = Path(folder, "inputs.pt")
            torch.save(x, inputs)
            for i, entrant in enumerate(against):
                peer = self.peer(entrant.peer)
                notes[i] = left_out or (QUICK if entrant.slow and self.quick else peer.why)
                if notes[i]:
                    continue
                try:
                    found = peer.load(i, entrant, inputs, Path(folder, f"{i}.pt"))
                except our_side.NotBuilt as error:
                    notes[i] = f"not built: {error}"
                    continue
                except RuntimeError as error:
                    notes[i] = f"failed: {error}"
                    continue
                errors[i] = cases.error(found, truth(entrant.truth), mask)
                assert errors[i] <= tolerance, f"{figure}: {entrant.peer} {entrant.what} is {errors[i]:.1e} away from float64"
                there[i] = peer
        seconds, mine, floor = self._raced(benchmark, step, there, bound, rounds, iterations)
        for i, entrant in enumerate(against):
            version = self.peer(entrant.peer).version
            name = " ".join(filter(None, [NAMES.get(entrant.peer, entrant.peer), version, f"({entrant.what})" if entrant.what else ""]))
            targets = {**entrant.targets, **({"to_bound": bound.target} if bound is not None and bound.target is not None else {})}
            self.rows.append(
                {
                    "figure": figure,
                    "ours": {"seconds": mine, "note": note, "error": errors.get(-1)},
                    "peer": {"name": name, "seconds": seconds.get(i), "note": notes[i], "error": errors.get(i)},
                    "bound": {"what": bound.what, "seconds": floor} if bound is not None else None,
                    "targets": targets,
                    "rounds": rounds,
                }
            )
        for peer in there.values():
            peer.drop()

    def _ours(self, ours: Entrant, x: dict[str, Any], truth: Any, mask: Any, tolerance: float) -> tuple[Any, str, dict[int, float]]:
        there = {n: v.to(self.device.torch) if isinstance(v, torch.Tensor) else v for n, v in x.items()}
        try:
            step, told = getattr(our_side, ours.case)(there, **ours.options)
        except our_side.NotBuilt as error:
            return None, f"not built: {error}", {}
        away = cases.error(told(), truth(ours.truth), mask)
        assert away <= tolerance, f"ours is {away:.1e} away from float64"
        return step, "", {-1: away}

    def _raced(
        self, benchmark: Any, step: Any, there: dict[int, Peer], bound: Bound | None, rounds: int, iterations: int
    ) -> tuple[dict[int, float], float | None, float | None]:
        took: dict[int, list[float]] = {i: [] for i in there}
        floors: list[float] = []
        order = list(there)

        def others() -> None:
            order.append(order.pop(0)) if order else None  # nobody is always first
            for i in order:
                took[i].append(there[i].seconds(i, iterations))
            if bound is not None:
                floors.append(self.device.seconds(bound.step) * bound.factor)

        def mine() -> None:
            for _ in range(iterations if step is not None else 0):
                step()

        others(), mine()  # caches, allocators and compilers have their first time here
        for times in (*took.values(), floors):
            times.clear()
        benchmark.pedantic(mine, setup=others, rounds=rounds, iterations=1)
        found = median(benchmark.stats.stats.data) / iterations if step is not None else None
        return {i: median(times) for i, times in took.items()}, found, median(floors) if floors else None

"""The lock of a run: which components its recipe came to, from which distribution, with which code."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..registry import LossaryError, fingerprint
from .terms import Plan


def lock(plan: Plan) -> dict[str, Any]:
    """Return ``{packages: {name: version}, components: {kind/name: [distribution, fingerprint of its code]}}``, plain values only."""
    found = {f"{c.kind.name}/{c.name}": [c.distribution, fingerprint([c])] for c in (b.component for b in plan.bounds)}
    names = {"lossary", *(who.partition(" ")[0] for who, _ in found.values() if not who.startswith("plugin "))}
    return {"packages": {"torch": torch.__version__} | {n: _version(n) for n in sorted(names)}, "components": dict(sorted(found.items()))}


def compared(theirs: Any, ours: dict[str, Any], where: str) -> list[str]:
    """Return what is told of packages of other versions; a component whose code changed raises ``LossaryError``, for it makes another run."""
    for name, (brought, code) in theirs["components"].items():
        now = ours["components"].get(name)
        if now is not None and now != [brought, code]:
            other = f"comes from {now[0]}" if now[0] != brought else "is other code"
            raise LossaryError(
                f"{where}: this run was trained with {name} of {brought}, which now {other}: put it back, or start a new run."
            )
    then, now = theirs["packages"], ours["packages"]
    return [f"{n} was {then[n]} when this run began and is {now[n]} now" for n in sorted(then) if n in now and now[n] != then[n]]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

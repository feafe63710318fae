"""The lock of a run or a dump: which components its recipe came to, how they were set, who brought them, and with which code."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..registry import LossaryError, fingerprint
from .terms import Plan


def lock_of(plan: Plan) -> dict[str, Any]:
    """Return ``{packages: {name: version}, components: [{slot, kind, use, params, from, code}]}``, plain values only.

    ``code`` is the fingerprint of the component's code, ``from`` its distribution.
    """
    used = [
        {
            "slot": b.slot,
            "kind": b.component.kind.name,
            "use": b.component.name,
            "params": {n: v if isinstance(v, (bool, int, float, str, type(None))) else repr(v) for n, v in b.params.items()},
            "from": b.component.distribution,
            "code": fingerprint([b.component]),
        }
        for b in plan.bounds
    ]
    names = {
        "lossary",
        *(b.component.distribution.partition(" ")[0] for b in plan.bounds if not b.component.distribution.startswith("plugin ")),
    }
    return {"packages": {"torch": torch.__version__} | {n: _version(n) for n in sorted(names)}, "components": used}


def compared(theirs: Any, ours: dict[str, Any], where: str) -> list[str]:
    """Return what is told of packages of other versions; a component whose code changed raises ``LossaryError``, for it makes another run."""
    then, now = _code(theirs), _code(ours)
    for name, (brought, code) in then.items():
        if name in now and now[name] != (brought, code):
            other = f"comes from {now[name][0]}" if now[name][0] != brought else "is other code"
            raise LossaryError(
                f"{where}: this run was trained with {name} of {brought}, which now {other}: put it back, or start a new run."
            )
    before, after = theirs["packages"], ours["packages"]
    return [
        f"{n} was {before[n]} when this run began and is {after[n]} now" for n in sorted(before) if n in after and after[n] != before[n]
    ]


def _code(lock: Any) -> dict[str, tuple[str, str]]:
    return {f"{c['kind']}/{c['use']}": (c["from"], c["code"]) for c in lock["components"]}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"

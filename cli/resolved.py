"""What a checked recipe resolves to, for machines: all that ``lossary check`` tells people."""

from typing import Any

from ..pipeline import Bound, Objective, Plan
from ..pipeline.terms import Coefficient
from ..registry import Fault


def for_machines(plan: Plan | None, faults: list[Fault]) -> dict[str, Any]:
    """Return the faults, and of a plan its stages, what batch and model bring, how it may be split, notes and warnings."""
    told: dict[str, Any] = {"ok": not faults, "faults": [_fault(f) for f in faults]}
    if plan is None:
        return told
    objective = Objective(plan)
    stages = _stages(plan)
    return told | {
        "name": plan.name,
        "stages": stages,
        "terms": [s for s in stages if s["stage"] in ("actor", "critic")],
        "needs": {stage: objective.needs(stage) for stage in ("estimate", "measure", "loss")},
        "reads_rewards": objective.pays,
        "splits": {"scope": plan.scope, "empty": plan.empty, "approximate": plan.approximate},
        "old_log_prob": plan.old_log_prob,
        "compile": plan.compile,
        "warnings": list(plan.warnings),
        "notes": list(plan.notes),
    }


def _fault(fault: Fault) -> dict[str, Any]:
    place = fault.place
    return {
        "path": fault.path, "source": place.source, "line": place.line, "column": place.column, "origin": place.origin, "message": fault.message,
    }  # fmt: skip


def _stages(plan: Plan) -> list[dict[str, Any]]:
    """Return everything that runs, in the order of the table."""
    made = [_slot("reward", bound) for bound in plan.rewards]
    made += [{**_slot("KL in reward", kl.bound), "name": kl.name, "coef": _coefficient(kl.coefficient)} for kl in plan.reward_kl]
    made += [_slot("filter", bound) for bound in plan.filters]
    made += [_slot("advantage", bound) for bound in plan.advantages]
    for c in plan.corrections:
        divides = {"denominator": plan.denominator} if c.bound.component.drops else {}
        made.append({**_slot("correction", c.bound), "decide": c.when, **divides})
    for t in plan.terms:
        said = {"name": t.name, "role": t.role, "coef": _coefficient(t.coefficient)}
        made.append({**_slot(t.role, t.bound), **said, "aggregation": _used(plan.aggregations[t.aggregation])})
    return made


def _slot(stage: str, bound: Bound) -> dict[str, Any]:
    return {"stage": stage, "slot": bound.slot, **_used(bound), "from": bound.component.distribution}


def _used(bound: Bound) -> dict[str, Any]:
    return {"use": bound.component.name, "params": dict(bound.params)}


def _coefficient(coefficient: Coefficient) -> Any:
    return coefficient.fixed if coefficient.bound is None else _used(coefficient.bound)

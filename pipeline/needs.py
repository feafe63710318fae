"""Which columns an objective asks of its host, and who asks for them."""

from ..batch import Batch
from ..registry import ColumnError
from .bound import SPECIAL
from .correcting import WEIGHT
from .estimating import RESULTS, REWARDS
from .terms import Plan
from .vocabulary import VOCAB

MODEL = ("log_prob", "entropy", "values", "log_z", *VOCAB)
"""Columns that come from a model, inside ``loss``."""


def needs(plan: Plan, stage: str) -> dict[str, str]:
    """Return ``{column: who asks for it}`` that a batch must bring to ``estimate`` or ``weigh``, or a model to ``measure`` or ``loss``."""
    late = [c.bound for c in plan.corrections if c.when == ("measure" if stage == "measure" else "loss")]
    bounds = late if stage == "measure" else [*(t.bound for t in plan.terms), *late]
    wanted: dict[str, str] = {}
    for bound in bounds:
        for name, _, optional in bound.levels:
            if not optional and name not in SPECIAL and (name in MODEL) == (stage in ("loss", "measure")):
                wanted.setdefault(name, bound.who)
    if stage in ("loss", "measure"):
        if plan.old_log_prob == "current" and any(n == "old_log_prob" for b in bounds for n, _, _ in b.levels):
            wanted.setdefault("log_prob", "old_log_prob: current")
        return wanted
    if plan.old_log_prob == "current":
        wanted.pop("old_log_prob", None)
    wanted.pop("noise", None)  # weigh draws it
    if plan.corrections:
        wanted.pop(WEIGHT, None)
    aggregations = [plan.aggregations[t.aggregation] for t in plan.terms]
    grouped = [b for b in (*(t.bound for t in plan.terms), *aggregations) if b.component.scope == "group"]
    if stage == "estimate":
        early = [*plan.rewards, *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections)]
        grouped += [b for b in early if b.component.scope == "group"]
        wanted = _before_estimate(plan, wanted)
    return {**wanted, **({"group_ids": grouped[0].who} if grouped else {})}


def _before_estimate(plan: Plan, wanted: dict[str, str]) -> dict[str, str]:
    made: set[str] = set()
    need: dict[str, str] = {}
    given = {*SPECIAL, *REWARDS, *MODEL, WEIGHT}
    for bound in (*plan.rewards, *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections)):
        for name, _, optional in bound.levels:
            current = name == "old_log_prob" and plan.old_log_prob == "current"
            if not optional and not current and name not in given and name not in made:
                need.setdefault(name, bound.who)
        if bound.component.kind.name == "advantage":
            made |= {"advantages"} if bound.component.returns is not None else set(RESULTS)
    for kl in plan.reward_kl:
        for name, _, optional in kl.bound.levels:
            if not optional and name not in SPECIAL:
                need.setdefault("old_log_prob" if name == "log_prob" else name, f"{kl.bound.who} in the reward")
    return {**{n: w for n, w in wanted.items() if n not in made}, **need}


def require(plan: Plan, batch: Batch, stage: str) -> None:
    """Raise ``ColumnError`` for a column that the batch lacks."""
    for name, who in needs(plan, stage).items():
        if name not in batch:
            hint = " Give every sequence the id of its prompt." if name == "group_ids" else ""
            first = stage == "weigh" and name in RESULTS and plan.advantages
            made = " Call objective.estimate(batch) first." if first else ""
            raise ColumnError(f"{who} needs the column {name!r}, which the batch does not bring.{hint}{made}")

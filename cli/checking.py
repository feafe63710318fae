"""``lossary check``."""

import json
import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..builtin import catalog
from ..pipeline import Bound, Objective, Plan, load_recipe, survey
from ..registry import Fault, RecipeError


def check_recipe(said: str, overrides: list[str], *, as_json: bool) -> int:
    """Print every fault and return 1, or print what the recipe resolves to and return 0."""
    try:
        plan, faults = _surveyed(said, overrides)
    except RecipeError as error:
        plan, faults = None, list(error.faults)
    if as_json:
        print(json.dumps(_read_by_machines(plan, faults), indent=1))
        return 1 if faults else 0
    if plan is None or faults:
        for fault in RecipeError(faults).faults:
            print(fault, file=sys.stderr)
        print(f"{len(faults)} fault{'s' if len(faults) != 1 else ''}", file=sys.stderr)
        return 1
    _explain(plan)
    return 0


def _surveyed(said: str, overrides: list[str]) -> tuple[Plan | None, list[Fault]]:
    recipe = load_recipe(said, overrides, more=catalog().recipes())
    if "task" in recipe.values:
        from ..trainer.settings import Settings

        return Settings.of(recipe).plan, []
    plan, _, faults = survey(recipe, catalog())
    return plan, faults


def _read_by_machines(plan: Plan | None, faults: list[Fault]) -> dict[str, object]:
    places = [
        {"path": f.path, "source": f.place.source, "line": f.place.line, "column": f.place.column, "message": f.message} for f in faults
    ]
    if plan is None:
        return {"ok": not faults, "faults": places}
    needs = {stage: Objective(plan).needs(stage) for stage in ("estimate", "measure", "loss")}
    terms = [
        {"name": t.name, "role": t.role, "use": t.bound.component.name, "params": dict(t.bound.params), "aggregation": t.aggregation}
        for t in plan.terms
    ]
    return {"ok": not faults, "faults": places, "terms": terms, "needs": needs, "warnings": list(plan.warnings), "notes": list(plan.notes)}


def _explain(plan: Plan) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, title=f"[bold]{escape(plan.name)}[/]", title_justify="left")
    for title in ("stage", "uses", "coef", "aggregation", "hyperparameters"):
        table.add_column(title, style="cyan" if title == "uses" else "", overflow="fold")

    def early(stage: str, bounds: Iterable[Bound]) -> None:
        for bound in bounds:
            table.add_row(stage, bound.component.name, "", "", _params(dict(bound.params)))

    early("reward", plan.rewards)
    for kl in plan.reward_kl:
        table.add_row("reward", kl.bound.component.name, _coef(kl.coefficient), "", _params(dict(kl.bound.params)))
    early("filter", plan.filters)
    early("advantage", plan.advantages)
    for c in plan.corrections:
        divides = f"denominator: {plan.denominator}" if c.bound.component.drops else ""
        table.add_row(f"correction, in {c.when}", c.bound.component.name, "", divides, _params(dict(c.bound.params)))
    for t in plan.terms:
        table.add_row(f"{t.role}: {t.name}", t.bound.component.name, _coef(t.coefficient), t.aggregation, _params(dict(t.bound.params)))
    console.print(table)
    objective = Objective(plan)
    console.print(
        f"batch brings   {', '.join(objective.needs('estimate')) or 'nothing'}{', rewards or token_rewards' if objective.pays else ''}",
        highlight=False,
    )
    console.print(f"model brings   {', '.join(objective.needs('loss'))}", highlight=False)
    console.print(
        f"splits         at every {plan.scope if plan.scope != 'token' else 'sequence'}; empty sequences: {plan.empty}", highlight=False
    )
    for sentence in plan.notes:
        console.print(f"note           {escape(sentence)}", highlight=False)
    for sentence in plan.warnings:
        console.print(f"[yellow]warning[/]        {escape(sentence)}", highlight=False)


def _coef(coefficient: object) -> str:
    fixed, bound = getattr(coefficient, "fixed", None), getattr(coefficient, "bound", None)
    return f"{fixed:g}" if bound is None else f"{bound.component.name}({_params(dict(bound.params))})"


def _params(params: dict[str, object]) -> str:
    return escape("\n".join(f"{k}={'null' if v is None else v}" for k, v in params.items()))

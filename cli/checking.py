"""``lossary check``."""

import json
import sys
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ..builtin import catalog
from ..pipeline import Bound, Objective, Plan, load_recipe, survey
from ..pipeline.terms import Coefficient
from ..registry import Fault, RecipeError
from .sections import written


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
    console.print(f"[bold]{escape(plan.name)}[/]", highlight=False)
    stages = _stages(plan)
    heads = ("stage", "uses", "coef", "aggregation")
    wide = [max(len(row[i]) for row in (heads, *(s.cells for s in stages))) for i in range(4)]
    told = 4 if sum(wide) + 2 * 3 + 2 <= console.width else 2  # what has no room beside stands below
    wide = wide[:told]
    console.print("  " + "  ".join(f"{head:{n}}" for head, n in zip(heads, wide, strict=False)).rstrip(), style="bold", soft_wrap=True)
    console.print(" " + "─" * (sum(wide) + 2 * told), style="dim", soft_wrap=True)
    for s in stages:
        line = Text("  ")
        for i, (cell, n) in enumerate(zip(s.cells, wide, strict=False)):
            line.append(f"{cell:{n}}  ", style="cyan" if i == 1 else "")
        line.rstrip()
        console.print(line, soft_wrap=True)
        below = [f"{head}={cell}" for head, cell in zip(heads[told:], s.cells[told:], strict=True) if cell]
        for start, pairs in (("", below + s.pairs), *s.more):
            for text in _lines(start, pairs, console.width):
                console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print()
    objective = Objective(plan)
    paid = ["rewards or token_rewards"] if objective.pays else []
    _say(console, "batch brings", ", ".join([*objective.needs("estimate"), *paid]) or "nothing")
    _say(console, "model brings", ", ".join(objective.needs("loss")) or "nothing")
    _say(console, "splits", f"at every {plan.scope if plan.scope != 'token' else 'sequence'}; empty sequences: {plan.empty}")
    for sentence in plan.notes:
        _say(console, "note", sentence)
    for sentence in plan.warnings:
        _say(console, "warning", sentence, "yellow")


@dataclass(frozen=True)
class _Stage:
    """One row of the table, and the pairs that stand below it."""

    cells: tuple[str, str, str, str]
    pairs: list[str]
    more: tuple[tuple[str, list[str]], ...] = ()
    """Settings of what else stands in the row, after its name."""


def _stages(plan: Plan) -> list[_Stage]:
    def plain(stage: str, bound: Bound, *said: str) -> _Stage:
        return _Stage((stage, bound.component.name, "", ""), [*said, *_pairs(bound)])

    found = [plain("reward", bound) for bound in plan.rewards]
    for kl in plan.reward_kl:
        steered = _steered(kl.coefficient)
        found.append(_Stage(("KL in reward", kl.bound.component.name, _coef(kl.coefficient), ""), _pairs(kl.bound), steered))
    found += [plain("filter", bound) for bound in plan.filters]
    found += [plain("advantage", bound) for bound in plan.advantages]
    for c in plan.corrections:
        divides = [f"denominator={plan.denominator}"] if c.bound.component.drops else []
        found.append(plain("correction", c.bound, f"decided in {c.when}", *divides))
    for t in plan.terms:
        mean = plan.aggregations[t.aggregation]
        cells = (f"{t.role}: {t.name}", t.bound.component.name, _coef(t.coefficient), mean.component.name)
        more = _steered(t.coefficient) + ((("aggregation: ", pairs),) if (pairs := _pairs(mean)) else ())
        found.append(_Stage(cells, _pairs(t.bound), more))
    return found


def _coef(coefficient: Coefficient) -> str:
    return f"{coefficient.fixed:g}" if coefficient.bound is None else coefficient.bound.component.name


def _steered(coefficient: Coefficient) -> tuple[tuple[str, list[str]], ...]:
    return (("coef: ", pairs),) if coefficient.bound is not None and (pairs := _pairs(coefficient.bound)) else ()


def _pairs(bound: Bound) -> list[str]:
    return [f"{name}={written(value)}" for name, value in bound.params.items()]


def _lines(start: str, pairs: list[str], width: int) -> list[str]:
    """Wrap between pairs, never inside one."""
    lines, indent = [], " " * (6 + len(start))
    line = f"      {start}" + (pairs[0] if pairs else "")
    for pair in pairs[1:]:
        if len(line) + 2 + len(pair) > width:
            lines.append(line)
            line = indent + pair
        else:
            line += f"  {pair}"
    return [*lines, line] if pairs else []


def _say(console: Console, head: str, text: str, style: str = "") -> None:
    """Print a sentence after its head, wrapped by words."""
    room = max(console.width - 15, 30)
    for i, part in enumerate(wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]):
        console.print(Text(f"{'' if i else head:15}", style=style).append(part, style="default"), soft_wrap=True)

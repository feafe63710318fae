"""``lossary check``."""

import json
import sys
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ..builtin import catalog
from ..pipeline import Bound, Objective, Plan, Recipe, load_recipe, survey
from ..pipeline.terms import Coefficient
from ..registry import Fault, RecipeError
from ..trainer.settings import Settings
from .explaining import explain, settings_of
from .resolved import for_machines
from .sections import written


def check_recipe(said: str, overrides: list[str], *, as_json: bool, explained: bool = False) -> int:
    """Print every fault and return 1, or print what the recipe resolves to (and with ``explained`` every setting) and return 0."""
    recipe, plan, settings, found = _surveyed(said, overrides)
    faults = list(RecipeError(found).faults)  # in the order of their lines
    if as_json:
        told = [s.for_machines() for s in settings_of(recipe, plan, settings)] if recipe and plan else []
        print(json.dumps({**for_machines(plan, faults), "settings": told}, indent=1, default=str))
        return 1 if faults else 0
    if recipe is None or plan is None or faults:
        print(RecipeError(faults), file=sys.stderr)
        print(f"{len(faults)} fault{'s' if len(faults) != 1 else ''}", file=sys.stderr)
        return 1
    _resolved(plan)
    if explained:
        console = Console()
        console.print()
        explain(console, settings_of(recipe, plan, settings))
    return 0


def _surveyed(said: str, overrides: list[str]) -> tuple[Recipe | None, Plan | None, Settings | None, list[Fault]]:
    recipe = None
    try:
        recipe = load_recipe(said, overrides, environment=True, more=catalog().recipes())
        if "task" in recipe.values:
            settings = Settings.of(recipe)
            return recipe, settings.plan, settings, []
        plan, _, faults = survey(recipe, catalog())
    except RecipeError as error:
        return recipe, None, None, list(error.faults)
    return recipe, plan, None, faults


def _resolved(plan: Plan) -> None:
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

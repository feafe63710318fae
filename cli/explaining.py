"""``lossary check --explain``: every setting, what it is, and where that was said."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.text import Text

from ..pipeline import Bound, Plan, Recipe, bind, steps
from ..pipeline.hinting import ALL
from ..registry import Place
from ..trainer.settings import Settings
from .sections import keys_of, written

Path_ = tuple[str | int, ...]
_GAP = 2


@dataclass(frozen=True)
class Setting:
    """One value of a resolved recipe. Without a place it is a default: the component's, or that of its section."""

    path: Path_
    value: Any
    place: Place | None

    @property
    def key(self) -> str:
        """The path as an override writes it."""
        return ".".join(map(str, self.path))

    @property
    def origin(self) -> str:
        """Which layer said it: ``file``, ``base``, ``environment``, ``override`` or ``default``."""
        return self.place.origin if self.place else "default"

    @property
    def said(self) -> str:
        """Where it was said, in words."""
        if self.place is None:
            return "default"
        if self.place.origin == "override":
            return "command line"
        return str(Place(PurePath(self.place.source).name, self.place.line, self.place.column) if self.place.line else self.place.source)

    def for_machines(self) -> dict[str, Any]:
        """Return the same as plain values."""
        place = self.place or Place("", origin="default")
        return {
            "path": self.key, "value": self.value, "origin": place.origin, "source": place.source, "line": place.line, "column": place.column,
        }  # fmt: skip


def settings_of(recipe: Recipe, plan: Plan, trained: Settings | None) -> list[Setting]:
    """Return every setting of a recipe in the order of the sections; a value that nobody said is there with its default."""
    found: dict[Path_, Setting] = {}

    def add(path: Path_, value: Any) -> None:
        found.setdefault(path, Setting(path, value, _place(recipe, path)))

    for key, value in (
        ("old_log_prob", plan.old_log_prob),
        ("empty", plan.empty),
        ("approximate", plan.approximate),
        ("compile", plan.compile),
    ):
        add((key,), value)
    for bound, beside in _slots(plan):
        path = steps(recipe.values, bound.slot)
        if bound.slot != "entropy":  # whose form nobody chooses
            add((*path, "use"), bound.component.name)
        for key, value in (*bound.params.items(), *beside.items()):
            add((*path, key), value)
    for section, model in _trained(recipe, trained):
        for key, value in model.items():
            add((section, key), value)
    for path, value in _leaves(recipe.values, ()):  # what was written and is in no component: a term that is off, a list of plugins
        if not any(path[:n] in found for n in range(1, len(path) + 1)) and (*path, "use") not in found:
            add(path, value)
    return sorted(found.values(), key=lambda s: ALL.index(str(s.path[0])) if s.path[0] in ALL else len(ALL))


def _place(recipe: Recipe, path: Path_) -> Place | None:
    """Return where a value was said, be it as a bare name or number; None: nowhere, so that it is a default."""
    here: Any = recipe.values
    part: Any
    for i, part in enumerate(path):
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int) and part < len(here)):
            here = here[part]
        else:  # `policy_loss: grpo` says policy_loss.use, `entropy: 0.01` says entropy.coef
            short = "coef" if path[0] == "entropy" and not isinstance(here, str) else "use"
            bare = i == len(path) - 1 and part == short and i > 0 and not isinstance(here, (Mapping, list)) and here is not None
            return recipe.document.place(path[:i]) if bare else None
    return recipe.document.place(path)


def _slots(plan: Plan) -> Iterator[tuple[Bound, dict[str, Any]]]:
    """Yield every component that the plan runs, with the settings of its section that are not its own."""
    for bound in (*plan.rewards, *plan.filters, *plan.advantages):
        yield bound, {}
    for c in plan.corrections:
        own = {"denominator": plan.denominator, "decide": c.when}
        keys = [k.name for k in keys_of(c.bound.component)]
        yield c.bound, {k: v for k, v in own.items() if k in keys}
    for kl in plan.reward_kl:
        yield kl.bound, {"apply": "reward", **_number(kl.coefficient.fixed)}
        if kl.coefficient.bound:
            yield kl.coefficient.bound, {}
    for term in plan.terms:
        mean = plan.aggregations[term.aggregation]
        apply = {"apply": "loss"} if term.bound.component.kind.name == "kl" else {}
        yield term.bound, {**apply, **_number(term.coefficient.fixed)}
        if term.coefficient.bound:
            yield term.coefficient.bound, {}
        yield mean, {}


def _number(fixed: float | None) -> dict[str, Any]:
    return {} if fixed is None else {"coef": fixed}


def _trained(recipe: Recipe, trained: Settings | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if trained is None:
        return
    if task := bind(recipe, trained.catalog, "task", "task", []):
        yield "task", {"use": task.component.name, **task.params}
    for section in ("model", "critic", "reference", "warm_up", "rollout", "train", "evaluate", "diagnose"):
        yield section, getattr(trained, section).model_dump()


def _leaves(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list) and any(isinstance(x, Mapping) for x in value):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*path, i))
    elif path:
        yield path, value


def explain(console: Console, settings: Iterable[Setting]) -> None:
    """Print a table: what has no room beside stands below, and nothing is cut. Defaults are dim."""
    rows = [((s.key, written(s.value), s.said), s.place is None) for s in settings]
    heads = ("setting", "value", "said in")
    longest = [max(len(head), *(len(cells[i]) for cells, _ in rows)) for i, head in enumerate(heads)]
    first = min(longest[0], 44)
    third = min(longest[2], max(len("command line"), (console.width - first) // 3))
    second = max(min(longest[1], console.width - 2 - first - third - 2 * _GAP), len(heads[1]))
    total = min(2 + first + second + third + 2 * _GAP, console.width)
    console.print(f"  {heads[0]:{first}}{'':{_GAP}}{heads[1]:{second}}{'':{_GAP}}{heads[2]}", style="bold", soft_wrap=True)
    console.print(" " + "─" * (total - 1), style="dim", soft_wrap=True)
    groups = [key.partition(".")[0] if "." in key else "" for (key, *_), _ in rows]
    for i, (cells, quiet) in enumerate(rows):
        if i and groups[i] != groups[i - 1]:
            console.print()
        for line in _lines(cells, (first, second), console.width):
            console.print(Text(line, style="dim" if quiet else ""), soft_wrap=True)


def _lines(cells: tuple[str, str, str], wide: tuple[int, int], width: int) -> list[str]:
    starts = (2, 2 + wide[0] + _GAP, 2 + wide[0] + _GAP + wide[1] + _GAP)
    lines = [""]
    for start, cell in zip(starts, cells, strict=True):
        if len(lines[-1]) > max(start - _GAP, 0) and lines[-1]:  # what stands before has taken the room
            lines.append("")
        start = start if start + len(cell) <= width else max(width - len(cell), 6)
        if len(lines[-1]) > start - _GAP and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]:{start}}{cell}"
    return lines

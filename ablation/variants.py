"""From a file to runs: the grid, each variant named by its difference, and every one checked before the first begins."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

from ..builtin import catalog
from ..pipeline import Recipe, load_recipe, override_from, part_of
from ..registry import Fault, RecipeError
from ..trainer.run_folder import file_name
from ..trainer.settings import Settings
from .ablation import Ablation
from .naming import Labels, normal

LONGEST = 100
"""Characters of a variant's name as a file."""
LARGEST = 100_000
"""Combinations that are looked at, before any is excluded."""


@dataclass(frozen=True)
class Variant:
    """One recipe of an ablation."""

    name: str
    slug: str
    """The same as the name of a file."""
    changes: dict[str, Any]
    """What was said for each varied path."""
    contestant: str
    """The name without the paths of ``across``: variants that share it are one line of the ranking."""
    stratum: str
    """The rest of the name; runs are paired, and resampled, within it."""
    recipe: str
    """As YAML, without a seed."""
    code: dict[str, bytes] = field(default_factory=dict)
    steps: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """All variants of an ablation and the one that the others are compared with."""

    variants: list[Variant]
    base: str
    """Of a contestant."""
    base_is_recipe: bool
    """Whether that is the base as it is written, or, as none is, the first of the file."""
    variables: list[str]


def spread(ablation: Ablation, overrides: Iterable[str] = ()) -> Grid:
    """Return every variant; all that is wrong with the file or any variant is raised at once as ``RecipeError``."""
    overrides = list(overrides)
    ablation.faults += _idle(ablation, overrides)
    faults, base = list(ablation.faults), _base(ablation, overrides, list(ablation.faults))
    if base is None:
        raise RecipeError(faults)
    cells = _cells(ablation, faults) if not faults else []
    if not cells and not faults:
        ablation.fault(("exclude",), "nothing is left: every variant is excluded")
        faults += ablation.faults[-1:]
    if many := len(cells) * len(ablation.seeds) > ablation.budget.runs:
        said = f"{len(cells)} variants with {len(ablation.seeds)} seeds are {len(cells) * len(ablation.seeds)} runs, more than budget.runs"
        at = ("budget",) if "budget" in ablation.document.values else ("vary",)
        faults.append(Fault(".".join(at), ablation.document.place(at), f"{said} = {ablation.budget.runs}"))
    labels, variants = Labels(ablation.vary), []
    for cell in cells[:1] if many else cells:
        made = _variant(ablation, base, cell, labels, faults)
        variants += [made] if made is not None else []
    if not cells:
        _checked(base, faults)
    if faults:
        raise RecipeError(list(dict.fromkeys(faults)))
    variants = [replace(v, slug=s) for v, s in zip(variants, slugs([v.name for v in variants]), strict=True)]
    first = next((v for v in variants if _unchanged(base, v)), None)
    return Grid(variants, (first or variants[0]).contestant, first is not None, base.variables)


def _idle(ablation: Ablation, overrides: Iterable[str]) -> list[Fault]:
    """Return a fault for each override of what is varied: every variant would write over it."""
    faults = []
    for text in overrides:
        path = text.partition("=")[0].lstrip("+-~")
        above = next((p for p in ablation.vary if path == p or path.startswith(f"{p}.")), None)
        if above is not None:
            place = ablation.document.place(("vary", above))
            faults.append(Fault(path, place, f"{above} is varied, so that {text!r} would change nothing; change the file"))
    return faults


def _base(ablation: Ablation, overrides: Iterable[str], faults: list[Fault]) -> Recipe | None:
    said = ablation.document.values.get("base")
    if faults and not isinstance(said, str | dict):
        return None
    steps = [] if ablation.budget.steps is None else [f"train.steps={ablation.budget.steps}"]
    try:
        if isinstance(said, dict):
            own: str | Recipe = Recipe(part_of(ablation.document, ("base",)), ablation.name, ablation.folder)
        else:
            file = str(said).endswith((".yaml", ".yml"))
            own = str(ablation.folder / str(said)) if file else str(said)
        return load_recipe(own, [*steps, *overrides], environment=True, more=catalog().recipes())
    except RecipeError as error:
        place = ablation.document.place(("base",))
        ablation.faults += [Fault("base", place, f.message) for f in error.faults]
        raise RecipeError(ablation.faults) from error


def _cells(ablation: Ablation, faults: list[Fault]) -> list[dict[str, int]]:
    """Return each variant as the index of the value that every path has."""
    grouped = {p: tuple(g) for g in ablation.zips for p in g}
    axes = list(dict.fromkeys(grouped.get(p, (p,)) for p in ablation.vary))
    ranges = [range(len(ablation.vary[axis[0]])) for axis in axes]
    if (n := prod(len(r) for r in ranges)) > LARGEST:
        faults.append(
            Fault("vary", ablation.document.place(("vary",)), f"{n:,} combinations, even before exclude, are more than {LARGEST:,}")
        )
        return []
    cells = [{p: i for axis, i in zip(axes, chosen, strict=True) for p in axis} for chosen in product(*ranges)]
    for entry in ablation.exclude:
        rule = {p: v for p, v in entry.items() if p != "at"}
        left = [c for c in cells if not all(_says(ablation.vary[p][c[p]], v) for p, v in rule.items())]
        if len(left) == len(cells):
            at = ("exclude", entry["at"])
            faults.append(
                Fault(f"exclude.{entry['at']}", ablation.document.place(at), "no variant is like this, or another entry took it out")
            )
        cells = left
    return cells


def _says(value: Any, rule: Any) -> bool:
    """Whether a value is what an entry of ``exclude`` says: a bare name is every component of that name."""
    return bool(value == rule) or (isinstance(rule, str) and isinstance(value, dict) and value.get("use") == rule)


def _variant(ablation: Ablation, base: Recipe, cell: dict[str, int], labels: Labels, faults: list[Fault]) -> Variant | None:
    recipe = load_recipe(base)
    for path in sorted(cell, key=lambda p: p.count(".")):  # the whole before its parts
        override_from(recipe.document, path, ablation.document, ("vary", path, cell[path]))
        if ablation.vary[path][cell[path]] is None and "." not in path:
            recipe.document.values.pop(path, None)  # null takes a section out, as on the command line
    settings = _checked(recipe, faults)
    if settings is None:
        return None
    recipe.document.values.get("train", {}).pop("seed", None)
    name = labels.name(cell)
    apart = {p: i for p, i in cell.items() if p in ablation.across}
    alike = {p: i for p, i in cell.items() if p not in ablation.across}
    changes = {p: ablation.vary[p][i] for p, i in cell.items()}
    contestant = labels.name(alike) or "all"
    return Variant(
        name,
        "",
        changes,
        contestant,
        labels.name(apart),
        recipe.text(),
        recipe.code(),
        settings.train.steps,
        tuple(settings.plan.warnings),
    )


def _checked(recipe: Recipe, faults: list[Fault]) -> Settings | None:
    try:
        return Settings.of(recipe)
    except RecipeError as error:
        faults += error.faults
        return None


def _unchanged(base: Recipe, variant: Variant) -> bool:
    def there(path: str) -> Any:
        value: Any = base.values
        for part in path.split("."):
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict):
                value = value.get(part)
            else:
                return None
        return value

    return all(normal(there(path)) == normal(value) for path, value in variant.changes.items())


def slugs(names: Sequence[str]) -> list[str]:
    """Return names as those of files, the same that the trainer gives to a run's folder; what would be alike, or too long, ends in a hash."""
    plain = [file_name(name) for name in names]
    folded = Counter(p.lower() for p in plain)
    return [
        p if folded[p.lower()] == 1 and len(p) <= LONGEST else f"{p[:LONGEST].rstrip('.-')}-{sha256(name.encode()).hexdigest()[:8]}"
        for p, name in zip(plain, names, strict=True)
    ]

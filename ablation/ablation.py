"""The file of an ablation: what is varied, with which seeds, within which bounds; every value keeps its place in the text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

from ..pipeline import Document, read_yaml
from ..registry import Fault, Place, RecipeError, Strict, faults_of, listing, nearest
from ..registry.hyper import Count, Positive

KEYS = ("base", "vary", "zip", "exclude", "across", "seeds", "budget", "score")
At = tuple[str | int, ...]


class Budget(Strict):
    """What an ablation may cost at most."""

    runs: Count = 500
    """More variants times seeds than this are a fault: a grid grows faster than one thinks."""
    steps: Count | None = Field(default=None)
    """``train.steps`` of every run."""
    cpu_minutes: Positive | None = Field(default=None)
    """Of all runs together; when they are spent, no further run begins."""


@dataclass
class Ablation:
    """An ablation as it was written; ``faults`` holds what is wrong with the file itself."""

    name: str
    text: str
    folder: Path
    document: Document
    vary: dict[str, list[Any]] = field(default_factory=dict)
    zips: list[list[str]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    across: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    score: str = "eval/accuracy"
    faults: list[Fault] = field(default_factory=list)

    def fault(self, at: At, message: str) -> None:
        """Note that something is wrong with the file at a path."""
        self.faults.append(Fault(".".join(map(str, at)), self.document.place(at), message))


def bundled_ablations() -> dict[str, str]:
    """Return the text of every ablation in the box, by name."""
    folder = files("lossary") / "recipes" / "ablations"
    return {p.name.removesuffix(".yaml"): p.read_text("utf-8") for p in folder.iterdir() if p.name.endswith(".yaml")}


def read_ablation(said: str) -> Ablation:
    """Read a file or a bundled ablation; one that is not there raises ``RecipeError``, other faults are kept in ``faults``."""
    path, box = Path(said), bundled_ablations()
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        if not path.is_file():
            beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
            raise RecipeError([Fault("", Place(said), f"there is no such file.{nearest(path.name, beside)}")])
        try:
            name, text, folder, source = path.stem, path.read_text("utf-8-sig"), path.resolve().parent, said
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError([Fault("", Place(said), f"cannot be read: {error}")]) from error
    elif said in box:
        name, text, folder, source = said, box[said], Path.cwd(), f"{said}.yaml"
    else:
        hint = nearest(said, box) or f" Bundled: {listing(box)}."
        raise RecipeError([Fault("", Place(said), f"no ablation has this name.{hint} A file is named by its path, as in ./{said}.yaml.")])
    return parsed(text, name, folder, source)


def parsed(text: str, name: str, folder: Path, source: str) -> Ablation:
    """Return the ablation that a text says."""
    document = read_yaml(text, source)
    made = Ablation(name, text, folder, document, faults=list(document.faults))
    if document.faults:
        return made
    values = document.values
    for key in values:
        if key not in KEYS:
            made.fault((key,), f"unknown key: an ablation has {listing(KEYS)}.{nearest(key, KEYS)}")
    for key in ("base", "vary"):
        if values.get(key) is None:
            made.fault((key,), "required: " + ("the recipe that is varied" if key == "base" else "a mapping of recipe paths to lists"))
    if values.get("base") is not None and not isinstance(values["base"], str | dict):
        made.fault(("base",), "expected the name of a recipe, a file, or a recipe written here")
    _vary(made, values.get("vary"))
    made.zips = _paths_in_groups(made, values.get("zip"))
    _exclude(made, values.get("exclude"))
    made.across = _paths(made, ("across",), values.get("across"))
    _seeds(made, values.get("seeds", 3))
    _budget(made, values.get("budget"))
    score = values.get("score", made.score)
    if isinstance(score, str) and score:
        made.score = score
    else:
        made.fault(("score",), "expected the name of a metric, as eval/accuracy or reward")
    return made


def _vary(made: Ablation, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not value:
        made.fault(("vary",), "expected a mapping of recipe paths to lists, as {policy_loss: [ppo-clip, gspo]}")
        return
    for path, choices in value.items():
        if not all(part.strip() for part in path.split(".")):
            made.fault(("vary", path), "a path of a recipe reads a.b")
        elif path == "train.seed":
            made.fault(("vary", path), "seeds are no variants; say seeds: [0, 1, 2]")
        elif not isinstance(choices, list) or not choices:
            made.fault(("vary", path), "expected a list of values that this path takes in turn")
        else:
            for i, choice in enumerate(choices):
                if choice in choices[:i]:
                    made.fault(("vary", path, i), f"the same value as entry {choices.index(choice)}")
            made.vary[path] = choices
    _nested(made)


def _nested(made: Ablation) -> None:
    """Refuse a path below another: which of them is applied last would decide."""
    for path in made.vary:
        above = next((p for p in made.vary if path.startswith(f"{p}.")), None)
        if above is not None and not all(isinstance(c, dict | str) for c in made.vary[above]):
            made.fault(("vary", path), f"lies below {above}, which is varied too and is not a component in each of its values")


def _paths(made: Ablation, at: At, value: Any) -> list[str]:
    """Return a list of varied paths."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(p, str) for p in value):
        made.fault(at, "expected a list of paths that stand in vary")
        return []
    for i, path in enumerate(value):
        if path not in made.vary:
            made.fault((*at, i), f"{path!r} is not varied.{nearest(path, made.vary)}")
    return [p for p in value if p in made.vary]


def _paths_in_groups(made: Ablation, value: Any) -> list[list[str]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        made.fault(("zip",), "expected lists of paths that go together, as [[train.lr, train.epochs]]")
        return []
    groups = [_paths(made, ("zip", i), group) for i, group in enumerate(value)]
    seen: set[str] = set()
    for i, group in enumerate(groups):
        lengths = {p: len(made.vary[p]) for p in group}
        if len(set(lengths.values())) > 1:
            told = listing(f"{p} has {n}" for p, n in lengths.items())
            made.fault(("zip", i), f"paths that go together have equally many values; {told}")
        if len(group) < 2 or seen & set(group):
            made.fault(
                ("zip", i), "a group has at least two paths" if len(group) < 2 else f"{sorted(seen & set(group))[0]} is in two groups"
            )
        seen |= set(group)
    return [g for g in groups if len({len(made.vary[p]) for p in g}) == 1]


def _exclude(made: Ablation, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(e, Mapping) and e for e in value):
        made.fault(("exclude",), "expected a list of mappings, as [{policy_loss: gspo, train.epochs: 8}]")
        return
    for i, entry in enumerate(value):
        unknown = [p for p in entry if p not in made.vary]
        for path in unknown:
            made.fault(("exclude", i, path), f"{path!r} is not varied.{nearest(path, made.vary)}")
        if not unknown:
            made.exclude.append({"at": i, **entry})


def _seeds(made: Ablation, value: Any) -> None:
    several = list(range(value)) if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10_000 else value
    if not isinstance(several, list) or not several or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in several):
        made.fault(("seeds",), "expected how many (3 means 0, 1 and 2), or a list of whole numbers")
    elif len(set(several)) < len(several):
        made.fault(("seeds",), "a seed stands here twice")
    else:
        made.seeds = several


def _budget(made: Ablation, value: Any) -> None:
    value = {} if value is None else value
    if not isinstance(value, dict):
        made.fault(("budget",), f"expected a mapping with {listing(Budget.model_fields)}")
        return
    found = faults_of(Budget, value)
    for key, message in found:
        made.fault(("budget", key), message)
    if not found:
        made.budget = Budget.model_validate(value)

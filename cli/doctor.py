"""``lossary doctor``: what is wrong with a batch in a file, why it matters, and what to do."""

import json
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.text import Text
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..builtin import catalog
from ..diagnostics import RULES, Finding, Inspection, inspect, inspect_padded, warned
from ..diagnostics.dump import KEY, load_batch
from ..pipeline import Objective, Plan, build, load_recipe
from ..registry import Level, LossaryError

MASK = "response_mask"
PICKLED = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".npz", ".npy", ".ckpt", ".joblib"}


def examine(file: Path, recipe: str | None, *, names: str, as_json: bool) -> int:
    """Print the findings, worst first; return 1 if one is serious."""
    if file.is_dir() or file.suffix == ".jsonl":
        return _judge(file / "metrics.jsonl" if file.is_dir() else file, as_json=as_json)
    plan = build(load_recipe(recipe, environment=True, more=catalog().recipes()), catalog()) if recipe is not None else None
    what, found = _inspected(file, plan, names)
    if as_json:
        told = {
            "file": str(file),
            "findings": [f.plain() for f in found],
            "ran": list(found.ran),
            "skipped": dict(found.skipped),
        }
        print(json.dumps(told, indent=1))
    else:
        _print(what, found)
    return int(found.serious)


def _judge(file: Path, *, as_json: bool) -> int:
    """Print what the rules say of a run's metric lines, in the order of its steps; nothing of it is more than a warning."""
    lines = []
    try:
        for i, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            lines.append(json.loads(text))
            if not isinstance(lines[-1], dict):
                raise ValueError(f"line {i} is no mapping of names to numbers")
    except (OSError, ValueError) as error:
        raise LossaryError(f"{file}: these are no metric lines of a run: {error}") from error
    found = [w for n in range(1, len(lines) + 1) for w in warned(lines[:n])]
    if as_json:
        print(json.dumps({"file": str(file), "warnings": [w.plain() for w in found], "rules": [r.name for r in RULES]}, indent=1))
        return 0
    console = Console()
    console.print(f"{file}: {len(lines)} lines", style="bold", highlight=False, soft_wrap=True, markup=False)
    for w in found:
        console.print()
        _print_one(console, w)
    console.print()
    console.print(f"{len(found) or 'no'} warning{'s' if len(found) != 1 else ''}; {len(RULES)} rules", highlight=False, soft_wrap=True)
    return 0


def _inspected(file: Path, plan: Plan | None, names: str) -> tuple[str, Inspection]:
    """Inspect a dumped batch by its own recipe, if it has one and no other was named, or somebody's padded tensors."""
    tensors = _padded(file)
    if tensors is not None:
        mask = tensors.pop(MASK)
        said = f"{mask.shape[0]} sequences padded to {mask.shape[-1]}, {len(tensors)} columns"
        return f"{file}: {said}", inspect_padded(mask, tensors, _objective(plan), names=names)
    dump = load_batch(file)
    batch = dump.batch
    for name, x in dump.outputs.items():
        if name in ("log_prob", "entropy", "values"):
            batch = batch.with_columns(Level.TOKEN, **{name: x})
    whose = ""
    if plan is None and dump.recipe is not None:
        plan, whose = build(dump.read_recipe(), catalog()), " of the file"
    step = int(dump.state["step"]) or None if dump.state is not None else None  # 0 is also what a new objective says
    size = f"{len(batch)} sequences, {batch.sequences.index.shape[0]} tokens, {len(set(batch.groups))} groups"
    recipe = f", recipe {plan.name}{whose}" if plan is not None and not whose else ", with its recipe" if whose else ", no recipe"
    return f"{file}: {size}{recipe}{f', step {step}' if step is not None else ''}", inspect(batch, _objective(plan), step=step)


def _objective(plan: Plan | None) -> Objective | None:
    return Objective(plan) if plan is not None else None


def _padded(file: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file that is no dump; None: it is one. What may hold a pickle is refused."""
    if file.suffix in PICKLED:
        raise LossaryError(
            f"{file}: a {file.suffix} file is not read, since what can hold a pickle can run code. Write the batch by"
            f" lossary.diagnostics.save_batch, or the padded tensors, {MASK} among them, by safetensors.torch.save_file."
        )
    if not file.is_file():
        raise LossaryError(f"{file}: there is no such file.")
    try:
        with safe_open(file, framework="pt") as opened:
            if KEY in (opened.metadata() or {}):
                return None
            names_inside: list[str] = opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names_inside}
    except (OSError, SafetensorError) as error:
        raise LossaryError(f"{file}: it is no safetensors file: {error}") from error
    if MASK not in tensors:
        raise LossaryError(f"{file}: it is neither a dumped batch nor padded tensors, among which there must be {MASK!r}.")
    return tensors


def _print(what: str, found: Inspection) -> None:
    console = Console()
    console.print(what, style="bold", highlight=False, soft_wrap=True, markup=False)
    for finding in found:
        console.print()
        _print_one(console, finding)
    errors = sum(f.severity == "error" for f in found)
    warnings = len(found) - errors
    console.print()
    said = f"{errors or 'no'} error{'s' if errors != 1 else ''}, {warnings or 'no'} warning{'s' if warnings != 1 else ''}"
    console.print(f"{said}; {len(found.ran)} checks ran, {len(found.skipped)} had nothing to look at", highlight=False, soft_wrap=True)


def _print_one(console: Console, finding: Finding) -> None:
    style = "bold red" if finding.severity == "error" else "yellow"
    head = Text.assemble((finding.severity, style), "  ", (finding.check, "cyan"), f"  {finding.place}")
    console.print(head, highlight=False, soft_wrap=True)
    _say(console, finding.found, finding.why, finding.remedy)


def _say(console: Console, found: str, why: str, remedy: str) -> None:
    for label, text in (("found", found), ("why", why), ("do", remedy)):
        body = fill(text, console.width - 9, break_long_words=False, break_on_hyphens=False).replace("\n", "\n" + " " * 9)
        console.print(Text(f"  {label:5}  {body}"), highlight=False, soft_wrap=True)

"""A batch in a file, with all that its loss was made of: what a night left behind for the morning. ``safetensors``, so no code is ever read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective, Recipe, build, load_recipe, read_yaml
from ..pipeline.lock import lock_of
from ..pipeline.terms import Plan
from ..registry import FIELDS, Catalog, Level, LossaryError, RecipeError, listing
from .packing import REAL, DumpError, packed, unpacked
from .running import Result, rerun

FORMAT = 1
KEY = "lossary"
MOST_META = 64 << 20
"""Bytes of plain values that are read; the tensors hold the rest."""


@dataclass(frozen=True)
class Dump:
    """What a file holds: a batch and, where it came to a loss, the model's columns, the recipe, the state and the result."""

    batch: Batch
    outputs: Mapping[str, Tensor]
    """``log_prob``, ``entropy``, ``values`` ... as the loss was given them."""
    recipe: str | None = None
    """The recipe as YAML."""
    lock: Mapping[str, Any] | None = None
    """Every component with all its settings and the fingerprint of its code."""
    seed: int = 0
    state: Mapping[str, Any] | None = None
    generator: Tensor | None = None
    """The state of torch's generator."""
    recorded: Result | None = None
    """What the loss came to when the file was written."""
    tokens: tuple[str, ...] = ()
    """The text of each token."""
    group_names: tuple[str, ...] = ()
    """``[S]``: what the groups were called, where their ids were text."""
    note: str = ""

    def objective(self, catalog: Catalog, recipe: Recipe | None = None) -> Objective:
        """Return the objective of the file's recipe, in its state; of another recipe, in that state as far as it is the same.

        A file without a recipe raises ``DumpError``; a recipe with a fault raises ``RecipeError``.
        """
        if recipe is None and self.recipe is None:
            raise DumpError("the file holds a batch without a recipe; name one with --against.")
        objective = Objective(build(recipe or self.read_recipe(), catalog), seed=self.seed)
        if recipe is None:
            self._fits(objective.plan)
        if self.state is not None:
            try:
                objective.load_state_dict(self.state)
            except LossaryError:
                if recipe is None:
                    raise
                objective.memory.step = int(self.state["step"])
        return objective

    def _fits(self, plan: Plan) -> None:
        """Refuse a weighed batch that lacks what its own recipe's terms are multiplied by."""
        batch = self.batch
        for term in plan.terms if batch.totals is not None else ():
            seen = batch.kept if term.role == "actor" and batch.kept is not None else batch
            if term.coefficient.fixed != 1 and term.name not in batch.coefficients:
                raise DumpError(f"the file lacks the coefficient of term {term.name!r}; it has {listing(batch.coefficients)}.")
            if term.aggregation not in seen.weights:
                raise DumpError(
                    f"the file lacks the weights by {term.aggregation!r} of term {term.name!r}; it has {listing(seen.weights)}."
                )

    def read_recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """Return the file's recipe with ``a.b=value`` applied."""
        document = read_yaml(self.recipe or "", "the recipe in the file")
        if document.faults:
            raise RecipeError(document.faults)
        return load_recipe(document.values, overrides)

    def changed(self, plan: Plan) -> list[str]:
        """Return the components that are other code now than when the file was written."""
        before = {c["slot"]: c["code"] for c in (self.lock or {}).get("components", ())}
        now = {c["slot"]: c["code"] for c in lock_of(plan)["components"]}
        return [slot for slot, code in before.items() if now.get(slot) != code]


def save_batch(
    path: str | Path,
    batch: Batch,
    *,
    objective: Objective | None = None,
    recipe: Recipe | Mapping[str, Any] | str | None = None,
    outputs: Mapping[str, Tensor] | None = None,
    tokens: Sequence[str] = (),
    group_names: Sequence[str] = (),
    note: str = "",
    replace: bool = False,
) -> None:
    """Write a batch, and with ``objective``, ``recipe`` and the model's ``outputs`` all that its loss is made of.

    Unlike a checkpoint it holds no weights: ``log_prob``, ``entropy``, ``values`` stand for the model. The loss is run once and its
    result kept, so that a replay can be compared with it. ``tokens`` are ``[N]`` texts, ``group_names`` ``[S]``. A file that is there
    already raises ``DumpError`` unless ``replace``.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise DumpError(f"{path} is there already; say replace=True to overwrite it.")
    outputs = {n: batch.layout.pack(x, n) if FIELDS[n].level is Level.TOKEN else x for n, x in (outputs or {}).items()}
    for name, texts, size in (("tokens", tokens, batch.sequences.index.shape[0]), ("group_names", group_names, len(batch))):
        if texts and len(texts) != size:
            raise DumpError(f"{name} has {len(texts)} texts; expected {size}.")
    tensors, said = unpacked(batch)
    meta: dict[str, Any] = {"format": FORMAT, "batch": said, "tokens": list(tokens), "group_names": list(group_names), "note": note}
    tensors |= {f"model.{n}": x for n, x in outputs.items()}
    tensors["generator"] = torch.random.get_rng_state()
    if recipe is not None:
        meta["recipe"] = load_recipe(recipe).text()
    if objective is not None:
        kept: dict[str, Tensor] = {}
        meta |= {"seed": objective.seed, "lock": lock_of(objective.plan), "state": _stripped(objective.state_dict(), kept)}
        tensors |= kept
        if outputs and batch.totals is not None:
            result = rerun(objective, batch, outputs, tensors["generator"])
            tensors |= _tensors_of(result)
            meta["metrics"] = dict(result.metrics)
    _write(path, tensors, meta)


def _write(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    plain = {n: x.detach().cpu().contiguous().clone() for n, x in tensors.items()}  # two names of one memory are refused by the format
    aside = path.with_name(f"{path.name}.partial")
    try:
        save_file(plain, aside, metadata={KEY: json.dumps(meta)})
        aside.replace(path)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise DumpError(f"{path} cannot be written: {error}") from error


def load_batch(path: str | Path) -> Dump:
    """Read what ``save_batch`` wrote; a file that is none, is cut short or contradicts itself raises ``DumpError`` that says how."""
    path = Path(path)
    try:
        tensors, meta = _read(path)
        return _assembled(tensors, meta)
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                raise DumpError("it is no dump of a batch: the part 'lossary' is missing from its header.")
            if len(text) > MOST_META:
                raise DumpError(f"its plain values are {len(text)} bytes long; at most {MOST_META} are read.")
            names: list[str] = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise DumpError(f"it is no safetensors file: {error}") from error
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"its plain values are no JSON: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DumpError(f"its format is {meta.get('format') if isinstance(meta, dict) else meta!r}; this version reads {FORMAT}.")
    return tensors, meta


def _assembled(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Dump:
    said = meta.get("batch")
    if not isinstance(said, dict):
        raise DumpError("the part 'batch' is missing.")
    prefixes = ("model.", "recorded.", "state.")
    own = {n: x for n, x in tensors.items() if not n.startswith(prefixes) and n != "generator"}
    batch = packed(own, said)
    outputs = {n.removeprefix("model."): x for n, x in tensors.items() if n.startswith("model.")}
    for name, x in outputs.items():
        size = len(batch) if name == "log_z" else batch.sequences.index.shape[0]
        if name not in FIELDS or x.dim() == 0 or x.shape[0] != size or x.dtype not in REAL:
            raise DumpError(f"the model's {name!r} is {x.dtype} {list(x.shape)}; expected real numbers [{size}, ...].")
    recipe, lock, seed, state = (meta.get(n) for n in ("recipe", "lock", "seed", "state"))
    for name, value, kind in (("recipe", recipe, str), ("lock", lock, dict), ("seed", seed, int), ("state", state, dict)):
        if value is not None and not isinstance(value, kind):
            raise DumpError(f"the part {name!r} is {type(value).__name__}; expected {kind.__name__}.")
    if seed is not None and not -(1 << 63) <= seed < 1 << 63:
        raise DumpError(f"the seed is {seed}; expected 64 bits.")
    return Dump(
        batch=batch,
        outputs=outputs,
        recipe=recipe,
        lock=None if lock is None else _locked(lock),
        seed=seed or 0,
        state=None if state is None else _state(state, tensors),
        generator=_generator(tensors.get("generator")),
        recorded=_recorded(tensors, meta.get("metrics")),
        tokens=_texts(meta, "tokens", batch.sequences.index.shape[0]),
        group_names=_texts(meta, "group_names", len(batch)),
        note=str(meta.get("note", "")),
    )


def _locked(lock: dict[str, Any]) -> dict[str, Any]:
    used = lock.get("components")
    if not isinstance(used, list) or not all(
        isinstance(c, dict) and isinstance(c.get("slot"), str) and isinstance(c.get("code"), str) for c in used
    ):
        raise DumpError("the part 'lock' names no components with their slots and code.")
    return lock


def _state(said: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    state = _filled(said, tensors)
    step = state.get("step") if isinstance(state, dict) else None
    if type(step) is not int or not 0 <= step < 1 << 63:
        raise DumpError(f"the state says that {step!r} steps were taken; expected a count.")
    return {str(k): v for k, v in state.items()}


def _generator(x: Tensor | None) -> Tensor | None:
    if x is not None:
        try:
            torch.Generator().set_state(x)
        except (RuntimeError, TypeError) as error:
            raise DumpError(f"'generator' is no state of torch's generator: {error}") from error
    return x


def _texts(meta: Mapping[str, Any], name: str, size: int) -> tuple[str, ...]:
    texts = meta.get(name, [])
    if not isinstance(texts, list) or len(texts) not in (0, size) or not all(isinstance(t, str) for t in texts):
        raise DumpError(f"the part {name!r} is no list of {size} texts.")
    return tuple(texts)


def _tensors_of(result: Result) -> dict[str, Tensor]:
    made = {"recorded.total": result.total} | {f"recorded.term.{n}": x for n, x in result.terms.items()}
    return made | {f"recorded.gradient.{n}": x for n, x in result.gradients.items()}


def _recorded(tensors: Mapping[str, Tensor], metrics: Any) -> Result | None:
    if "recorded.total" not in tensors:
        return None
    if not isinstance(metrics, dict) or not all(isinstance(x, float) or (type(x) is int and abs(x) < 1 << 63) for x in metrics.values()):
        raise DumpError("the part 'metrics' is no mapping of names to numbers.")

    def of(what: str) -> dict[str, Tensor]:
        return {n.removeprefix(f"recorded.{what}."): x for n, x in tensors.items() if n.startswith(f"recorded.{what}.")}

    return Result(tensors["recorded.total"], of("term"), of("gradient"), metrics)


def _stripped(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return plain values, with each tensor moved to ``tensors`` and its name left behind."""
    if isinstance(value, Tensor):
        name = f"state.{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"map": {str(k): _stripped(v, tensors) for k, v in value.items()}}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    raise DumpError(f"the objective's state holds {type(value).__name__}; expected tensors, numbers and texts.")


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"map"} and isinstance(value["map"], dict):
        return {k: _filled(v, tensors) for k, v in value["map"].items()}
    name = value.get("tensor")
    if set(value) != {"tensor"} or not isinstance(name, str) or name not in tensors:
        raise DumpError(
            f"the state names the tensor {name!r}, which the file lacks; it has {listing(n for n in tensors if n[:6] == 'state.')}."
        )
    return tensors[name]

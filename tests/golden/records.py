"""What the golden tests share: the records, the tables that say which of them are compared, and the call of a component."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lossary import aggregators, algorithms, estimators
from lossary.batch import Batch
from lossary.registry import Component, Level, Totals, component_of

ELSEWHERE = os.environ.get("LOSSARY_GOLDEN_DIR")
"""A folder with other records of the same form; the tables then need not be used up."""
HERE = Path(ELSEWHERE or Path(__file__).parent)
POLICY: Mapping[str, Any] = json.loads((HERE / "golden_policy.json").read_text())
ESTIMATORS: Mapping[str, Any] = json.loads((HERE / "golden_estimators.json").read_text())

COMPONENTS: Mapping[tuple[str, str], Component] = {
    (c.kind.name, c.name): c
    for package in (algorithms, estimators, aggregators)
    for c in map(component_of, package.lossary_components())
    if c is not None
}
REASONS = ("framework-bug", "counts-padding", "reads-hole", "split-dependent", "unclamped", "hidden-float32")


# ── which records are compared ───────────────────────────────────────────────────────────────────────────────────────

Record = Mapping[str, Any]
Key = tuple[str, str]
"""``(framework, "word & word & !word")``: patterns of the framework and of the record's words; ``!`` is one that no word may match."""


class Unmapped(LookupError):
    """A record that is neither compared nor in one of the tables."""

    def __init__(self, r: Record) -> None:
        super().__init__(f"{r['id']} says something new: map it onto a component, or enter it in DELIBERATE.")


def leaves(x: Any, path: str) -> Iterator[str]:
    """Yield ``name.name=value`` for all that a record's hyperparameters say."""
    if isinstance(x, Mapping):
        for key, below in x.items():
            yield from leaves(below, f"{path}.{key}" if path else key)
    else:
        yield f"{path}={x}"


def fits(key: Key, framework: str, words: tuple[str, ...]) -> bool:
    def holds(pattern: str) -> bool:
        wanted = pattern.removeprefix("!")
        return any(fnmatchcase(word, wanted) for word in words) is (wanted == pattern)

    return fnmatchcase(framework, key[0]) and all(map(holds, key[1].split(" & ")))


@dataclass(frozen=True)
class Book:
    """The records of one file, each compared or deliberately different."""

    name: str
    raw: list[Record]
    words: Callable[[Record], Iterator[str]]
    """What a record says and what its data are like; the tables are written in these."""
    differences: Callable[[Record], list[str]]
    """What of a record ours does not meet."""
    deliberate: Mapping[Key, tuple[str, str]]

    def __post_init__(self) -> None:
        BOOKS.append(self)

    @cached_property
    def records(self) -> Mapping[str, Record]:
        return {r["id"]: r for r in self.raw}

    @cached_property
    def rows(self) -> Mapping[str, Key | None]:
        """By record the first row of a table that it fits; those with none are compared."""
        said = {i: tuple(self.words(r)) for i, r in self.records.items()}
        return {i: next((k for k in self.deliberate if fits(k, r["framework"], said[i])), None) for i, r in self.records.items()}

    @property
    def compared(self) -> list[str]:
        return [i for i, key in self.rows.items() if key is None]

    def of(self, key: Key) -> list[str]:
        return [i for i, found in self.rows.items() if found == key]

    def summary(self) -> str:
        return f"{self.name}: {len(self.compared)} compared + {len(self.raw) - len(self.compared)} deliberate = {len(self.raw)} records"

    def check_sum(self) -> None:
        assert len(self.records) == len(self.raw), "an id occurs twice"
        assert ELSEWHERE or len(self.raw) - len(self.compared) < 0.1 * len(self.raw)

    def check_deliberate(self, key: Key) -> None:
        """All of its records differ; of other records than the bundled ones, one."""
        reason, sentence = self.deliberate[key]
        assert reason in REASONS
        assert sentence.endswith(".")
        rows = self.of(key)
        differ = [bool(self.differences(self.records[i])) for i in rows]
        if ELSEWHERE:
            assert not rows or any(differ)
        else:
            assert rows, f"no record fits {key}"
            assert all(differ), f"these no longer differ: {[i for i, yes in zip(rows, differ, strict=True) if not yes]}"


BOOKS: list[Book] = []
"""All books that were opened, for the summary at the end of the run."""


# ── reading an estimator's record ────────────────────────────────────────────────────────────────────────────────────

Pairs = list[tuple[str, Tensor, Tensor]]
"""``(what, ours, theirs)``."""


def value(x: Any) -> Any:
    """Decode a tensor or a reference to a fixture; everything else as it is."""
    if isinstance(x, str) and x.startswith("$fx."):
        _, fixture, key = x.split(" ")[0].split(".")
        return value(ESTIMATORS["fixtures"][fixture][key])
    if isinstance(x, dict) and "shape" in x:
        if x["dtype"] == "object":
            return x["data"]
        return torch.tensor([float(number) for number in x["data"]], dtype=torch.float64).reshape(x["shape"])
    if isinstance(x, (float, int)) and not isinstance(x, bool):
        return torch.tensor(float(x), dtype=torch.float64)
    return x


def inputs(r: Record) -> dict[str, Any]:
    return {k: value(v) for k, v in r["inputs"].items()}


def outputs(r: Record) -> dict[str, Any]:
    found = {k: value(v) for k, v in r["outputs"].items()}
    return {k: torch.tensor(v, dtype=torch.float64) if isinstance(v, list) else v for k, v in found.items()}


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def call(kind: str, name: str, params: Mapping[str, Any], batch: Batch, totals: Totals | None = None, **made: Tensor) -> Any:
    """Call a component as the pipeline does: columns by name, hyperparameters checked."""
    c = COMPONENTS[kind, name]
    special = {"sequences": batch.sequences, "totals": totals, **made}
    columns = [
        special[i.name] if i.name in special else batch.column(i.name, i.level) if i.name in batch or not i.optional else None
        for i in c.inputs
    ]
    return c.function(*columns, **c.params.model_validate(params).model_dump())


Chain = Iterable[tuple[str, Mapping[str, Any]]]
"""Corrections in the order in which they run, with their hyperparameters."""


def corrected(batch: Batch, chain: Chain) -> tuple[Tensor, Tensor]:
    """Return ``(weight, keep)`` of all tokens: each correction sees what the ones before it left, and a dropped token weighs nothing."""
    tokens = torch.arange(batch.sequences.index.shape[0])
    weight, product = torch.zeros(len(tokens), dtype=torch.float64), torch.ones(len(tokens), dtype=torch.float64)
    for name, params in chain:
        out = call("correction", name, params, batch.with_columns(Level.TOKEN, correction=product))
        factor, keep = out[0] if isinstance(out[0], tuple) else out
        product = product if factor is None else product * factor
        if keep is not None:
            batch, product, tokens = batch.select(keep), product[keep], tokens[keep]
    keep = torch.zeros(len(weight), dtype=torch.bool).index_fill(0, tokens, True)
    return weight.index_copy(0, tokens, product), keep


def totals_of(batch: Batch, empty: str, given: Mapping[str, float]) -> Totals:
    """Return the denominators; ``empty="count"`` also counts sequences without a token, and ``given`` are the framework's own."""
    lengths = batch.sequences.lengths
    counts = {
        "tokens": float(lengths.sum()),
        "sequences": float((lengths > 0).sum()) if empty == "drop" else float(len(batch)),
        "groups": float(len(set(batch.groups))) or 1.0,
        **given,
    }
    t = {k: torch.tensor(v, dtype=torch.float64) for k, v in counts.items()}
    return Totals(t["tokens"], t["sequences"], t["groups"], t["tokens"])


def difference(what: str, ours: Tensor, theirs: Tensor, rtol: float, atol: float) -> list[str]:
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    except AssertionError as error:
        return [f"{what}: {ours.tolist()} for {theirs.tolist()} ({' '.join(str(error).split())[:160]})"]
    return []

"""What a model gave for the tokens of a micro-batch, packed and widened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..registry import ColumnError, Level
from .needs import MODEL
from .terms import Plan
from .vocabulary import VOCAB, Rows

CRITIC = ("values", "value_logits")
SEQUENCE = ("log_z",)


@dataclass(frozen=True)
class Outputs:
    """What a model gave for the tokens of a micro-batch."""

    columns: Mapping[str, Tensor]
    rows: Mapping[str, Rows]

    @classmethod
    def of(cls, given: Mapping[str, Any], micro: Batch, needed: Mapping[str, str], call: str = "loss(micro") -> "Outputs":
        """Pack and widen what was given, or what the batch carries; what is needed and absent raises ``ColumnError``."""
        columns: dict[str, Tensor] = {}
        rows: dict[str, Rows] = {}
        for name, x in given.items():
            x = micro.columns.get(name) if x is None else x
            if x is None:
                continue
            if name in VOCAB:
                rows[name] = Rows.packed(x, micro.layout, name)
                continue
            if not isinstance(x, Tensor) or not x.is_floating_point():
                what = x.dtype if isinstance(x, Tensor) else type(x).__name__
                raise ColumnError(f"{name} is {what}; expected real numbers of a floating type.")
            if name in SEQUENCE:
                if x.shape != micro.sequences.lengths.shape:
                    raise ColumnError(f"{name} has the shape {list(x.shape)}; expected [{len(micro)}], one value per sequence.")
            elif given[name] is not None:
                x = micro.layout.pack(x, name)
            columns[name] = x if x.dtype in (torch.float32, torch.float64) else x.float()
        for name, who in needed.items():
            if name not in columns and name not in rows:
                raise ColumnError(f"{who} needs {name!r} from the model: {call}, {name}=...).")
        return cls(columns, rows)

    @property
    def dtype(self) -> torch.dtype:
        """In which the loss is given: that of the columns, or else of the logits, at least float32."""
        found = [x.dtype for x in (*self.columns.values(), *(r.x for r in self.rows.values()))]
        return found[0] if found and found[0] in (torch.float32, torch.float64) else torch.float32

    def rows_of(self, role: str) -> dict[str, Rows]:
        """Return what one role has per word."""
        return {n: r for n, r in self.rows.items() if (n in CRITIC) == (role == "critic")}

    def made(self, role: str) -> dict[str, tuple[Any, Level]]:
        """Return the columns of one role with their levels."""
        chosen = {n: x for n, x in self.columns.items() if (n in CRITIC) == (role == "critic")}
        return {n: (x, Level.SEQUENCE if n in SEQUENCE else Level.TOKEN) for n, x in chosen.items()}

    def anchors(self, role: str, certain: frozenset[str] = frozenset()) -> list[Tensor]:
        """Return the tensors of one role that a gradient reaches, to be joined by empty sums; not those ``certain`` to be in already."""
        found = [x for n, x in self.columns.items() if (n in CRITIC) == (role == "critic") and n not in certain]
        for name, r in self.rows.items():
            if name in MODEL and (name in CRITIC) == (role == "critic"):
                found += [x for x in r.leaves if x is not None]
        return [x for x in found if x.requires_grad]


def certain(plan: Plan) -> frozenset[str]:
    """Return the model's columns that some term learns from whatever happens: it reads no other, and without a gradient it would raise."""
    alone = (t.bound.reads & set(MODEL) for t in plan.terms)
    return frozenset(name for names in alone if len(names) == 1 for name in names)


def joined(parts: list[Tensor], anchors: list[Tensor]) -> Tensor | None:
    """Add up one role's terms; the model's outputs join with empty sums, so that a loss without tokens still has their graph."""
    total = None
    for x in (*parts, *(x[:0].sum() for x in anchors)):
        total = x if total is None else total + x
    return total

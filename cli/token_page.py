"""The page of one sequence: every token coloured by what it adds to the loss, in total and by term. One file, nothing fetched."""

from pathlib import Path

import jinja2
import torch

from ..batch import Batch
from ..diagnostics.dump import Dump
from ..diagnostics.explaining import Explained
from ..diagnostics.running import shares
from ..pipeline import Objective

TEMPLATE = Path(__file__).with_name("token_page.html.jinja")


def page(name: str, dump: Dump, objective: Objective, batch: Batch, found: Explained) -> str:
    """Return the HTML of the sequence that ``found`` is a token of."""
    begin = int(batch.sequences.offsets[found.sequence])
    n, span = batch.sequences.index.shape[0], slice(begin, begin + found.length)
    made = {s.term.name: s.per_token(n)[span].double().nan_to_num() for s in shares(objective, batch, dump.outputs)}
    rows = {"total": torch.stack(list(made.values())).sum(0), **(made if len(made) > 1 else {})}
    ids = batch["token_ids"][span].tolist() if "token_ids" in batch else list(range(found.length))
    said = dump.tokens[span] if dump.tokens else [""] * found.length
    texts = [text or f"#{i}" for text, i in zip(said, ids, strict=True)]
    drawn = []
    for title, values in rows.items():
        largest = float(values.abs().max())
        cells = [
            {"text": text, "value": f"{v:.6g}", "up": v > 0, "strength": round(85 * abs(v) / (largest or 1.0))}
            for text, v in zip(texts, values.tolist(), strict=True)
        ]
        drawn.append({"title": title, "sum": f"{float(values.sum()):.6g}", "largest": f"{largest:.3g}" if largest else "", "cells": cells})
    shell = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return shell.from_string(TEMPLATE.read_text("utf-8")).render(name=name, rows=drawn, e=found, number=lambda x: f"{x + 0.0:.6g}")

"""Random batches for property tests: padded, with holes, empty rows and groups that straddle everything."""

from typing import Any

import torch
from torch import Tensor

from lossary import Batch
from lossary.registry import FIELDS, Component, Level

TRAINED = ("log_prob", "entropy", "values", "logits", "value_logits")
"""What the models that are trained give."""
FROZEN = ("ref_logits", "teacher_logits")
"""What the others give inside the loss."""


class World:
    """A batch as the outside sees it: a mask and columns that hold garbage wherever nothing was sampled."""

    def __init__(self, seed: int, rows: int = 9, width: int = 7, dtype: torch.dtype = torch.float64, garbage: float = 0.0) -> None:
        g, h = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
        self.mask = torch.rand(rows, width, generator=g) < 0.6
        self.mask[rows // 2] = False  # an empty sequence
        self.mask[0] = torch.arange(width) == 1  # a sequence of one token

        def log_probs() -> Tensor:
            return self.dirty(-torch.rand(rows, width, generator=g, dtype=torch.float64) * 3, garbage).to(dtype)

        def words(n: int) -> Tensor:
            return self.dirty(torch.randn(rows, width, n, generator=h, dtype=torch.float64), garbage).to(dtype)

        self.log_prob, self.entropy, self.values = log_probs(), -log_probs(), log_probs()
        self.logits, self.value_logits, self.ref_logits, self.teacher_logits = words(7), words(5), words(7), words(7)
        likeliest = torch.where(self.mask[..., None], self.teacher_logits, 0.0).log_softmax(-1).topk(3)
        self.columns: dict[str, Tensor] = {
            "old_log_prob": (self.log_prob + self.dirty(torch.randn(rows, width, generator=g, dtype=torch.float64) * 0.3, garbage)).to(
                dtype
            ),
            "rollout_log_prob": log_probs(),
            "ref_log_prob": log_probs(),
            "teacher_log_prob": log_probs(),
            "advantages": self.dirty(torch.randn(rows, width, generator=g, dtype=torch.float64), garbage).to(dtype),
            "returns": log_probs(),
            "old_values": log_probs(),
            "rewards": torch.randn(rows, generator=g, dtype=torch.float64).to(dtype),
            "group_ids": torch.arange(rows) // 3,
            "truncated": (torch.arange(rows) % 4 == 0).to(dtype),
            "bootstrap_values": torch.randn(rows, generator=g, dtype=torch.float64).to(dtype),
            "demonstration": (torch.arange(width) % 3 == 0).expand(rows, width).to(dtype),
            "policy_version": torch.arange(rows)[:, None].expand(rows, width) % 3,
            "turns": torch.arange(width).expand(rows, width) // 3,
            "positions": torch.arange(width).expand(rows, width),
            "turn_rewards": torch.randn(rows, 3, generator=g, dtype=torch.float64).to(dtype),
            "component_rewards": torch.randn(rows, 2, generator=g, dtype=torch.float64).to(dtype),
            "baseline_rewards": torch.randn(rows, generator=g, dtype=torch.float64).to(dtype),
            "sum_pi_squared": self.dirty(torch.rand(rows, width, generator=g, dtype=torch.float64), garbage).to(dtype),
            "teacher_topk_log_prob": self.dirty(likeliest.values, garbage),
            "teacher_topk_ids": likeliest.indices,
            "prm_log_prob": log_probs(),
            "log_z": torch.randn(rows, generator=g, dtype=torch.float64).to(dtype),
            "noise": self.dirty(torch.rand(rows, width, generator=g, dtype=torch.float64), garbage).to(dtype),
            "frozen_rewards": torch.randn(rows, 4, generator=g, dtype=torch.float64).to(dtype),
            "rollout_lengths": self.mask.sum(1) + torch.arange(rows) % 3,
            "token_ids": torch.randint(0, 3, (rows, width), generator=g),
            "sequence_ids": torch.arange(rows) + 100,
            "state_ids": torch.arange(rows) % 2,
        }

    def dirty(self, x: Tensor, garbage: float) -> Tensor:
        return torch.where(self.mask if x.dim() == 2 else self.mask[..., None], x, garbage)

    def batch(self, rows: list[int] | None = None, *, trained: bool = False, **more: Tensor) -> Batch:
        """Cross the border with all rows, or some; ``trained``: with the model's outputs too."""
        chosen = slice(None) if rows is None else rows
        if trained:
            more = {"log_prob": self.log_prob, "entropy": self.entropy, "values": self.values, **more}
        columns = {k: v[chosen] for k, v in {**self.columns, **more}.items()}
        return Batch.from_padded(self.mask[chosen], **columns)

    def leaves(self) -> dict[str, Tensor]:
        """Fresh leaves for the models' outputs; those of the frozen ones want no gradient."""
        return {k: getattr(self, k).clone().requires_grad_(k in TRAINED) for k in (*TRAINED, *FROZEN)}


def over_words(name: str, tokens: int, words: int = 7) -> Tensor:
    """Return a column with one value per token and word, which a batch does not hold."""
    return torch.randn(tokens, words, generator=torch.Generator().manual_seed(len(name)), dtype=torch.float64)


def columns_of(component: Component, batch: Batch, *, requires_grad: bool = False) -> tuple[list[Any], dict[str, Tensor]]:
    """Return what a component is called with, and its trained columns as fresh leaves."""
    leaves: dict[str, Tensor] = {}
    columns: list[Any] = []
    for i in component.inputs:
        if i.name == "sequences":
            columns.append(batch.sequences)
        elif i.name == "step":
            columns.append(torch.tensor(3.0, dtype=torch.float64))
        elif i.name in FIELDS and FIELDS[i.name].level is Level.VOCAB:
            x = over_words(i.name, batch.sequences.index.shape[0])
            if FIELDS[i.name].differentiable and requires_grad:
                x = leaves[i.name] = x.requires_grad_()
            columns.append(x)
        else:
            if i.optional and i.name not in batch:
                columns.append(None)
                continue
            level = i.level if i.level in (Level.TOKEN, Level.SEQUENCE) else None
            x = batch.column(i.name, level or (FIELDS[i.name].level if FIELDS[i.name].level is Level.TOKEN else None))
            if FIELDS[i.name].differentiable and requires_grad:
                x = leaves[i.name] = x.detach().clone().requires_grad_()
            columns.append(x)
    return columns, leaves

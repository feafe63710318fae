"""Random batches for property tests: padded, with holes, empty rows and groups that straddle everything."""

import torch
from torch import Tensor

from lossary import Batch


class World:
    """A batch as the outside sees it: a mask and columns that hold garbage wherever nothing was sampled."""

    def __init__(self, seed: int, rows: int = 9, width: int = 7, dtype: torch.dtype = torch.float64, garbage: float = 0.0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.mask = torch.rand(rows, width, generator=g) < 0.6
        self.mask[rows // 2] = False  # an empty sequence
        self.mask[0] = torch.arange(width) == 1  # a sequence of one token

        def log_probs() -> Tensor:
            return self.dirty(-torch.rand(rows, width, generator=g, dtype=torch.float64) * 3, garbage).to(dtype)

        self.log_prob, self.entropy, self.values = log_probs(), -log_probs(), log_probs()
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
            "turns": torch.arange(width).expand(rows, width) // 3,
            "positions": torch.arange(width).expand(rows, width),
            "turn_rewards": torch.randn(rows, 3, generator=g, dtype=torch.float64).to(dtype),
            "component_rewards": torch.randn(rows, 2, generator=g, dtype=torch.float64).to(dtype),
            "baseline_rewards": torch.randn(rows, generator=g, dtype=torch.float64).to(dtype),
            "sum_pi_squared": self.dirty(torch.rand(rows, width, generator=g, dtype=torch.float64), garbage).to(dtype),
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
        return torch.where(self.mask, x, garbage)

    def batch(self, rows: list[int] | None = None, **more: Tensor) -> Batch:
        """Cross the border with all rows, or some."""
        chosen = slice(None) if rows is None else rows
        columns = {k: v[chosen] for k, v in {**self.columns, **more}.items()}
        return Batch.from_padded(self.mask[chosen], **columns)

    def leaves(self) -> dict[str, Tensor]:
        """Fresh leaves for the model's outputs."""
        return {k: getattr(self, k).clone().requires_grad_() for k in ("log_prob", "entropy", "values")}

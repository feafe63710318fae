"""One optimizer for each role, each with its own clipping: the actor's gradient never scales the critic's."""

import math
from typing import Any

import torch
from torch import nn

from ..registry import LossaryError
from .settings import TrainSettings


class Optimizing:
    """AdamW for the actor and, if there is one, for the critic."""

    def __init__(self, settings: TrainSettings, actor: nn.Module, critic: nn.Module | None) -> None:
        self.settings, self.clip = settings, settings.grad_clip
        self.roles = {"actor": (actor, settings.lr)} | ({"critic": (critic, settings.critic_lr)} if critic is not None else {})
        self.optimizers = {
            role: torch.optim.AdamW(model.parameters(), lr=lr, betas=settings.betas, weight_decay=settings.weight_decay)
            for role, (model, lr) in self.roles.items()
        }

    def scale(self, factor: float) -> None:
        """Set every learning rate to this part of what the settings say."""
        for role, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.roles[role][1] * factor

    def step(self) -> dict[str, float]:
        """Clip and apply each role's gradient and clear it; returns the norms before clipping.

        A gradient that is not finite raises ``LossaryError`` before any parameter moves.
        """
        norms = {}
        for role, (model, _) in self.roles.items():  # all norms first: a bad critic must not leave the actor one step ahead
            norm = nn.utils.clip_grad_norm_(model.parameters(), self.clip if self.clip is not None else float("inf"))
            norms[f"{role}/grad_norm"] = norm.item()
            if not math.isfinite(norms[f"{role}/grad_norm"]):
                raise LossaryError(f"the {role}'s gradient is not finite ({norm.item()}); the step was not taken and nothing was changed.")
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norms

    def state_dict(self) -> dict[str, Any]:
        """Return every optimizer's state."""
        return {role: o.state_dict() for role, o in self.optimizers.items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take it back."""
        for role, optimizer in self.optimizers.items():
            optimizer.load_state_dict(saved[role])
            for group in optimizer.param_groups:  # moments come from the checkpoint, settings from the recipe and its overrides
                group.update(lr=self.roles[role][1], betas=self.settings.betas, weight_decay=self.settings.weight_decay)

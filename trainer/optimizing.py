"""One optimizer for each role, each with its own clipping: the actor's gradient never scales the critic's."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..registry import LossaryError
from .checkpoint import Saved
from .ranks import Group, whole
from .settings import TrainSettings


class NotFinite(LossaryError):
    """A loss or a gradient is infinite or no number: the step was not taken."""


class Optimizing:
    """AdamW for the actor and, if there is one, for the critic; either rests for the first steps if the settings say so."""

    def __init__(self, settings: TrainSettings, actor: nn.Module, critic: nn.Module | None) -> None:
        self.settings, self.clip, self.factor, self.taken = settings, settings.grad_clip, 1.0, 0
        self.roles = {"actor": (actor, settings.lr)} | ({"critic": (critic, settings.critic_lr)} if critic is not None else {})
        self.frozen = {"actor": settings.freeze_actor, "critic": settings.freeze_critic}
        self.optimizers = {
            role: torch.optim.AdamW(model.parameters(), lr=lr, betas=settings.betas, weight_decay=settings.weight_decay)
            for role, (model, lr) in self.roles.items()
        }

    def scale(self, factor: float) -> None:
        """Set every learning rate to this part of what the settings say."""
        self.factor = factor
        for role, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.roles[role][1] * factor

    def step(self) -> dict[str, float]:
        """Clip and apply the gradient of each role that does not rest, and clear all; returns the norms before clipping.

        A gradient that is not finite raises ``NotFinite`` before any parameter moves.
        """
        norms = {}
        for role, (model, _) in self.roles.items():  # all norms first: a bad critic must not leave the actor one step ahead
            norm = nn.utils.clip_grad_norm_(model.parameters(), self.clip if self.clip is not None else float("inf"))
            norms[f"{role}/grad_norm"] = whole(norm).item()
        for role in self.roles:
            if not math.isfinite(found := norms[f"{role}/grad_norm"]):
                raise NotFinite(f"the {role}'s gradient is not finite ({found}); the step was not taken and nothing was changed.")
        for role, optimizer in self.optimizers.items():
            if self.taken >= self.frozen[role]:
                optimizer.step()
        self.clear()
        self.taken += 1
        return norms

    def clear(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizers' moments by the names of role and parameter."""
        return {
            f"{role}.{name}.{key}": x
            for role, (model, _) in self.roles.items()
            for name, p in model.named_parameters()
            for key, x in self.optimizers[role].state.get(p, {}).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the moments."""
        return {"taken": self.taken, "factor": self.factor}

    def load(self, saved: Saved, plain: dict[str, Any], group: Group) -> None:
        """Take up moments and progress; learning rates are the recipe's, times the factor that had been reached."""
        there, room = saved.under("optimizer."), {}
        for role, (model, _) in self.roles.items():
            for name, p in model.named_parameters():
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if (place := f"{role}.{name}.{key}") in there:
                        room[place] = torch.zeros(()) if key == "step" else torch.zeros_like(p, requires_grad=False)
                        self.optimizers[role].state[p][key] = room[place]
        if strange := sorted(there - set(room)):
            raise LossaryError(f"{saved.path} does not fit this recipe and its overrides: it holds moments of {strange[0]}.")
        saved.into({f"optimizer.{name}": x for name, x in room.items()}, group)
        self.taken = int(plain["taken"])
        self.scale(float(plain["factor"]))

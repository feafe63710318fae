"""The critic: a trunk and a value branch. The trunk is its own, or the policy's, cut off so that values teach the policy nothing."""

from torch import Tensor, nn

from .data import Inputs


class Critic(nn.Module):
    """Values of hidden states; ``trunk`` is None where the policy's is read, which then is no part of this module."""

    def __init__(self, trunk: nn.Module | None, value_head: nn.Linear, *, detach: bool = True) -> None:
        super().__init__()
        self.trunk, self.value_head, self.detach = trunk, value_head, detach

    def forward(self, inputs: Inputs | None, hidden: Tensor | None) -> Tensor:
        """Return values ``[B, T, 1]`` from a trunk of its own, or ``[N, 1]`` from the policy's hidden states ``[N, H]``."""
        if self.trunk is not None:
            assert inputs is not None
            hidden = self.trunk(inputs.ids, inputs.attention)
        elif self.detach:
            assert hidden is not None
            hidden = hidden.detach()
        out: Tensor = self.value_head(hidden)
        return out

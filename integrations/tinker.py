"""Tinker and what speaks like it: ``client.forward_backward_custom(data, as_tinker_loss("dapo"))``.

Such a function gets the data and one tensor of log-probabilities per datum, and returns a loss and metrics; nothing is divided after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..builtin import compose
from .gate import IntegrationError
from .hosted import Hosted

GIVEN = ("log_prob", "old_log_prob", "rollout_log_prob", "advantages", "ref_log_prob", "teacher_log_prob")
NAMES = {"logprobs": "old_log_prob", "advantages": "advantages", "ref_logprobs": "ref_log_prob", "teacher_logprobs": "teacher_log_prob"}
"""What ``loss_fn_inputs`` may hold, and our columns; ``mask`` (or ``weights`` of 0 and 1) says which tokens were sampled."""

TinkerLoss = Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]


def as_tinker_loss(
    recipe: Any, overrides: Iterable[str] | Mapping[str, Any] = (), *, components: Iterable[Callable[..., Any]] = ()
) -> TinkerLoss:
    """Return ``fn(data, logprobs) -> (loss, metrics)`` of a recipe, whose means are over the data of a call.

    The recipe's advantages are not estimated here: data bring them. The sampler's log-probabilities (``logprobs``) stand for the old
    policy and for the sampler both, as in Tinker's own losses. A column that data lack raises ``ColumnError`` with its name.
    """
    made = Hosted(compose(recipe, overrides, components=components).plan, "Tinker", GIVEN, who="as_tinker_loss")

    def loss(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        if len(data) != len(logprobs):
            raise IntegrationError(f"as_tinker_loss: {len(data)} data but {len(logprobs)} rows of log-probabilities.")
        if not data:
            raise IntegrationError("as_tinker_loss: no data.")
        inputs = [{k: _tensor(v) for k, v in d.loss_fn_inputs.items()} for d in data]
        said = "mask" if "mask" in inputs[0] else "weights" if "weights" in inputs[0] else None
        mask = _padded([torch.ones_like(x) if said is None else row[said] for x, row in zip(logprobs, inputs, strict=True)])
        columns: dict[str, Any] = {ours: _padded([row[theirs] for row in inputs]) for theirs, ours in NAMES.items() if theirs in inputs[0]}
        if "old_log_prob" in columns:
            columns["rollout_log_prob"] = columns["old_log_prob"]
        out, metrics = made.loss(mask, log_prob=_padded(list(logprobs)), **columns)
        return out.actor, metrics

    return loss


def _tensor(x: Any) -> Tensor:
    found = x.to_torch() if hasattr(x, "to_torch") else torch.as_tensor(x)
    assert isinstance(found, Tensor)
    return found


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)

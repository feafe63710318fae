"""The left shift: a model's output at position t speaks of token t + 1. This is the one place that knows it."""

import torch
from torch import Tensor

from ..registry import ColumnError


def left_shift_padded(output: Tensor, response_width: int) -> Tensor:
    """``[B, L, ...] -> [B, R, ...]``: what a model said of the last ``R`` tokens of each row, one position before each of them.

    For rows that hold a prompt and then ``R`` columns of response (padded on either side). Log-probs, entropies, values and hidden
    states are all sliced alike. ``L <= R`` raises ``ColumnError``: the first token of a row has no position before it.
    """
    if output.dim() < 2:
        raise ColumnError(f"the model's output has the shape {list(output.shape)}; expected [sequences, positions, ...].")
    width = output.shape[1]
    if width <= response_width:
        raise ColumnError(
            f"the model's output has {width} positions: too few to speak of {response_width} response tokens, each told one position earlier."
        )
    return output[:, width - response_width - 1 : width - 1]


def left_shift_packed(output: Tensor, sequence_lengths: Tensor, response_lengths: Tensor) -> Tensor:
    """``[M, ...] -> [sum R_i, ...]``: the same for sequences that lie end to end without padding.

    ``output`` holds ``sequence_lengths`` positions per sequence (prompt and response), of which the last ``response_lengths`` are
    response. Shapes that do not add up, or a response as long as its sequence, raise ``ColumnError``.
    """
    whole, response = (x.to(output.device) for x in (sequence_lengths, response_lengths))
    if whole.shape != response.shape or whole.dim() != 1:
        raise ColumnError(
            f"there are {list(whole.shape)} sequence lengths and {list(response.shape)} response lengths; expected one of each per sequence."
        )
    lone = (response > 0) & (whole <= response)
    total, short, wanted = torch.stack([whole.sum(), lone.sum(), response.sum()]).tolist()
    if total != output.shape[0]:
        raise ColumnError(f"the model's output has {output.shape[0]} positions, the sequences {total}.")
    if short:
        raise ColumnError(f"{short} sequences have no token before their response, so nothing was said of its first token.")
    begins = response.cumsum(0) - response
    shift = whole.cumsum(0) - response - 1 - begins
    place = torch.arange(wanted, device=output.device)
    return output.index_select(0, place + torch.repeat_interleave(shift, response, output_size=wanted))


def token_log_probs(logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """``[..., V], [...] -> [...]``: log-probabilities of given tokens, in float32 at least and at the sampler's temperature.

    Nothing is shifted here: ``logits`` must already be those that speak of ``token_ids`` (see ``left_shift_padded``). Shapes that
    differ raise ``ColumnError``, and so does a temperature of 0: greedy sampling has no log-probabilities.
    """
    if not temperature > 0:
        raise ColumnError(f"the temperature is {temperature}; log-probabilities need one above 0.")
    if logits.shape[:-1] != token_ids.shape:
        raise ColumnError(f"shape of the logits {list(logits.shape)} and of the token ids {list(token_ids.shape)} do not belong together.")
    exact = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    return exact.gather(-1, token_ids.long().unsqueeze(-1)).squeeze(-1) - exact.logsumexp(-1)

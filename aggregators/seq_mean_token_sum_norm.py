"""seq-mean-token-sum-norm: every sequence adds up its tokens and is divided by one fixed length."""

from typing import Annotated

from pydantic import Field

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation

Length = Annotated[float, Field(gt=0, allow_inf_nan=False, description="tokens that count as one: usually the longest possible response")]


@aggregation(
    aliases=("sequence_mean_token_scale",),
    paper="arXiv:2503.20783",
    scope="token",
    compat={
        "verl": "`seq-mean-token-sum-norm`; without a loss_scale_factor it takes the padded width of the micro-batch.",
        "trl": "loss_type dr_grpo: its max_completion_length is loss_scale_factor.",
        "skyrl": "`seq_mean_token_sum_norm`: its max_seq_len is loss_scale_factor.",
        "roll": "`seq-mean-token-sum-norm` divides by the width alone, not by the sequences.",
        "tunix": "`sequence-mean-token-scale`.",
    },
)
def seq_mean_token_sum_norm(sequences: Sequences, totals: Totals, *, loss_scale_factor: Length) -> PerToken:
    r"""Divide the sum over each sequence by one fixed length (Dr.GRPO): ``seq-mean-token-mean`` without its preference for short answers.

    .. math:: w_t = \frac{1}{C\, S}

    ``[N]`` float64; :math:`C` is ``loss_scale_factor`` and must be said, since the width of a padded batch would change from step to step.
    """
    return (1 / (totals.sequences * loss_scale_factor)).expand(sequences.index.shape[0])

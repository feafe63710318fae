"""constant-divisor: a plain sum over one fixed number."""

from typing import Annotated

from pydantic import Field

from ..batch import Sequences
from ..numerics import accumulator
from ..registry import PerToken, aggregation

Divisor = Annotated[float, Field(gt=0, allow_inf_nan=False, description="tokens that count as one step, whatever the batch brings")]


@aggregation(scope="token", deviates={"referenced": "A plain division that needs no source."})
def constant_divisor(sequences: Sequences, *, divisor: Divisor) -> PerToken:
    r"""Add up all tokens and divide by one number: ``token-sum`` in a unit, where ``seq-mean-token-sum-norm`` still counts sequences.

    .. math:: w_t = 1 / C

    ``[N]`` float64; :math:`C` is ``divisor`` and must be said. A step with fewer tokens is a smaller step.
    """
    return sequences.lengths.new_full((sequences.index.shape[0],), 1 / divisor, dtype=accumulator(sequences.lengths))

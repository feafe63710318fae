"""full: the KL itself, summed over the whole vocabulary instead of estimated from the sampled token."""

from typing import Annotated, Literal

from ...numerics import forward_kl, reverse_kl
from ...registry import PerToken, Vocab, kl_estimator

Direction = Annotated[Literal["reverse", "forward"], "reverse is KL(policy, reference), forward is KL(reference, policy)"]


@kl_estimator(
    scope="token",
    claims=("zero-at-equality", "non-negative", "unbiased", "unbiased-gradient"),
    compat={
        "roll": "`full` of its KL kinds, given log-probabilities over the vocabulary: the same without further settings.",
        "verl": "knows the name `full` and raises NotImplementedError.",
    },
)
def full(logits: Vocab, ref_logits: Vocab, *, direction: Direction = "reverse") -> PerToken:
    r"""Return the exact divergence at each token: no noise where ``k1``, ``k2`` and ``k3`` have some, and the KL's own gradient.

    .. math:: KL(\pi \| \pi^{ref}) = \sum_v \pi_v \log \frac{\pi_v}{\pi^{ref}_v} \ (\text{reverse}) \qquad\text{or}\qquad
        KL(\pi^{ref} \| \pi) \ (\text{forward})

    ``[n]``, in nats. The gradient with respect to the logits is :math:`\pi_v (\log \pi_v / \pi^{ref}_v - KL)`, and for ``forward`` it is
    :math:`\pi_v - \pi^{ref}_v`. What one side cannot say counts as a log-ratio of 87 nats (in float32). Unlike the estimates it does not
    depend on which token was sampled.
    """
    return (reverse_kl if direction == "reverse" else forward_kl)(logits, ref_logits)

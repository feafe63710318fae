"""Distillation: learn the teacher's whole distribution at each token and not only its verdict on one sampled token."""

from typing import Annotated, Literal

from pydantic import Field

from ...numerics import adaptive_kl, forward_kl, jensen_shannon, reverse_kl, skewed_forward_kl, skewed_reverse_kl
from ...registry import PerToken, Vocab, auxiliary_loss
from ...registry.hyper import Fraction, Positive

Skew = Annotated[float, Field(ge=0, lt=1, description="how much of the left side is mixed into the right side of a skewed divergence")]
Beta = Annotated[float, Field(ge=0, le=1, description="the teacher's weight in the mixture of jsd; 0 is forward, 1 is reverse")]

Divergence = Annotated[
    Literal["forward", "reverse", "jsd", "skewed-forward", "skewed-reverse", "adaptive"],
    "which divergence of student and teacher; forward covers the teacher, reverse keeps to its favourites",
]

AdaptiveKlAlpha = Annotated[Fraction, "adaptive: the most that the teacher's least likely tokens together weigh to count as its tail"]


@auxiliary_loss(
    aliases=("gkd",),
    paper="arXiv:2306.13649",
    scope="token",
    claims=("non-negative", "zero-at-equality"),
    deviates={"gradient@divergence=adaptive": "The weight of its two sides is held still inside an operation of its own."},
    compat={
        "trl": "GKD and DistillationTrainer: `divergence: jsd`; beta and temperature as there.",
        "liger-kernel": "`divergence: jsd`; beta and temperature as there.",
        "roll": "forward_kl is `divergence: forward` and so on, js_divergence is `jsd` with beta: 0.5; temperature is its kd_temperature.",
    },
)
def distill(
    logits: Vocab,
    teacher_logits: Vocab,
    *,
    divergence: Divergence = "forward",
    temperature: Annotated[Positive, "what the logits of both sides are divided by"] = 1.0,
    beta: Beta = 0.5,
    skew_lambda: Skew = 0.1,
    adaptive_kl_alpha: AdaptiveKlAlpha = 0.5,
) -> PerToken:
    r"""Return a divergence between student :math:`p` and teacher :math:`q` over the whole vocabulary; ``distill-topk`` sees part of it.

    .. math::
        \text{forward: } KL(q \| p) \qquad \text{reverse: } KL(p \| q) \qquad
        \text{jsd: } \beta KL(q \| m) + (1 - \beta) KL(p \| m),\ m = \beta q + (1 - \beta) p

    .. math::
        \text{skewed-forward: } KL(q \| \lambda q + (1 - \lambda) p) \qquad \text{skewed-reverse: } KL(p \| \lambda p + (1 - \lambda) q)

    .. math::
        \text{adaptive: } w\, KL(q \| p) + (1 - w) KL(p \| q),\quad w = \operatorname{sg} \frac{\sum_{head} |q - p|}{\sum_v |q - p|}

    ``[n]``, in nats. Both distributions are taken at ``temperature``, and the loss is not multiplied by its square: a ``coef`` can do that.
    ``forward`` covers all that the teacher says, ``reverse`` keeps to what it likes best, ``jsd`` lies between and is bounded, the skewed
    ones bound what one token can cost. The head of ``adaptive`` is what is left of the teacher without the least likely tokens that
    together weigh at most ``adaptive_kl_alpha``: at 0 it is ``forward``, at 1 ``reverse``. What one side cannot say counts as a log-ratio of
    87 nats (in float32).
    """
    if divergence == "jsd":
        return jensen_shannon(logits, teacher_logits, beta, temperature)
    if divergence == "skewed-forward":
        return skewed_forward_kl(logits, teacher_logits, skew_lambda, temperature)
    if divergence == "skewed-reverse":
        return skewed_reverse_kl(logits, teacher_logits, skew_lambda, temperature)
    if divergence == "adaptive":
        return adaptive_kl(logits, teacher_logits, adaptive_kl_alpha, temperature)
    return (forward_kl if divergence == "forward" else reverse_kl)(logits, teacher_logits, temperature)

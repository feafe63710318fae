"""Distillation from the teacher's likeliest tokens: what a server can send, where all logits would be too much."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ...numerics import entropy_of, log_prob_of, renormalised, weighted_gap, widened, with_tail
from ...registry import Mean, PerToken, Report, Vocab, auxiliary_loss
from ...registry.hyper import Fraction, Positive

Floor = Annotated[float | None, Field(lt=0, allow_inf_nan=False, description="log-probabilities of both sides are at least this [nats]")]
Least = Annotated[float | None, Field(le=0, allow_inf_nan=False, description="the loss of a token is at least this [nats]")]
Never = Annotated[float, Field(lt=0, allow_inf_nan=False, description="the teacher's log-probability of every other token [nats]")]

Divergence = Annotated[
    Literal["forward", "reverse", "mixed"], "forward covers the teacher, reverse keeps to its favourites, mixed is a weighted sum"
]

Others = Annotated[
    Literal["tail", "renormalise", "ignore", "never"],
    "what becomes of all other tokens: one more outcome, conditioned away, left out, or forbidden",
]


@auxiliary_loss(
    aliases=("forward_kl_topk",),
    scope="token",
    deviates={"hyperparameters-used": "A forbidden word counts only in the reverse direction, where others is never."},
    compat={
        "verl": "forward_kl_topk, as a loss: `others: ignore`, log_prob_min_clamp: -10, loss_min_clamp: 0, loss_max_clamp: 10.",
        "nemo-rl": "DistillationLossFn: divergence is its kl_type; `others: ignore`, or `others: never` for zero_outside_topk.",
    },
)
def distill_topk(
    logits: Vocab,
    teacher_topk_log_prob: PerToken,
    teacher_topk_ids: PerToken,
    *,
    divergence: Divergence = "forward",
    others: Others = "tail",
    mixed_kl_weight: Annotated[Fraction, "mixed: weight of the forward divergence; the reverse one has the rest"] = 0.5,
    log_infinitesimal: Never = -100.0,
    temperature: Annotated[Positive, "what the student's logits are divided by"] = 1.0,
    log_prob_min_clamp: Floor = None,
    loss_min_clamp: Least = None,
    loss_max_clamp: Annotated[Positive | None, "the loss of a token is at most this [nats]; null: no limit"] = None,
) -> tuple[PerToken, Report]:
    r"""Return a divergence between student :math:`p` and teacher :math:`q` over the teacher's top K; ``distill`` needs all of its logits.

    .. math:: \text{forward: } \sum_k q_k \log \frac{q_k}{p_k} \qquad \text{reverse: } \sum_k p_k \log \frac{p_k}{q_k} \qquad
        \text{mixed: } w \cdot \text{forward} + (1 - w) \cdot \text{reverse}

    ``[n]``, in nats. ``others`` says what becomes of all other tokens: ``tail`` adds them up to one more outcome, which makes this a divergence
    and a lower bound of the whole one; ``renormalise`` asks only which of the K it is; ``ignore`` leaves them out, so that the sum may be
    negative; ``never`` has the teacher forbid them, at ``log_infinitesimal`` each, which only the reverse direction pays. A teacher's ``-inf``
    and an id below 0 are a place that was not filled. ``temperature`` is the student's; the teacher's side is as it was sent. A clamp that binds leaves no
    gradient.
    """
    z = widened(logits, temperature)
    teacher = teacher_topk_log_prob.to(z.dtype)
    filled = (teacher > -torch.inf) & (teacher_topk_ids >= 0)
    teacher = torch.where(filled, teacher, -torch.inf)
    student = torch.where(filled, log_prob_of(z, torch.where(filled, teacher_topk_ids, 0)), -torch.inf)
    report = {"student_mass": Mean(student.detach().exp().sum(-1)), "teacher_mass": Mean(teacher.exp().sum(-1))}
    p, q = (_outcomes(x, others, log_prob_min_clamp) for x in (student, teacher))
    parts = []
    if divergence != "reverse":
        parts.append(weighted_gap(q, p))
    if divergence != "forward":
        reverse = weighted_gap(p, q)
        if others == "never":
            inside = weighted_gap(student, torch.zeros_like(student))
            reverse = reverse - entropy_of(z) - inside - log_infinitesimal * (1 - student.exp().sum(-1))
        parts.append(reverse)
    loss = torch.lerp(parts[1], parts[0], mixed_kl_weight) if divergence == "mixed" else parts[0]
    low, high = (sign * torch.inf if x is None else x for sign, x in ((-1, loss_min_clamp), (1, loss_max_clamp)))
    return loss.clamp(low, high), report


def _outcomes(log_prob: Tensor, others: str, floor: float | None) -> Tensor:
    outcomes = with_tail(log_prob) if others == "tail" else renormalised(log_prob) if others == "renormalise" else log_prob
    return outcomes if floor is None else outcomes.clamp(min=floor)

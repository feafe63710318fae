"""A recipe in a host that keeps model, batches and optimizer: its loss of one micro-batch, by counts that the host made of the step.

Aggregation is done here and nowhere else: the host hands over its counts and gets back a loss that it neither divides nor averages again,
but for the factors that it is known to apply (``times`` undoes those).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..numerics import accumulator
from ..pipeline import LossOut, Objective, Plan
from ..registry import Column, Level, Totals
from .gate import IntegrationError, require_given

WEIGHT = "correction"


def estimated(
    objective: Objective, mask: Tensor, token_rewards: Tensor, index: Iterable[Any] | None, **columns: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return padded advantages and returns, 0 wherever no sampled token was; ``index`` names each row's prompt."""
    brought: dict[str, Any] = {"token_rewards": token_rewards, **{k: v for k, v in columns.items() if v is not None}}
    if index is not None:
        brought["group_ids"] = [str(i) for i in index]
    batch = Batch.from_padded(mask > 0, masked_rewards="to-sequence", **brought)
    with torch.no_grad():
        batch = objective.estimate(batch)
    advantages = batch.unpack(batch.column("advantages", Level.TOKEN))
    returns = batch.unpack(batch.column("returns", Level.TOKEN)) if "returns" in batch else advantages
    return advantages.to(token_rewards.dtype), returns.to(token_rewards.dtype)


class Hosted:
    """The terms of the actor that are left to the recipe, ready to be asked for micro-batches.

    ``given`` are the columns that the host brings. One that a component needs and the host has not raises ``IntegrationError`` here, at
    the start, and so does a component that must see a whole step.
    """

    def __init__(
        self,
        plan: Plan,
        framework: str,
        given: Iterable[str],
        *,
        who: str,
        fields: Iterable[Column] = (),
        hints: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        plan = replace(plan, rewards=(), reward_kl=(), filters=(), advantages=(), terms=tuple(t for t in plan.terms if t.role == "actor"))
        if not plan.terms:
            raise IntegrationError(f"{who} has no term that learns the policy.")
        if plan.scope == "step" and plan.approximate is None:
            wide = next(b.who for b in plan.bounds if b.component.scope == "step")
            raise IntegrationError(
                f"{who}: {wide} looks at the whole step, but {framework} shows one micro-batch; 'approximate: micro-batch' accepts that."
            )
        self.objective = Objective(plan, seed=seed)
        self.framework, self.who, self.fields = framework, who, tuple(fields)
        needed = {**self.objective.needs("estimate"), **self.objective.needs("weigh"), **self.objective.needs("loss")}
        require_given(who, framework, needed, given, hints or {})
        if self.objective.measures or (plan.corrections and plan.denominator == "kept"):
            raise IntegrationError(f"{who}: {framework} counts tokens before corrections see them: say 'denominator: original'.")
        self.policy = next((t for t in plan.terms if t.name == "policy"), None)

    def loss(
        self,
        mask: Tensor,
        *,
        log_prob: Tensor,
        entropy: Tensor | None = None,
        tokens: Tensor | float | None = None,
        sequences: Tensor | float | None = None,
        weight: Tensor | None = None,
        times: int = 1,
        **columns: Tensor | None,
    ) -> tuple[LossOut, dict[str, float]]:
        """Return the loss of padded ``[B, T]`` columns and its metrics; waits for the device once for the mask, once for the metrics.

        ``tokens`` and ``sequences`` are the host's counts of the step (None: this batch is the step). ``weight`` multiplies the policy
        loss of each token after clipping, as the host's own correction. ``times`` multiplies the result.
        """
        brought: dict[str, Any] = {name: x for name, x in columns.items() if x is not None}
        reads = self.policy is not None and WEIGHT in self.policy.bound.reads
        if weight is not None and reads:
            brought[WEIGHT] = weight
        batch = Batch.from_padded(mask, fields=self.fields, **brought)
        if self.objective.plan.corrections:
            batch = self.objective.estimate(batch)
        batch = self.objective.weigh(batch, self._totals(batch, tokens, sequences))
        if weight is not None and not reads:
            batch = self._weighed(batch, weight)
        out = self.objective.loss(batch, log_prob=log_prob, entropy=entropy, host_divides_by=times)
        return out, self.objective.metrics(out, batch)

    def _totals(self, batch: Batch, tokens: Tensor | float | None, sequences: Tensor | float | None) -> Totals | None:
        if tokens is None and sequences is None:
            return None
        lengths = batch.sequences.lengths
        real = accumulator(lengths)

        def count(said: Tensor | float | None, here: Tensor) -> Tensor:
            return here.to(real) if said is None else torch.as_tensor(said, dtype=real, device=lengths.device)

        n = count(tokens, lengths.sum())
        return Totals(n, count(sequences, (lengths > 0).sum()), torch.zeros_like(n), n)

    def _weighed(self, batch: Batch, weight: Tensor) -> Batch:
        """Return the batch with the policy's weights multiplied; other terms must not share them."""
        assert self.policy is not None
        key = self.policy.aggregation
        if others := [t.name for t in self.objective.plan.terms if t is not self.policy and t.aggregation == key]:
            raise IntegrationError(f"{self.who}: {self.framework}'s own correction would also weigh {others[0]!r}; say it in the recipe.")
        return replace(batch, weights={**batch.weights, key: batch.weights[key] * batch.pack(weight).to(batch.weights[key].dtype)})

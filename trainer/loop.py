"""The loop, in one sitting: sample, reward, estimate, then epochs of minibatches of micro-batches, then again."""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..builtin import compose
from ..models import Decoder, prompt_within
from ..pipeline import LossOut, Objective
from ..registry import LossaryError
from ..tasks import Item
from . import checkpoint
from .brought import filled
from .data import Inputs, from_demonstrations, from_rollouts, training_items
from .evaluation import accuracy
from .measures import shape_of, throughput
from .optimizing import Optimizing
from .rollout import SamplingParams, backend_of
from .run_folder import RunFolder
from .scoring import all_at_once, head_of, hidden_of, policy_scores, ref_logits_of, values_of
from .settings import Settings
from .staleness import Snapshots
from .turns import converse

Listener = Callable[[Mapping[str, Any]], None]


class Trainer:
    """One run. Every random number comes from the seed and the step, so a run is the same in one piece or resumed."""

    def __init__(self, settings: Settings, folder: RunFolder, listen: Listener = lambda line: None) -> None:
        self.settings, self.folder, self.listen = settings, folder, listen
        torch.set_num_threads(settings.train.threads)
        self.task, self.step, self.family = settings.task, 0, settings.family()
        self.chars = self.family.tokenizer
        self.objective = Objective(settings.plan, seed=settings.train.seed)
        self.policy = self.family.model(seed=_seed(settings.train.seed, "policy"))
        self.reference: Decoder | None = None
        needs = {**self.objective.needs("estimate"), **self.objective.needs("loss")}
        self.critic = (
            self.family.model(value_head=True, seed=_seed(settings.train.seed, "critic")) if {"values", "old_values"} & set(needs) else None
        )
        self.needs_reference = bool({"ref_log_prob", "ref_logits"} & set(needs))
        self.resumed, self.strangers = False, settings.strangers()
        self.optimizing = Optimizing(settings.train, self.policy, self.critic)
        self.backend = backend_of(settings.rollout.backend, self.policy, pad_id=self.chars.pad_id, eos_id=self.chars.eos_id)
        self.snapshots = Snapshots(settings.rollout.staleness)
        self.lines: list[dict[str, Any]] = []
        self._began = time.process_time(), time.perf_counter()

    # ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> list[dict[str, Any]]:
        """Warm up, then train to the last step; returns the lines of the metrics file."""
        settings = self.settings
        if not self.resumed:
            self._warm_up()
            self.reference = self._frozen() if self.needs_reference else None
            self._log({"step": 0, "eval/accuracy": self._accuracy()})
            self.save()
        while self.step < settings.train.steps:
            line = self._update() if settings.reinforces else self._imitate()
            self.step += 1
            if self.step % settings.evaluate.every == 0 or self.step == settings.train.steps:
                line["eval/accuracy"] = self._accuracy()
            self._log({"step": self.step, **line})
            every = settings.train.checkpoint_every
            if self.step == settings.train.steps or (every and self.step % every == 0):
                self.save()
        self.family.save(self.policy, self.folder.path / "model")
        return self.lines

    def _warm_up(self) -> None:
        """Imitate the task's answers for a while, by the same pipeline: a recipe of one auxiliary loss."""
        w = self.settings.warm_up
        if not w.steps:
            return
        objective = compose({"auxiliary": {"use": "sft", "coef": 1.0}})
        optimizing = Optimizing(self.settings.train.model_copy(update={"lr": w.lr}), self.policy, None)
        for step in range(w.steps):
            inputs, batch = from_demonstrations(training_items(self.task, step * w.batch, w.batch), self.chars)
            optimizing.scale(min(1.0, (step + 1) / w.ramp))
            outs, _ = self._take_step(objective, optimizing, inputs, objective.estimate(batch))
            if step % 10 == 9 or step == w.steps - 1:
                self.listen({"warm_up": step + 1, "of": w.steps, "loss": objective.metrics(outs)["actor/sft_loss"]})

    def _imitate(self) -> dict[str, Any]:
        inputs, batch = from_demonstrations(self._items(self.settings.warm_up.batch), self.chars)
        outs, norms = self._take_step(self.objective, self.optimizing, inputs, self.objective.estimate(batch))
        return {**self.objective.metrics(outs), **norms}

    def _items(self, n: int) -> list[Item]:
        """The items of this step, after all those of the warm-up."""
        w = self.settings.warm_up
        return training_items(self.task, w.steps * w.batch + self.step * n, n)

    def _update(self) -> dict[str, Any]:
        """One rollout and the optimizer steps on it."""
        train, clock = self.settings.train, _Clock()
        inputs, batch, rewards = self._rollout()
        clock.lap("time/rollout")
        batch = self._remember(inputs, batch)
        length = sum(batch.lengths) / len(batch)
        batch = self.objective.estimate(batch)
        clock.lap("time/estimate")
        outs: list[LossOut | Batch] = []
        norms: dict[str, float] = {}
        for epoch in range(train.epochs):
            for mini in self.objective.minibatches(batch, train.minibatches, _seed(train.seed, "minibatches", self.step, epoch)):
                out, norms = self._take_step(self.objective, self.optimizing, inputs, mini)
                outs += out
        clock.lap("time/update")
        metrics = self.objective.metrics(outs, batch)
        laps = {**clock.laps, **throughput(self._told, clock.laps)}
        return {"reward": sum(rewards) / len(rewards), **self._told, "response_length/mean": length, **metrics, **norms, **laps}

    def _rollout(self) -> tuple[Inputs, Batch, list[float]]:
        r = self.settings.rollout
        items = self._items(r.prompts)
        self.backend.update_weights(*self.snapshots.at(self.policy, self.step))
        sampling = SamplingParams(self.task.max_new_tokens, r.temperature, top_k=r.top_k, top_p=r.top_p)
        prompts = [prompt_within(self.chars, i.prompt, self.task.max_new_tokens, self.policy.context) for i in items]
        asked: list[Item] = [item for item in items for _ in range(r.samples_per_prompt)]
        seed = _seed(self.settings.train.seed, "rollout", self.step)
        rollouts, said = converse(self.backend, self.chars, self.task, asked, prompts, r.samples_per_prompt, sampling, seed)
        rewards = [self.task.reward(i, text) for i, text in zip(asked, said, strict=True)]
        inputs, batch = from_rollouts(rollouts, rewards, r.samples_per_prompt, self.chars.pad_id)
        self._told = shape_of(inputs, rollouts)
        return inputs, filled(self.task, batch, asked, said, self.settings.catalog.fields), rewards

    @torch.no_grad()
    def _remember(self, inputs: Inputs, batch: Batch) -> Batch:
        """Add what the update must know of the models as they are now: old log-probs, the reference's, old values."""
        r, parts = self.settings.rollout, self.objective.split(batch, self.settings.train.max_tokens)

        def column(score: Callable[[Batch], Tensor]) -> Tensor:
            return all_at_once(parts, [score(p) for p in parts], batch)

        old = None if r.bypass else column(lambda p: policy_scores(self.policy, inputs, p, r.temperature)[0])
        found = {"old_log_prob": batch["rollout_log_prob"] if old is None else old}
        if self.reference is not None:
            reference = self.reference
            found["ref_log_prob"] = column(lambda p: policy_scores(reference, inputs, p, r.temperature)[0])
        if self.critic is not None:
            critic = self.critic
            found["old_values"] = column(lambda p: values_of(critic, inputs, p))
        return batch.with_columns(batch.levels["rollout_log_prob"], **found)

    def _take_step(
        self, objective: Objective, optimizing: Optimizing, inputs: Inputs, batch: Batch
    ) -> tuple[list[LossOut | Batch], dict[str, float]]:
        """One optimizer step, accumulated over micro-batches; returns what metrics are made of."""
        outs: list[LossOut | Batch] = []
        needs, temperature = objective.needs("loss"), self.settings.rollout.temperature
        head = head_of(self.policy, temperature)
        if objective.measures:
            batch = self._measured(objective, inputs, batch)
            outs.append(batch)
        weighed = objective.weigh(batch)
        for micro in objective.split(weighed, self.settings.train.max_tokens):
            policy = head.on(hidden_of(self.policy, inputs, micro))
            values = values_of(self.critic, inputs, micro) if self.critic is not None and "values" in needs else None
            ref = (
                ref_logits_of(self.reference, inputs, micro, temperature) if self.reference is not None and "ref_logits" in needs else None
            )
            out = objective.loss(micro, policy=policy, values=values, ref_logits=ref)
            torch.autograd.backward(out.total)
            outs.append(replace(out, total=out.total.detach(), actor=out.actor.detach(), critic=out.critic.detach(), terms={}))
        try:
            norms = optimizing.step()
        except LossaryError as error:
            raise LossaryError(f"step {self.step + 1}: {error}{_suspects(objective.metrics(outs))}") from error
        objective.commit()
        return outs, norms

    @torch.no_grad()
    def _measured(self, objective: Objective, inputs: Inputs, batch: Batch) -> Batch:
        """Show the corrections that decide before the step what the policy says now."""
        parts = objective.split(batch, self.settings.train.max_tokens)
        scores = [policy_scores(self.policy, inputs, p, self.settings.rollout.temperature) for p in parts]
        log_prob, entropy = (all_at_once(parts, [s[i] for s in scores], batch) for i in (0, 1))
        return objective.measure(batch, log_prob=log_prob, entropy=entropy)

    # ── around it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _frozen(self) -> Decoder:
        return copy.deepcopy(self.policy).eval().requires_grad_(False)

    def _accuracy(self) -> float:
        self.backend.update_weights(self.policy.state_dict().items(), self.step)
        return accuracy(self.backend, self.task, self.chars, self.settings.evaluate.items)

    def _log(self, line: dict[str, Any]) -> None:
        cpu, wall = time.process_time() - self._began[0], time.perf_counter() - self._began[1]
        line = {**line, "time/cpu_seconds": round(cpu, 3), "time/wall_seconds": round(wall, 3)}
        self.lines.append(line)
        self.folder.append(line)
        self.listen(line)
        self.settings.catalog.announce({"event": "step", **line})

    def save(self) -> None:
        """Write the checkpoint."""
        content = {
            "step": self.step,
            "recipe": self.folder.recipe.read_text("utf-8"),
            "policy": self.policy.state_dict(),
            "reference": self.reference.state_dict() if self.reference is not None else None,
            "critic": self.critic.state_dict() if self.critic is not None else None,
            "optimizers": self.optimizing.state_dict(),
            "objective": self.objective.state_dict(),
            "strangers": self.strangers,
            "snapshots": self.snapshots.state_dict(),
        }
        checkpoint.save(self.folder.checkpoint, content)

    def resume(self) -> None:
        """Take up the folder's checkpoint; one of another recipe raises ``LossaryError``."""
        saved = checkpoint.load(self.folder.checkpoint)
        if saved["recipe"] != self.folder.recipe.read_text("utf-8"):
            raise LossaryError(f"{self.folder.path}: recipe.yaml was changed after the checkpoint was written.")
        self._check_code(saved.get("strangers", {}))
        self.objective.load_state_dict(saved["objective"])
        try:
            self._take_up(saved)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:  # torch raises any of them for other shapes or parts
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LossaryError(f"{self.folder.checkpoint} does not fit this recipe and its overrides: {why}") from error
        self.step, self.resumed = int(saved["step"]), True
        self.lines = self.folder.keep_until(self.step)

    def _check_code(self, saved: Mapping[str, list[str]]) -> None:
        """A component of the same name that runs other code would make another run of this one."""
        now = self.strangers
        for name, (brought, code) in saved.items():
            if name in now and now[name] != [brought, code]:
                other = f"comes from {now[name][0]}" if now[name][0] != brought else "is other code"
                raise LossaryError(
                    f"{self.folder.path}: this run was trained with {name} of {brought}, which now {other}: put it back, or start a new run."
                )

    def _take_up(self, saved: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(saved["policy"])
        if self.needs_reference:
            self.reference = self._frozen()
            self.reference.load_state_dict(saved["reference"])
        if self.critic is not None:
            self.critic.load_state_dict(saved["critic"])
        self.optimizing.load_state_dict(saved["optimizers"])
        self.snapshots.load_state_dict(saved.get("snapshots", {}))


def _suspects(metrics: Mapping[str, float]) -> str:
    broken = [name for name, value in metrics.items() if not math.isfinite(value)]
    return f" Not finite either: {', '.join(broken)}." if broken else " Every loss is finite; only a gradient is not."


def _seed(*parts: object) -> int:
    """Return a seed that differs for every use and step and needs no state."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=7).digest(), "little")


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Note the seconds since the last lap."""
        now = time.perf_counter()
        self.laps[name], self._last = round(now - self._last, 4), now


def train(settings: Settings, parent: Path, listen: Listener = lambda line: None) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Run a recipe in a new folder under ``parent``."""
    folder = RunFolder.new(parent, settings.recipe.name, settings.recipe.text(), settings.recipe.code())
    return folder, Trainer(settings, folder, listen).run()

"""The loop, in one sitting: sample, reward, estimate, then epochs of minibatches of micro-batches, then again."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import ONE_RANK, Batch
from ..builtin import compose
from ..diagnostics.skipping import cause
from ..diagnostics.watching import Watch
from ..models import prompt_within
from ..models.reference import Reference, reference_of
from ..pipeline import LossOut, Objective
from ..pipeline.lock import compared, lock_of
from ..registry import Level, LossaryError
from ..tasks import Item
from ..tasks.brought import filled
from ..trackers import Tracking
from . import checkpoint
from .critic import Critic
from .data import Inputs, from_demonstrations, from_rollouts, training_items
from .evaluation import accuracy
from .failures import Skips, Terminated, listening
from .measures import shape_of, throughput
from .optimizing import NotFinite, Optimizing
from .randomness import seed_of, states, take_up
from .ranks import Group, parallel, syncing, told, weights
from .rollout import SamplingParams, backend_of
from .run_folder import RunFolder
from .scoring import all_at_once, head_of, hidden_of, policy_scores, ref_logits_of, said_now, values_of
from .settings import Settings
from .staleness import Snapshots
from .turns import converse

Listener = Callable[[Mapping[str, Any]], None]


class Trainer:
    """One run. Every random number comes from the seed and the step, so a run is the same in one piece or resumed."""

    def __init__(self, settings: Settings, folder: RunFolder, listen: Listener = lambda line: None) -> None:
        self.settings, self.folder, self.listen = settings, folder, listen
        torch.set_num_threads(settings.train.threads)
        self.task, self.step, self.group, self.family = settings.task, 0, Group(), settings.family()
        self.chars = self.family.tokenizer
        ranks = self.group if self.group.size > 1 else ONE_RANK
        self.objective = Objective(settings.plan, ranks, seed=settings.train.seed)
        self.policy = self._model("policy")
        self.reference: Reference | None = None
        needs = {**self.objective.needs("estimate"), **self.objective.needs("loss")}
        self.critic = self._critic() if {"values", "old_values"} & set(needs) else None
        self.needs_reference = bool({"ref_log_prob", "ref_logits"} & set(needs))
        self.resumed, self.lock = False, lock_of(settings.plan)
        self.backend = backend_of(settings.rollout.backend, self.policy, pad_id=self.chars.pad_id, eos_id=self.chars.eos_id)
        self.snapshots = Snapshots(settings.rollout.staleness)
        # Sharded weights are whole in the forward of a module of the model, so the head is one.
        self.policy.put_head(head_of(self.policy, settings.rollout.temperature))
        # What is called in a training step: the model itself on one rank, else what averages its gradients over ranks.
        self.calls = [parallel(m, settings.train.parallel, self.group) for m in (self.policy, self.critic) if m is not None]
        self.optimizing = Optimizing(settings.train, self.policy, self.critic)
        self.skips, self.terminated = Skips(settings.train.max_skipped), threading.Event()
        self.lines: list[dict[str, Any]] = []
        self.watch = Watch(settings.plan, settings.diagnose.every if self.group.first else 0, folder.path, self._announce)
        self.tracking = Tracking(settings.trackers if self.group.first else {}, self._untracked)
        self._began = time.process_time(), time.perf_counter()

    def _model(self, role: str, *, value_head: bool = False) -> Any:
        made = self.family.model(value_head=value_head, seed=(seed := seed_of(self.settings.train.seed, role)))
        if (adapters := self.settings.model.adapters) is not None:
            adapters.into(made, seed)
        return made.to(getattr(torch, self.settings.model.dtype))

    def _critic(self) -> Critic:
        own, how = self._model("critic", value_head=True), self.settings.critic
        branch, own.value_head = own.value_head, None
        own.put_head(nn.Identity())  # what never has a gradient is none of its parameters
        return Critic(own if how.trunk == "separate" else None, branch, detach=how.detach)

    # ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> list[dict[str, Any]]:
        """Warm up, then train to the last step; returns the lines of the metrics file. SIGTERM ends it with ``Terminated``."""
        with listening(self.terminated), closing(self.tracking):
            self.tracking.open(self.folder.path, self.settings.recipe.values, self.step)
            if not self.resumed:
                self._warm_up()
                self.reference = self._compared_with()
                self._log({"step": 0, "eval/accuracy": self._accuracy()})
                self.save()
            while self.step < self.settings.train.steps:
                self._one_more()
        self._keep_model()
        return self.lines

    def _one_more(self) -> None:
        train, every = self.settings.train, self.settings.train.checkpoint_every
        line = self._update() if self.settings.reinforces else self._imitate()
        self.step += 1
        last = self.step == train.steps
        if self.step % self.settings.evaluate.every == 0 or last:
            line["eval/accuracy"] = self._accuracy()
        self._log({"step": self.step, **line})
        leave = self.group.any(self.terminated.is_set())
        if last or leave or (every and self.step % every == 0):
            self.save()
        if leave and not last:
            raise Terminated(f"terminated after step {self.step} of {train.steps}; the checkpoint is written.")

    def _warm_up(self) -> None:
        """Imitate the task's answers for a while, by the same pipeline: a recipe of one auxiliary loss."""
        w = self.settings.warm_up
        if not w.steps:
            return
        objective = compose({"auxiliary": {"use": "sft", "coef": 1.0}}, ranks=self.objective.ranks)
        optimizing = Optimizing(self.settings.train.model_copy(update={"lr": w.lr, "freeze_actor": 0}), self.policy, None)
        for step in range(w.steps):
            inputs, batch = self._shared(
                *from_demonstrations(training_items(self.task, step * w.batch, w.batch), self.chars, self.policy.context)
            )
            optimizing.scale(min(1.0, (step + 1) / w.ramp))
            outs, _ = self._take_step(objective, optimizing, inputs, objective.estimate(batch))
            if step % 10 == 9 or step == w.steps - 1:
                self.listen({"warm_up": step + 1, "of": w.steps, "loss": objective.metrics(outs).get("actor/sft_loss", math.nan)})

    def _imitate(self) -> dict[str, Any]:
        inputs, batch = self._shared(*from_demonstrations(self._items(self.settings.warm_up.batch), self.chars, self.policy.context))
        outs, norms = self._take_step(self.objective, self.optimizing, inputs, self.objective.estimate(batch))
        return {**self.objective.metrics(outs), **norms, **self._skipped()}

    def _items(self, n: int) -> list[Item]:
        """The items of this step, after all those of the warm-up."""
        w = self.settings.warm_up
        return training_items(self.task, w.steps * w.batch + self.step * n, n)

    def _update(self) -> dict[str, Any]:
        """One rollout and the optimizer steps on it."""
        train, clock = self.settings.train, _Clock()
        inputs, batch, rewards = self._rollout()
        clock.lap("time/rollout")
        length = sum(batch.lengths) / len(batch)
        whole = batch
        inputs, batch = self._shared(inputs, batch)
        batch = self._remember(inputs, batch)
        work = told(self.group, {"rank_tokens": sum(batch.lengths)})
        batch = self.objective.estimate(batch)
        clock.lap("time/estimate")
        seen = self.watch.look(whole, batch, self.step)
        outs: list[LossOut | Batch] = []
        norms: dict[str, float] = {}
        for epoch in range(train.epochs):
            for mini in self.objective.minibatches(batch, train.minibatches, seed_of(train.seed, "minibatches", self.step, epoch)):
                out, found = self._take_step(self.objective, self.optimizing, inputs, mini)
                outs, norms = outs + out, norms | found
        clock.lap("time/update")
        metrics = self.objective.metrics(outs, batch)
        return {
            "reward": sum(rewards) / len(rewards),
            **self._told,
            "response_length/mean": length,
            **metrics,
            **norms,
            **work,
            **seen,
            **self._skipped(),
            **clock.laps,
            **throughput(self._told, clock.laps),
        }

    def _rollout(self) -> tuple[Inputs, Batch, list[float]]:
        r = self.settings.rollout
        items = self._items(r.prompts)
        self.backend.update_weights(*self.snapshots.at(weights(self.policy), self.step))
        sampling = SamplingParams(self.task.max_new_tokens, r.temperature, top_k=r.top_k, top_p=r.top_p)
        prompts = [prompt_within(self.chars, i.prompt, self.task.max_new_tokens, self.policy.context) for i in items]
        asked: list[Item] = [item for item in items for _ in range(r.samples_per_prompt)]
        seed = seed_of(self.settings.train.seed, "rollout", self.step)
        rollouts, said = converse(self.backend, self.chars, self.task, asked, prompts, r.samples_per_prompt, sampling, seed)
        rewards = [self.task.reward(i, text) for i, text in zip(asked, said, strict=True)]
        inputs, batch = from_rollouts(rollouts, rewards, r.samples_per_prompt, self.chars.pad_id)
        self._told = shape_of(inputs, rollouts)
        return inputs, filled(self.task, batch, asked, said, self.settings.catalog.fields), rewards

    def _shared(self, inputs: Inputs, batch: Batch) -> tuple[Inputs, Batch]:
        """Keep this rank's prompts, with all their samples; rows of ``inputs`` keep their places."""
        if self.group.size == 1:
            return inputs, batch
        batch = batch.with_columns(Level.SEQUENCE, sequence_ids=batch.rows)
        mine = self.group.share(len(prompts := list(dict.fromkeys(batch.groups or range(len(batch))))))
        kept = {prompts[i] for i in mine}
        return inputs, batch.take([i for i, g in enumerate(batch.groups or range(len(batch))) if g in kept])

    @torch.no_grad()
    def _remember(self, inputs: Inputs, batch: Batch) -> Batch:
        """Add what the update must know of the models as they are now: old log-probs, the reference's, old values."""
        r, parts = self.settings.rollout, self.objective.split(batch, self.settings.train.max_tokens)

        def column(score: Callable[[Batch], Tensor]) -> Tensor:
            return all_at_once(parts, [score(p) for p in parts], batch)

        old = None if r.bypass else column(lambda p: policy_scores(self.policy, inputs, p, r.temperature)[0])
        found = {"old_log_prob": batch["rollout_log_prob"] if old is None else old}
        if self.reference is not None:
            with self.reference.at_hand() as reference:
                found["ref_log_prob"] = column(lambda p: policy_scores(reference, inputs, p, r.temperature)[0])
        if self.critic is not None:
            critic = self.critic
            found["old_values"] = column(lambda p: values_of(critic, inputs, p, self._trunk_of(inputs, p)))
        for name, x in found.items():
            if self.group.any(not bool(torch.isfinite(x).all())):
                raise LossaryError(f"step {self.step + 1}: {name} is not finite at some token: a model's weights are broken.")
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
        parts = objective.split(weighed, self.settings.train.max_tokens)
        beside = self.reference if "ref_logits" in needs else None
        for i, micro in enumerate(parts):
            with syncing(self.calls, last=i == len(parts) - 1), beside.at_hand() if beside else nullcontext() as reference:
                hidden = hidden_of(self.calls[0], inputs, micro)
                seen = hidden if self.settings.critic.trunk == "shared" else None
                values = values_of(self.calls[1], inputs, micro, seen) if self.critic is not None and "values" in needs else None
                ref = ref_logits_of(reference, inputs, micro, temperature) if reference is not None else None
                out = objective.loss(micro, policy=head.on(hidden), values=values, ref_logits=ref)
                torch.autograd.backward(out.total)
            outs.append(replace(out, total=out.total.detach(), actor=out.actor.detach(), critic=out.critic.detach(), terms={}))
        try:
            if self.group.any(not all(bool(torch.isfinite(o.total)) for o in outs if isinstance(o, LossOut))):
                raise NotFinite("the loss is not finite; the step was not taken and nothing was changed.")
            norms = optimizing.step()
        except NotFinite as error:
            optimizing.clear()
            now = said_now(self.policy, self.critic if "values" in needs else None, inputs, parts, weighed, temperature)
            recipe = self.settings.recipe if objective is self.objective else None
            place = self.folder.path / self.group.own(f"skipped-{self.step + 1}-{self.skips.total + 1}")
            who = self.group.heard(cause(place, self.skips.total, objective, weighed, {n: now[n] for n in now if n in needs}, recipe))
            self.skips.skip(f"{error}{_suspects(objective, objective.metrics(outs))}{who}", self.step + 1)
            return [], {}
        self.skips.took()
        objective.commit()
        return outs, norms

    def _trunk_of(self, inputs: Inputs, batch: Batch) -> Tensor | None:
        return hidden_of(self.policy, inputs, batch) if self.settings.critic.trunk == "shared" else None

    def _skipped(self) -> dict[str, Any]:
        return {"skipped_steps": self.skips.total, "skipped_because": self.skips.why} if self.skips.total else {}

    @torch.no_grad()
    def _measured(self, objective: Objective, inputs: Inputs, batch: Batch) -> Batch:
        """Show the corrections that decide before the step what the policy says now."""
        parts = objective.split(batch, self.settings.train.max_tokens)
        return objective.measure(batch, **said_now(self.policy, None, inputs, parts, batch, self.settings.rollout.temperature))

    # ── around it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _frozen(self) -> Any:
        model = self._model("reference")
        model.load_state_dict(weights(self.policy))
        return model.eval().requires_grad_(False)

    def _compared_with(self) -> Reference | None:
        """Return the policy as it is now, frozen, where an objective asks for it."""
        return reference_of(self.settings.reference, self.policy, self._frozen) if self.needs_reference else None

    def _keep_model(self) -> None:
        """Write the policy as others load it, where its family has such a form; all ranks together, for its weights may lie in parts."""
        if self.family.portable:
            model = self._frozen()
            self.group.agreed(lambda: str(self.family.save(model, self.folder.path / "model")))

    def _accuracy(self) -> float:
        self.backend.update_weights(weights(self.policy).items(), self.step)
        return accuracy(self.backend, self.task, self.chars, self.settings.evaluate.items, self.policy.context)

    def _log(self, line: dict[str, Any]) -> None:
        cpu, wall = time.process_time() - self._began[0], time.perf_counter() - self._began[1]
        line = {**line, "time/cpu_seconds": round(cpu, 3), "time/wall_seconds": round(wall, 3)}
        self.lines.append(line)
        if not self.group.first:
            return
        self.folder.append(line)
        self.tracking.log(line)
        self.listen(line)
        self.settings.catalog.announce({"event": "step", **line})
        self.watch.judge(self.lines)

    def _untracked(self, name: str, why: str) -> None:
        self._announce({"step": self.step, "warning": f"tracker {name}", "found": why})

    def _announce(self, warning: Mapping[str, Any]) -> None:
        self.listen(warning)
        self.settings.catalog.announce({"event": "warning", **warning})

    def save(self, recipe: str | None = None) -> None:
        """Write the checkpoint; all ranks together. With a recipe's text, it is the one that the run follows from this checkpoint on."""
        before = self.folder.recipe.read_text("utf-8")
        plain = {
            "step": self.step, "recipe": recipe or before, "recipe_before": before, "lock": self.lock, "optimizing": self.optimizing.state_dict(),
            "skipped": [self.skips.total, self.skips.row, self.skips.why], "objective": self.objective.state_dict(), "random": states(self.group),
            "sampler": self.snapshots.versions,
        }  # fmt: skip
        checkpoint.save(self.folder.path, {**self._tensors(), **_under("optimizer", self.optimizing.tensors())}, plain, self.group)
        if recipe is not None:
            if self.group.first:
                self.folder.keep_recipe(recipe)
            self.group.meet()

    def _tensors(self) -> dict[str, Tensor]:
        models = {"policy": self.policy, "critic": self.critic, "reference": self.reference}
        found = {k: x for role, m in models.items() if m is not None for k, x in _under(role, m.state_dict()).items()}
        return {**found, **_under("sampler", self.snapshots.tensors())}

    def resume(self) -> list[str]:
        """Take up the folder's newest checkpoint; returns which packages have changed. One of other code or another recipe raises ``LossaryError``."""
        saved = checkpoint.Saved(self.folder.checkpoint)
        plain = saved.plain
        try:
            if plain["recipe"] != self.folder.recipe.read_text("utf-8"):
                raise LossaryError(f"{self.folder.path}: recipe.yaml was changed after the checkpoint was written.")
            changed = compared(plain["lock"], self.lock, str(self.folder.path))
            self.objective.load_state_dict(plain["objective"])
            self.reference = self._compared_with()
            self.snapshots.allot(plain["sampler"], weights(self.policy))
            saved.into(self._tensors(), self.group)
            self.optimizing.load(saved, plain["optimizing"], self.group)
            self.skips.total, self.skips.row, self.skips.why = plain["skipped"]
            take_up(plain["random"], self.group)
            self.step, self.resumed = int(plain["step"]), True
        except (KeyError, TypeError, ValueError) as error:
            raise LossaryError(f"{saved.path} is no checkpoint of a run: {type(error).__name__}: {error}") from error
        self.lines = self.folder.keep_until(self.step, write=self.group.first)
        if self.group.first:
            self.watch.keep_until(self.step)
        return changed


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": x for name, x in tensors.items()}


def _suspects(objective: Objective, metrics: Mapping[str, float]) -> str:
    """Name the terms that are not finite."""
    terms = [t.bound.who for t in objective.plan.terms if not math.isfinite(metrics.get(t.metric, 0.0))]
    rest = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not terms and not rest:
        return " Every loss is finite; only a gradient is not."
    return f"{' It comes from ' + ', '.join(terms) + '.' if terms else ''} Not finite: {', '.join(rest)}."


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

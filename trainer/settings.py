"""What a recipe says to the trainer: sections with defaults and bounds, checked together with the objective's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..builtin import catalog
from ..models import Family
from ..models.choice import ModelSettings, contradictions, family_of
from ..models.reference import ReferenceSettings, misplaced
from ..pipeline import Objective, Plan, Recipe, bind, bind_each, survey
from ..registry import Catalog, ColumnError, Fault, RecipeError, Strict, text_of, worded
from ..registry.hyper import Count, NonNegative, Positive
from ..tasks import Task
from ..tasks.brought import fillers_of, own_columns
from ..trackers import Tracker

DEMONSTRATED = frozenset({"log_prob", "entropy", "logits", "token_ids", "prompt_lengths"})
"""Columns of a step on the task's own answers."""
SAMPLED = frozenset({
    "old_log_prob", "rollout_log_prob", "ref_log_prob", "ref_logits", "values", "old_values", "rewards", "group_ids", "truncated",
})  # fmt: skip
"""What a step on rollouts has beside them."""


Rate = Annotated[float, Field(gt=0, le=1e6, description="learning rate")]


class CriticSettings(Strict):
    """Where values come from: a trunk of their own, or the policy's, into which ``detach`` lets no gradient of a value."""

    trunk: Literal["separate", "shared"] = "separate"
    detach: bool = True


class WarmUpSettings(Strict):
    """Supervised steps on the task's own answers before reinforcement begins; 0: none."""

    steps: Annotated[int, Field(ge=0)] = 0
    batch: Count = 64
    lr: Rate = 3e-3
    ramp: Count = 10
    """Steps over which the learning rate rises to ``lr``."""


class RolloutSettings(Strict):
    """What is sampled for each update."""

    prompts: Count = 32
    samples_per_prompt: Count = 8
    temperature: Positive = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    backend: Literal["torch", "hf-generate"] = "torch"
    staleness: Annotated[int, Field(ge=0, le=1024)] = 0
    """Sample from the weights of this many updates ago, as an asynchronous trainer does."""
    bypass: bool = False
    """Take ``old_log_prob`` from the sampler (verl's ``bypass_mode``) instead of recomputing it with the current weights."""


class TrainSettings(Strict):
    """How the parameters move."""

    steps: Count = 100
    """Rollouts, each followed by ``epochs * minibatches`` optimizer steps."""
    epochs: Count = 1
    minibatches: Count = 1
    max_tokens: Count = 16384
    lr: Rate = 3e-4
    critic_lr: Rate = 1e-3
    freeze_actor: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps for which only the critic learns; with one step per rollout this is verl's ``critic_warmup``."""
    freeze_critic: Annotated[int, Field(ge=0)] = 0
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """How ranks share a step: whole weights on each, or parts of them."""
    max_skipped: Annotated[int, Field(ge=0)] = 3
    """Optimizer steps in a row that may be left out because a loss or gradient is not finite; one more ends the run."""
    weight_decay: NonNegative = 0.0
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.99)
    grad_clip: Positive | None = 1.0
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Annotated[int, Field(gt=0, le=1024)] = 1
    checkpoint_every: Annotated[int, Field(ge=0)] = 20
    """Steps between checkpoints; 0: only the one at the end."""


class EvaluateSettings(Strict):
    """Greedy decoding of held-out items; also done before the first and after the last step."""

    every: Count = 20
    items: Count = 256


class DiagnoseSettings(Strict):
    """What is looked at while it runs: the cheap checks and the rules in every step."""

    every: Annotated[int, Field(ge=0)] = 20
    """Steps between inspections by all checks; 0: nothing is looked at."""


@dataclass(frozen=True)
class Settings:
    """Everything a run is made of."""

    recipe: Recipe
    catalog: Catalog
    plan: Plan
    task: Task
    model: ModelSettings
    critic: CriticSettings
    reference: ReferenceSettings
    warm_up: WarmUpSettings
    rollout: RolloutSettings
    train: TrainSettings
    evaluate: EvaluateSettings
    diagnose: DiagnoseSettings
    trackers: dict[str, Tracker]

    @classmethod
    def of(cls, recipe: Recipe) -> "Settings":
        """Check every section of a recipe; all faults, the objective's included, are raised at once as ``RecipeError``."""
        plan, book, faults = survey(recipe, catalog())
        task = _task(recipe, book, faults)
        trackers = _trackers(recipe, book, faults)
        model = recipe.section("model", ModelSettings, faults)
        critic = recipe.section("critic", CriticSettings, faults)
        reference = recipe.section("reference", ReferenceSettings, faults)
        warm_up = recipe.section("warm_up", WarmUpSettings, faults)
        rollout = recipe.section("rollout", RolloutSettings, faults)
        train = recipe.section("train", TrainSettings, faults)
        evaluate = recipe.section("evaluate", EvaluateSettings, faults)
        diagnose = recipe.section("diagnose", DiagnoseSettings, faults)
        if model:
            _one_model(recipe, model, rollout, faults)
        if model and reference and warm_up:
            for key, why in misplaced(reference, adapters=model.lora_rank > 0, warmed=warm_up.steps > 0):
                _fault(recipe, faults, ("reference", key), why)
        if plan and rollout:
            _suited(recipe, plan, rollout, faults)
            if train:
                _enough(recipe, plan, rollout, train, faults)
        if plan and not faults:
            _makeable(recipe, plan, task, faults)
        if faults or plan is None:
            raise RecipeError(faults)
        assert task is not None
        return cls(recipe, book, plan, task, model, critic, reference, warm_up, rollout, train, evaluate, diagnose, trackers)

    def family(self) -> Family:
        """Return who makes the run's models; a model that cannot be read raises ``ModelError``."""
        longest = max(len(i.prompt) for i in self.task.eval_items(64)) + 1
        return family_of(self.model, 2 * longest + self.task.max_new_tokens)

    @property
    def reinforces(self) -> bool:
        """Whether the policy learns from its own samples; without a policy loss it learns from demonstrations."""
        return _reinforces(self.plan)


def _one_model(recipe: Recipe, model: ModelSettings, rollout: RolloutSettings | None, faults: list[Fault]) -> None:
    """Check that the keys speak of one model, and write its place out in full: the run's own recipe lies in another folder."""
    for key, why in contradictions(model):
        _fault(recipe, faults, ("model", key), why)
    if model.source is None and rollout is not None and rollout.backend == "hf-generate":
        _fault(recipe, faults, ("rollout", "backend"), "hf-generate samples from a Hugging Face model; the small GPT has torch")
    said = recipe.values.get("model", {})
    for key in ("path", "gguf"):
        if getattr(model, key) is not None:
            said[key] = str((recipe.folder / Path(getattr(model, key)).expanduser()).absolute())
            object.__setattr__(model, key, said[key])


def _suited(recipe: Recipe, plan: Plan, rollout: RolloutSettings, faults: list[Fault]) -> None:
    early = (*plan.rewards, *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections))
    grouped = [b.component.name for b in early if b.component.scope == "group"]
    if grouped and rollout.samples_per_prompt < 2:
        say = f"samples_per_prompt must be >= 2: {grouped[0]!r} compares the samples of one prompt"
        _fault(recipe, faults, ("rollout", "samples_per_prompt"), say)
    if plan.advantages and not _reinforces(plan):
        _fault(recipe, faults, ("advantage",), "without a policy_loss the trainer learns from demonstrations, which have no advantages")


def _enough(recipe: Recipe, plan: Plan, rollout: RolloutSettings, train: TrainSettings, faults: list[Fault]) -> None:
    """Check that no minibatch is empty from the start: a step without a token still moves the weights by what the optimizer remembers."""
    each, of = (1, "groups, which stay whole") if plan.scope == "group" else (rollout.samples_per_prompt, "sequences")
    if _reinforces(plan) and train.minibatches > (n := rollout.prompts * each):
        say = f"minibatches must be <= {n}: a rollout has {n} {of}, and a minibatch without any is a step on nothing"
        _fault(recipe, faults, ("train", "minibatches"), say)


def _makeable(recipe: Recipe, plan: Plan, task: Task | None, faults: list[Fault]) -> None:
    """Check that the trainer makes every column that the objective asks for: an error at the start, not in the first step."""
    sampled = SAMPLED | (set(fillers_of(task)) if task is not None else set())
    objective, shown = Objective(plan), DEMONSTRATED | (sampled if _reinforces(plan) else frozenset())
    for name, who in {**objective.needs("estimate"), **objective.needs("measure"), **objective.needs("loss")}.items():
        if name not in shown:
            without = "" if name not in sampled else " without a policy_loss, since it then learns from demonstrations"
            _fault(
                recipe, faults, _slot_of(plan, who), f"{who} needs the column {name!r}, which the bundled trainer does not make{without}"
            )


def _slot_of(plan: Plan, who: str) -> tuple[str, ...]:
    early = (*plan.rewards, *(k.bound for k in plan.reward_kl), *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections))
    bounds = (*(t.bound for t in plan.terms), *early, *plan.aggregations.values())
    return next((tuple(b.slot.split(".")[:1]) for b in bounds if who.startswith(b.who)), ())


def _reinforces(plan: Plan) -> bool:
    return any(t.bound.component.kind.name == "policy_loss" for t in plan.terms)


def _fault(recipe: Recipe, faults: list[Fault], path: tuple[str, ...], message: str) -> None:
    faults.append(Fault(".".join(path), recipe.document.place(path), message))


def _trackers(recipe: Recipe, book: Catalog, faults: list[Fault]) -> dict[str, Tracker]:
    made: dict[str, Tracker] = {}
    for bound in bind_each(recipe, book, "tracker", "trackers", faults):
        name = bound.component.name
        try:
            if name in made:
                raise ValueError(f"the tracker {name!r} is named twice")
            made[name] = bound.component.function(**bound.params)
        except Exception as error:  # a stranger's may raise anything
            path = tuple(int(x) if x.isdigit() else x for x in bound.slot.split("."))
            said = str(error) if isinstance(error, ValueError) else f"the tracker {name!r}: {type(error).__name__}: {error}"
            faults.append(Fault(bound.slot, recipe.document.place(path), said))
    return made


def _task(recipe: Recipe, book: Catalog, faults: list[Fault]) -> Task | None:
    if "task" not in recipe.values:
        if recipe.document.faults and not recipe.values:
            return None  # nothing could be read, so nothing is known to be missing
        _fault(recipe, faults, ("task",), "required to train: which task, as in {use: spell-backward}")
        return None
    said = recipe.values["task"]
    if isinstance(said, dict) and said.get("use") == "jsonl":  # written out in full, like a model's place
        said.update({k: str((recipe.folder / said[k]).absolute()) for k in ("path", "held_out") if isinstance(said.get(k), str)})
    bound = bind(recipe, book, "task", "task", faults)
    if bound is None:
        return None
    try:
        made: Task = bound.component.function(**bound.params)
        made.train_item(0)
        if not made.eval_items(1):
            raise ValueError(f"the task {bound.component.name!r} is empty: it has no item to hold out")
        own_columns(made, book.fields)
    except Exception as error:  # a task may raise anything
        plain = isinstance(error, (ValueError, ColumnError))
        said = text_of(error) if plain else worded(error)
        _fault(recipe, faults, ("task",), said if plain else f"the task {bound.component.name!r} is none: {said}")
        return None
    return made

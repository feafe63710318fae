"""Fuzz: a mutated plugin module is either taken in and runs, or refused by an error of ours that says whose it was."""

import warnings
from pathlib import Path

import pytest
import torch
from fuzzing import STEPS, refusal
from hypothesis import given, settings

from lossary import Batch, RecipeError, RecipeWarning, column, compose
from lossary.pipeline import LossOut

MODULE = '''"""Losses of a stranger."""
from typing import Annotated

import torch
from pydantic import Field

from lossary import Max, Mean, PerSequence, PerToken, Sequences, advantage_estimator, aggregation, auxiliary_loss, coefficient, column, correction
from lossary import hookimpl, kl_estimator, policy_loss, reward_term, sequence_filter

valid = column("valid", level="sequence", doc="whether it counts")


@policy_loss(aliases=("tilt",), suits={"aggregation": "token-mean"})
def tilted(log_prob: PerToken, old_log_prob: PerToken, advantages: PerToken, sequences: Sequences, *, tilt: Annotated[float, Field(gt=0)] = 1.0,
           bound: float | None = 20.0) -> tuple[PerToken, dict[str, Mean]]:
    """Tilt."""
    ratio = (log_prob - old_log_prob).exp()
    return -tilt * ratio * advantages, {"tilted/ratio": Mean(ratio), "tilted/most": Max(ratio)}


@auxiliary_loss(scope="token")
def away(log_prob: PerToken, *, strength: float = 1.0) -> PerToken:
    """Away."""
    return strength * log_prob


@kl_estimator(claims=("zero-at-equality",))
def half(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    """Half of k2."""
    return 0.25 * (log_prob - ref_log_prob) ** 2


@advantage_estimator(scope="group")
def centred(rewards: PerSequence, valid: PerSequence, sequences: Sequences, *, scale: float = 1.0) -> PerSequence:
    """Centre."""
    return scale * valid * (rewards - sequences.group_spread(sequences.group_mean(rewards)))


def first_state(*, start: float = 0.0) -> dict[str, torch.Tensor]:
    """Nothing yet."""
    return {"sum": torch.tensor(start)}


@coefficient(init=first_state)
def grows(state, step, measured, *, start: float = 0.0):
    """Grow."""
    total = state["sum"] + 1
    return 0.1 * total, {"sum": total}


@correction(scope="token")
def near(old_log_prob: PerToken, rollout_log_prob: PerToken, *, far: float = 1.0) -> tuple[PerToken, PerToken]:
    """Keep what is near."""
    gap = old_log_prob - rollout_log_prob
    return gap.exp(), gap.abs() < far


@reward_term
def shorter(rewards: PerSequence, sequences: Sequences, *, cost: float = 0.01) -> PerSequence:
    """Shorter is better."""
    return rewards - cost * sequences.lengths


@sequence_filter
def spread(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Those that count."""
    return sequences.group_spread(sequences.group_std(rewards)) >= 0


@aggregation
def even(sequences: Sequences, totals) -> PerToken:
    """All alike."""
    return sequences.spread(1.0 / sequences.lengths.clamp(min=1)) / totals.sequences
'''
RECIPE = {
    "plugins": ["mine.py"], "policy_loss": "tilted", "auxiliary": {"use": "away", "coef": {"use": "grows"}}, "kl": {"use": "half", "coef": 0.1},
    "advantage": "centred", "correction": {"use": "near", "denominator": "original"}, "reward": "shorter", "filter": "spread", "aggregation": "even",
}  # fmt: skip
WORDS = (
    "log_prob", "old_log_prob", "advantages", "rewards", "sequences", "valid", "values", "entropy", "totals", "state", "step", "measured", "logits", "group_ids", "advantage", "token_ids", "None", "1.0", "True",
    "PerToken", "PerSequence", "Sequences", "PerGroup", "Mean", "Max", "float", "int", "str", "bool", "dict", "list", "object", "'quoted'", "torch.Tensor", "Annotated[float, Field(gt=5)]", "lambda: 0",
    "policy_loss", "kl_estimator", "advantage_estimator", "reward_term", "aggregation", "coefficient", "correction", "sequence_filter", "token-mean", "ppo-clip", "tilted", "use", "coef", "_x", "float('nan')", "[]", "{}", "-1", "1e999", "print",
)  # fmt: skip
LINES = (
    "    raise ValueError('no')", "    raise SystemExit(3)", "    return None", "    return 1.0", "    return 'text'", "    return log_prob", "    return log_prob.mean()", "    return log_prob, {}", "    return log_prob, log_prob",
    "    return log_prob[:1]", "    return log_prob[None]", "    return log_prob > 0", "    return log_prob, {'x': 'y'}", "    return log_prob, {1: log_prob}", "    return (log_prob,) * 3", "    return torch.zeros(0)", "    return {}", "    return {'advantages': 1}",
    "    return log_prob.long()", "    return log_prob.sum().item()", "    return [log_prob]", "    return log_prob, None", "    return None, None", "    return (None, None), {}", "    return log_prob * float('nan')", "    1 / 0", "    log_prob.add_(1)",
    "    import nowhere", "    assert False", "    global gone", "    yield log_prob", "    return NotImplemented", "    return ...", "    def", "  bad indent", "raise RuntimeError('at import')", "raise SystemExit('at import')", "import nowhere_at_all", "1 / 0", "exec('x = (')",
    "valid = column('valid', level='token', doc='')", "valid = column('log_prob', level='token', doc='')", "lossary_components = 3", "def lossary_components(): return [1]", "def lossary_fields(x, y): return 5", "@hookimpl\ndef lossary_components(): return [len]",
    "@hookimpl\ndef lossary_recipes(): return 5", "@hookimpl\ndef lossary_nothing(): return 5", "tilted = None", "tilted = tilted(1)", "@policy_loss\ndef tilted(log_prob): return log_prob", "@policy_loss(name='a b')\ndef other(log_prob): return log_prob", "x = policy_loss(len)",
    "@policy_loss(scope='tokens')\ndef other(log_prob): return log_prob", "@policy_loss(claims='x')\ndef other(log_prob): return log_prob", "@policy_loss(aliases=('tilted',))\ndef other(log_prob): return log_prob", "\x00", "\ufeff", "é = 1", "# coding: latin-1",
    "class policy_loss: pass", "del tilted", "__name__ = 'other'", "__getattr__ = None", "from lossary import *", "import sys; sys.modules[__name__] = None", "raise KeyError", "raise Exception()", "class E(BaseException): pass", "    return sequences", "    return rewards",
    "    return rewards[None]", "    return rewards > 0", "    return sequences.lengths", "    return torch.ones(3)", "    return 0.5, 0.5", "    return 0.5, {'sum': 0.5}", "    return 0.5, None", "    return True", "    return -5.0", "    return float('inf')", "    return {'sum': 1}", "    return {1: object()}",
)  # fmt: skip


def mutated_module(steps):
    """The module with a word, a line or a few characters changed, once for each step."""
    text = MODULE
    for what, where, which in steps:
        lines = text.split("\n")
        j = 10 + where % (len(lines) - 10)  # what stands above would only break the import in one and the same way
        match what % 6:
            case 0 | 1:
                words = [i for i, c in enumerate(text) if (c.isalpha() or c == "_") and not (text[i - 1].isalnum() or text[i - 1] == "_")]
                start = words[where % len(words)]
                end = next((i for i in range(start, len(text)) if not (text[i].isalnum() or text[i] == "_")), len(text))
                text = text[:start] + WORDS[which % len(WORDS)] + text[end:]
            case 2:
                bodies = [i for i, line in enumerate(lines) if line.startswith("    return ")]
                i = bodies[where % len(bodies)] if bodies else 0
                text = "\n".join([*lines[:i], LINES[which % len(LINES)], *lines[i + which % 2 :]])
            case 3:
                text = "\n".join([*lines[:j], LINES[which % len(LINES)], *lines[j:]])
            case 4:
                text = "\n".join([*lines[:j], *lines[j + 1 :]])
            case _:
                i = where % len(text)
                text = text[:i] + ("", "(", ":", "*", "*, ", ", ", "=", "'", " ", "\n")[which % 10] + text[i + which % 3 :]
    return text


VALID = column("valid", level="sequence", doc="whether it counts")


def step_of(recipe) -> LossOut:
    """One whole step of a recipe: estimate, weigh, two micro-batches, backward, commit and metrics, twice."""
    objective, out = compose(recipe), None
    old = torch.linspace(-2, -0.1, 7, dtype=torch.float64)
    batch = Batch.from_packed(
        [2, 1, 0, 4], fields=[VALID], old_log_prob=old, rollout_log_prob=old - 0.1, ref_log_prob=old + 0.2, rewards=torch.tensor([1.0, 0, 0, 1]).double(),
        valid=torch.tensor([1.0, 1, 0, 1]), group_ids=[0, 0, 1, 1],
    )  # fmt: skip
    for _ in range(2):
        weighed = objective.weigh(objective.estimate(batch))
        outs = []
        for micro in objective.split(weighed, max_tokens=4):
            log_prob = (micro["old_log_prob"] + 0.01).requires_grad_()
            out = objective.loss(micro, log_prob=log_prob)
            if out.total.requires_grad:
                out.total.backward()
            outs.append(out)
        objective.commit()
        objective.load_state_dict(objective.state_dict())
        assert all(isinstance(x, float) for x in objective.metrics(outs, weighed).values())
    assert out is not None
    return out


def module_one(folder: Path, steps):
    """Take in a mutated module, and run it."""
    text = mutated_module(steps)
    (folder / "mine.py").write_text(text, "utf-8", newline="")
    (folder / "r.yaml").write_text(YAML)
    error = quietly(folder / "r.yaml")
    if isinstance(error, RecipeError):
        assert all(f.place.source.endswith("r.yaml") and f.place.line and f.message for f in error.faults)
        return "refused"
    assert error is None or str(error)
    return "failed" if error else "ran"


def quietly(recipe):
    """What a step of a recipe ends in; what Python or we warn of is no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refusal(lambda: step_of(recipe))


YAML = "\n".join(f"{key}: {value}".replace("'", "") for key, value in RECIPE.items()) + "\n"
many = settings(max_examples=2_000, deadline=None, derandomize=True, database=None)


def driven(how, folder):
    seen = []

    @how
    @given(STEPS)
    def drive(steps):
        seen.append(module_one(folder, steps))

    drive()
    return {word: seen.count(word) for word in ("ran", "refused", "failed")}


def test_a_hundred_mutated_modules(tmp_path):
    assert min(driven(settings(many, max_examples=120), tmp_path).values()) > 3


@pytest.mark.slow
def test_two_thousand_mutated_modules(tmp_path):
    assert min(driven(many, tmp_path).values()) > 100


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.strip()[:40].encode("unicode_escape").decode())
def test_each_bad_line_alone(line, tmp_path):
    """Before the first loss, in its body, and in the place of what it returns: an error is ours whatever stands there."""
    for i, here in enumerate(("@policy_loss(aliases", "    ratio = ", "    return -tilt")):
        folder = tmp_path / str(i)
        folder.mkdir()
        start = MODULE.index(here)
        end = start if i < 2 else MODULE.index("\n", start)
        (folder / "mine.py").write_text(MODULE[:start] + line + "\n" + MODULE[end:], "utf-8", newline="")
        (folder / "r.yaml").write_text(YAML)
        error = quietly(folder / "r.yaml")
        assert error is None or str(error).strip()


def test_the_module_itself_runs(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "r.yaml").write_text(YAML)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipeWarning)
        assert set(step_of(tmp_path / "r.yaml").terms) == {"policy", "away", "kl"}

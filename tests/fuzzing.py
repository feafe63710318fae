"""Mutations of recipes and of plugin modules: drawn as small numbers, so that hypothesis can shrink them."""

import copy
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import strategies as st

from lossary.pipeline import bundled_recipes, read_yaml
from lossary.registry import LossaryError, RecipeError

NUMBERS = st.integers(0, 10_000)
STEPS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4)

# ── recipes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MORE = (
    "policy_loss: ppo-clip\nreward: {use: overlong, max_resp_len: 100, overlong_buffer_len: 10}\nfilter: {use: group-mean-bounds, reward_range: [0, 1]}\n"
    "kl: [{use: k3, coef: {use: linear, start: 0.01, end: 0.0, steps: 5}}, {use: k1, coef: 0.1, apply: reward}]\nadvantage: [{use: gae, lam: 0.9}, whiten]\n"
    "correction:\n  - {use: masked-is, denominator: original}\n  - {use: high-entropy, denominator: original}\n"
    "aggregation: {use: seq-mean-token-sum-norm, loss_scale_factor: 1024}\nempty: count\nold_log_prob: recorded\n",
    "auxiliary:\n- {use: sft, coef: 0.1, aggregation: token-mean}\n- use: distill\n  divergence: reverse\n  coef: 1e-2\nvalue_loss: {use: two-hot, low: 0, high: 1}\ncompile: false\n",
    "base: grpo\npolicy_loss: {clip_ratio_high: 0.3}\nkl: null\ntrain: {lr: 1e-4, betas: [0.9, 0.95]}\n",
)
SEEDS = tuple(read_yaml(text, "seed").values for text in (*(text for _, text in sorted(bundled_recipes().items())), *MORE))
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1e308, -0.0, 1e-320, float("inf"), float("nan"), 10**30, "", " ", "1e-6", "None", "null", "off", "on", "yes", "0x", "1_000", "12:30", "2024-01-01",
    "ppo-clip", "PPO_CLIP", "k3", "gae", "token-mean", "lossary/k3", "nobody/k3", "os:system", "nowhere:f", ":", "a:", "lossary.algorithms.policy.grpo:grpo", "../x.py", "/etc/passwd",
    "loss", "reward", "kept", "original", "measure", "current", "recorded", "count", "micro-batch", "é😀", "a" * 300, "%s{0}", "[/red]", "\u200b", "x.py",
    [], {}, [[]], [None], [{}], {"use": None}, {"use": []}, {"use": {}}, {"use": "k3"}, {"use": "linear"}, {"use": "gae", "use ": 1}, {"": 1}, {"a": {"b": {"c": 1}}}, [1, "2"], ["gae", "gae"],
)  # fmt: skip
KEYS = (
    "use", "coef", "apply", "aggregation", "denominator", "decide", "clip_ratio_high", "clip_ratio_hihg", "lam", "lr", "steps", "epsilon", "cap", "policy_loss", "kl", "task", "base", "plugins",
    "unknown", "", " ", "0", "-1", "__class__", "__init__", "model_config", "model_fields", "self", "log_prob", "sequences", "clip-ratio-high", "CLIP_RATIO_HIGH", "é", "a.b", "coef ", "<<", "~", "null", "1", "x" * 200,
)  # fmt: skip
SNIPPETS = (
    "\t", "\n", "  ", "- ", ": ", "? ", "*a ", "&a ", "<<: *a\n", "!!python/object/apply:os.system [id]", "!!binary ", "!!set ", "!x ", "---\n", "...\n", "%YAML 1.1\n", "%TAG ! x\n", "|\n ", ">\n ", "'", '"',
    "{", "}", "[", "]", ",", "#", " # ", "@", "`", "\x00", "\x07", "\ufeff", "\u2028", "\r", "\r\n", "\x85", "😀", "0o7", "1e999", "&a [*a]", "{a: *a}", '"\\x', '"\\U00110000"', "!<tag:yaml.org,2002:float> ",
    "[" * 60, "{a: " * 60, "- " * 60, "? " * 30, "9" * 5000, ".", "...", "--- !!map\n", "policy_loss: grpo\n",
)  # fmt: skip


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into nested dicts and lists, the root first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, x in inner for p in places_of(x, (*path, key)))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def mutated_values(seed: int, steps: list[tuple[int, int, int]]) -> dict[str, Any]:
    """A recipe with a value replaced, deleted, wrapped or moved, or a key renamed, once for each step."""
    recipe = copy.deepcopy(SEEDS[seed % len(SEEDS)])
    for what, where, which in steps:
        paths = places_of(recipe)[1:]
        if not paths:
            break
        path = paths[where % len(paths)]
        home, key = at(recipe, path[:-1]), path[-1]
        match what % 7:
            case 0 | 1:
                home[key] = copy.deepcopy(VALUES[which % len(VALUES)])
            case 2:
                del home[key]
            case 3:
                home[key] = [home[key]] if which % 2 else {"use": home[key]}
            case 4 if isinstance(home, dict):
                home[KEYS[which % len(KEYS)]] = home.pop(key)
            case 5:
                target = at(recipe, paths[which % len(paths)])
                if isinstance(target, dict) and target is not home[key]:
                    target[str(key)] = copy.deepcopy(home[key])
            case _ if isinstance(home, dict):
                home[KEYS[which % len(KEYS)]] = copy.deepcopy(VALUES[where % len(VALUES)])
    return recipe


def as_text(recipe: dict[str, Any], style: int = 0) -> str:
    """The recipe as YAML, in block or in flow style, by rules that both YAML 1.1 and 1.2 read alike."""
    return yaml.safe_dump(
        recipe, default_flow_style=(None, False, True)[style % 3], sort_keys=False, allow_unicode=bool(style % 2), width=100
    )


def mutated_text(text: str, steps: list[tuple[int, int, int]]) -> str:
    """A text with characters cut, doubled or put in, and lines moved, once for each step."""
    for what, where, which in steps:
        i = where % (len(text) + 1)
        lines = text.split("\n")
        j, k = where % len(lines), which % len(lines)
        match what % 7:
            case 0:
                text = text[:i] + text[i + 1 + which % 5 :]
            case 1 | 2:
                text = text[:i] + SNIPPETS[which % len(SNIPPETS)] + text[i:]
            case 3:
                text = "\n".join([*lines[:j], lines[k], *lines[j:]])
            case 4:
                lines[j], lines[k] = lines[k], lines[j]
                text = "\n".join(lines)
            case 5:
                text = "\n".join([*lines[:j], " " * (which % 4) + lines[j], *lines[j + 1 :]])
            case _:
                text = text[:i]
    return text


def refusal(call: Callable[[], Any]) -> LossaryError | None:
    """Return the error of ours that a call ends in; None: it ends well. Any other error goes on."""
    try:
        call()
    except LossaryError as error:
        return error
    return None


def said_in_full(error: RecipeError, source: str) -> None:
    """Every fault has a place and a sentence, and those of a file a line, unless they are of the file as a whole."""
    assert error.faults
    for fault in error.faults:
        assert fault.message.strip()
        assert fault.place.source
        whole = ("a recipe needs", "nested too deeply", "characters; a recipe has at most", "no YAML", "cannot be read")
        assert fault.place.line > 0 or fault.place.origin != "file" or any(w in fault.message for w in whole), (str(fault), source)

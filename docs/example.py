"""A recipe in which a component is used."""

import re

import yaml

from lossary.cli.portrait.examples import required, settings_of
from lossary.pipeline.hinting import SECTIONS
from lossary.registry import Component


def recipe_of(c: Component) -> str:
    """Return a recipe that uses a component with its defaults and composes without a warning; empty: no section takes its kind."""
    kind = c.kind.name
    slot = _slot(c)
    suited = c.suits.get("aggregation", "token-mean").split(" | ")[0]
    plain = {"policy_loss": "ppo-clip", "aggregation": suited}
    if kind == "policy_loss":
        return _yaml({"policy_loss": slot, **({"aggregation": suited} if "aggregation" in c.suits else {})})
    if kind == "auxiliary_loss":
        slot = {"use": slot.pop("use"), "coef": 0.01, **slot}
        return _yaml({"policy_loss": "ppo-clip", "auxiliary": slot})
    if kind == "kl":
        slot = {"use": slot.pop("use"), "coef": 0.001, "apply": c.suits.get("apply", "loss"), **slot}
        paid = {"advantage": "grpo"} if slot["apply"] == "reward" else {}
        return _yaml({**paid, "policy_loss": "ppo-clip", "kl": slot})
    if kind == "coefficient":
        return _yaml({"policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": slot}})
    if kind == "aggregation":
        return _yaml({"policy_loss": "ppo-clip", "aggregation": slot})
    if kind == "value_loss":
        return _yaml({"advantage": "gae", "policy_loss": "ppo-clip", "value_loss": slot})
    if kind == "task":
        return _yaml({"advantage": "grpo", **plain, "task": slot})
    if kind == "tracker":
        return _yaml({"advantage": "grpo", **plain, "trackers": slot})
    section = next((s for s in SECTIONS if s in (kind, f"{kind}s")), None)
    if section is None:
        return ""
    if kind == "correction" and c.drops:
        slot["denominator"] = "original"
    beside = {} if kind == "advantage" else {"advantage": "grpo"}
    order = (
        {**beside, "policy_loss": "ppo-clip", section: slot}
        if kind == "correction"
        else {section: slot, **beside, "policy_loss": "ppo-clip"}
    )
    return _yaml(order)


def _slot(c: Component) -> dict[str, object]:
    told = c.params.model_validate({k: v for k, v in settings_of(c).items() if k in required(c)})
    return {"use": c.name, **told.model_dump(mode="json")}


def _yaml(recipe: dict[str, object]) -> str:
    lines = []
    for key, value in recipe.items():
        if isinstance(value, dict) and len(value) > 1:
            lines.append(f"{key}:")
            for name, inner in value.items():
                lines.append(f"  {name}: {_value(inner)}")
        else:
            lines.append(f"{key}: {_value(value['use'] if isinstance(value, dict) else value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, float):
        short = re.sub(r"e([-+])0?(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", f"{value:g}")
        return (short if "." in short or "e" in short else f"{short}.0") if float(short) == value else repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}"
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")

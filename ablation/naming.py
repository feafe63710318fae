"""Names of variants: the shortest that tell them apart, made of what is varied and nothing else."""

from collections import Counter
from typing import Any


def normal(value: Any) -> Any:
    """Return a component alike whether it is written as a bare name or as ``{use: name}``."""
    return {"use": value} if isinstance(value, str) else value


class Labels:
    """What each value of each varied path is called."""

    def __init__(self, vary: dict[str, list[Any]]) -> None:
        last = Counter(path.rpartition(".")[2] for path in vary)
        self.labels: dict[str, list[str]] = {}
        for path, values in vary.items():
            key = path.rpartition(".")[2]
            key = key if last[key] == 1 else path
            self.labels[path] = _several([_label(key, value, values) for value in values])

    def name(self, cell: dict[str, int]) -> str:
        """Return the name of a variant, given the index of each path's value."""
        return ", ".join(self.labels[path][i] for path, i in cell.items())


def _label(key: str, value: Any, among: list[Any]) -> str:
    if value is None:
        return f"no {key}"
    if isinstance(value, list) and all(isinstance(normal(v), dict) for v in value):
        return "+".join(_label(key, v, [v]) for v in value) or f"no {key}"
    if isinstance(value, dict) and "use" not in value:
        return f"{key}({_settings(value)})"
    if isinstance(value, dict) or (isinstance(value, str) and any(isinstance(v, dict | str) for v in among)):
        made = normal(value)
        twins = [normal(v) for v in among if isinstance(normal(v), dict) and normal(v).get("use") == made["use"]]
        differ = {k for twin in twins for k in {*twin, *made} if twin.get(k) != made.get(k)}
        said = _settings({k: v for k, v in made.items() if k in differ})
        return f"{made['use']}({said})" if said else str(made["use"])
    return f"{key}={_short(value)}"


def _settings(values: dict[str, Any]) -> str:
    return " ".join(f"{k}={_short(v)}" for k, v in values.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return _settings(value)
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _several(labels: list[str]) -> list[str]:
    """Number what is called alike all the same."""
    count, seen, made = Counter(labels), Counter[str](), []
    for label in labels:
        seen[label] += 1
        made.append(label if count[label] == 1 else f"{label} #{seen[label]}")
    return made

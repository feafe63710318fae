"""Settings to show a component with: its defaults, and a sensible example for each hyperparameter that has none."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from ...registry import Component

USUAL: Mapping[str, Any] = {
    "value": 0.001, "start": 0.02, "end": 0.0, "steps": 500, "kl_coef": 0.02, "target": 0.1, "horizon": 10000,
    "loss_scale_factor": 1024, "divisor": 4096, "max_length": 4096, "max_response_length": 4096, "max_resp_len": 4096,
    "max_tokens": 4096, "low": 0.0, "high": 1.0, "buffer": 1024, "buffer_length": 1024, "overlong_buffer_len": 1024, "cap": 2.0, "threshold": 2.0,
}  # fmt: skip
"""Examples by the name of a hyperparameter; one that is not here gets the smallest round number that its bounds allow."""


def settings_of(component: Component) -> dict[str, Any]:
    """Return a value for every hyperparameter."""
    required = {k: _example(k, f.annotation, f.metadata) for k, f in component.params.model_fields.items() if f.is_required()}
    told = component.params.model_validate(required)
    return {name: getattr(told, name) for name in component.params.model_fields}


def _example(name: str, annotation: Any, metadata: list[Any]) -> Any:
    if name in USUAL:
        return USUAL[name]
    leaves = list(_leaves(annotation))
    if strings := [x for x in leaves if isinstance(x, str)]:
        return strings[0]
    above = [getattr(m, "gt", getattr(m, "ge", None)) for m in metadata]
    least = max((float(x) for x in above if x is not None), default=0.0)
    below = [getattr(m, "lt", getattr(m, "le", None)) for m in metadata]
    most = min((float(x) for x in below if x is not None), default=float("inf"))
    value = (least + most) / 2 if most < float("inf") else least + 1
    return int(value) if int in leaves else "" if str in leaves and float not in leaves else value


def _leaves(hint: Any) -> Iterator[Any]:
    args = get_args(hint)
    if not args:
        yield hint
    for a in args:
        yield from _leaves(a)


def required(component: Component) -> list[str]:
    """Return the hyperparameters that a recipe must say."""
    return [k for k, f in component.params.model_fields.items() if f.default is PydanticUndefined and f.is_required()]

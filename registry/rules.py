"""Rules between numbers, as decorators write them: ``"> 1 + clip_ratio_high"``."""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": partial(math.isclose, rel_tol=0.01),
}  # fmt: skip
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Rule:
    """A comparison with numbers and other hyperparameters; ``=`` means within 1 %."""

    text: str
    sign: str
    limit: ast.expr

    @classmethod
    def of(cls, text: str) -> "Rule | None":
        """Read a rule, or return None for a text that is none; one that cannot be read raises ``ValueError``."""
        sign, _, limit = text.partition(" ")
        if sign not in _COMPARE:
            return None
        try:
            found = ast.parse(limit, mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"{text!r} cannot be read: {error.msg}") from error
        for node in ast.walk(found):
            number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
            known = isinstance(node, (ast.BinOp, ast.Name, ast.Load)) or type(node) in _OPERATORS
            if not number and not known:
                raise ValueError(f"{text!r} may hold numbers, hyperparameters, +, - and /, and nothing else")
        return cls(text, sign, found)

    @property
    def names(self) -> Iterable[str]:
        """The hyperparameters that it compares with."""
        return [node.id for node in ast.walk(self.limit) if isinstance(node, ast.Name)]

    def holds(self, value: Any, params: Mapping[str, Any]) -> bool:
        """Whether a value keeps the rule; what is null, or no number, or compared with such, breaks none."""
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (value, *(params[name] for name in self.names))):
            return True
        return _COMPARE[self.sign](value, _value(self.limit, params))


def _value(node: ast.expr, params: Mapping[str, Any]) -> float:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, params), _value(node.right, params))
    if isinstance(node, ast.Name):
        return float(params[node.id])
    return float(ast.literal_eval(node))

"""Docstrings as a terminal shows them: paragraphs rejoined, roles taken off, formulas in plain letters."""

import re

# ruff: noqa: RUF001 - Greek letters are what this is for
_WORDS = {
    "epsilon": "ε", "ell": "ℓ", "pi": "π", "gamma": "γ", "lambda": "λ", "delta": "δ", "beta": "β", "alpha": "α", "tau": "τ", "theta": "θ",
    "mu": "μ", "sigma": "σ", "rho": "ρ", "phi": "φ", "eta": "η", "Delta": "Δ", "sum": "Σ", "prod": "Π", "cdot": "·", "times": "×", "pm": "±",
    "ge": "≥", "geq": "≥", "le": "≤", "leq": "≤", "neq": "≠", "ne": "≠", "approx": "≈", "in": "∈", "infty": "∞", "to": "→",
    "dots": "...", "ldots": "...", "mid": "|", "sim": "~", "odot": "⊙", "nabla": "∇", "partial": "∂", "star": "*",
    "sqrt": "√", "bar": "", "hat": "", "left": "", "right": "", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "big": "", "Big": "",
}  # fmt: skip
"""What a command becomes; any other, such as ``max``, ``exp`` or ``log``, becomes its own name."""


def plain(text: str) -> str:
    """Return one line of prose without markup."""
    text = re.sub(r":math:`([^`]*)`", lambda m: formula(m.group(1)), text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    return re.sub(r"``([^`]*)``", r"\1", text)


def paragraphs(doc: str) -> list[tuple[str, str]]:
    """Return ``("text" | "math" | "heading" | "table", text)`` for each paragraph of a docstring, in order; only tables have line ends."""
    found = []
    for block in re.split(r"\n\s*\n", doc.strip()):
        if block.lstrip().startswith(".. math::"):
            found.append(("math", formula(block.replace(".. math::", "", 1))))
        elif re.match(r"\s*={3,}", block):
            found.append(("table", table(block)))
        elif re.search(r"\n-{3,}\s*\n?", block):
            head, body = re.split(r"\n-{3,}\s*\n?", block, maxsplit=1)
            found += [("heading", head.strip()), *([("text", plain(" ".join(body.split())))] if body.strip() else [])]
        else:
            found.append(("text", plain(" ".join(block.split()))))
    return found


def table(block: str) -> str:
    """Return a simple table as one line per row, each cell after the name of its column: a terminal is too narrow for the columns."""
    rule, *lines = block.strip().splitlines()
    if all(re.fullmatch(r"[ =]+", line) for line in lines):
        return block.strip()
    starts = [m.start() for m in re.finditer(r"=+", rule)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    head, *rows = ([plain(line[a:b].strip()) for a, b in spans] for line in lines if not re.fullmatch(r"[ =]+", line))
    return "\n".join(
        f"{first}: " + "; ".join(f"{name} {cell}" for name, cell in zip(head[1:], cells, strict=True) if cell) for first, *cells in rows
    )


def formula(latex: str) -> str:
    """Return a formula in plain letters; it is meant to be read, not parsed."""
    text = re.sub(r"\\q?quad\b", "\0", " ".join(latex.split()))
    text = re.sub(r"\\[td]?frac(\d)(\d)", r"\1/\2 ", text)
    text = re.sub(r"\\(?:operatorname|text|mathrm|mathbb|mathbf|mathcal)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(
        r"\\begin\{cases\}(.*?)\\end\{cases\}", lambda m: "{ " + ";  ".join(_case(row) for row in m.group(1).split(r"\\")) + " }", text
    )
    for _ in range(4):  # fractions nest
        text = re.sub(
            r"\\[td]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}",
            lambda m: f"{_held(m.group(1))} / {_held(m.group(2))}",
            text,
        )
    text = (
        re.sub(r"\\[,;:! ]", " ", text)
        .replace(r"\{", "(")
        .replace(r"\}", ")")
        .replace(r"\|", "|")
        .replace(r"\_", "_")
        .replace(r"\\", ";  ")
    )
    text = re.sub(r"\\([A-Za-z]+)", lambda m: _WORDS.get(m.group(1), m.group(1)), text)
    text = re.sub(r"([_^])\{(\w+)\}", r"\1\2", text)
    text = text.replace("{", "(").replace("}", ")").replace("&", "")
    text = re.sub(r"\s*\0\s*", "   ", re.sub(r" +", " ", text))
    return re.sub(r" +([,)\]])", r"\1", re.sub(r"([(\[]) +", r"\1", text)).strip()


def _case(row: str) -> str:
    value, _, when = row.strip().partition("&")
    return f"{value.strip()} if {when.strip()}" if when.strip() else value.strip()


def _held(part: str) -> str:
    part = part.strip()
    return part if re.fullmatch(r"\\?[\w{}^]+", part) else f"({part})"

"""Docstrings, which are reStructuredText, as the Markdown that MyST reads."""

import re
import textwrap
from collections.abc import Callable

from inert import clean, code, fence, joined, literal, prose
from inert import link as linked

Link = Callable[[str], str | None]
"""What an inline literal links to, or None."""

_DIRECTIVE = re.compile(r"^\.\. ([\w-]+)::(?: (.*))?$")
_INLINE = re.compile(
    r"``(?P<literal>.+?)``|:(?P<role>[\w+-]{1,40}(?::[\w+-]{1,40})?):`(?P<told>[^`]+)`|"
    r"`(?P<text>[^`<]+?)(?: <(?P<url>[^<>`]+)>)?`_{0,2}",
    re.S,
)
_ADMONITIONS = frozenset({"attention", "caution", "danger", "error", "hint", "important", "note", "seealso", "tip", "warning"})
"""Directives that hold text and nothing else; any other is shown as it was written."""
_DEEPEST = 8
_ROOM = 84
"""Letters of LaTeX that fit a line of a page; a longer formula is broken where it has a \\qquad."""


def to_myst(doc: str, link: Link = lambda name: None, depth: int = 0) -> str:
    """Return a docstring as Markdown: directives become fences, roles become dollars and code. Whatever it says, it only says."""
    return "\n\n".join(_blocks(clean(doc).expandtabs().splitlines(), link, depth)).strip("\n ") + "\n"


def _blocks(lines: list[str], link: Link, depth: int) -> list[str]:
    made: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        if not line.strip():
            i += 1
        elif found := _DIRECTIVE.match(line):
            start = i
            body, i = _indented(lines, i + 1)
            simple = depth < _DEEPEST and found[1] in _FORMS
            made.append(_directive(found[1], found[2] or "", body, link, depth) if simple else literal("\n".join(lines[start:i]).rstrip()))
        elif line.startswith(".. "):  # a comment
            _, i = _indented(lines, i + 1)
        elif re.fullmatch(r"={3,}(?: +={3,})+\s*", line):
            start = i
            while i < len(lines) and lines[i].strip():
                i += 1
            made.append(_table(lines[start:i], link))
        elif i + 1 < len(lines) and re.fullmatch(r"([-=~^\"])\1{2,}\s*", lines[i + 1]):
            made.append(f"**{inline(line.strip(), link)}**")
            i += 2
        elif i + 1 < len(lines) and lines[i + 1].startswith(" ") and lines[i + 1].strip() and not re.match(r"[-*] ", line):
            body, i = _indented(lines, i + 1)  # a name and what is said of it, as in a section of parameters
            names = ", ".join(filter(None, (code(name) for name in line.split(","))))
            made.append(f"- {names}: {inline(' '.join(textwrap.dedent(body).split()), link)}")
        else:
            start = i
            while i < len(lines) and lines[i].strip() and not _DIRECTIVE.match(lines[i]):
                i += 1
            text = "\n".join(lines[start:i])
            if text.rstrip().endswith("::"):
                body, i = _indented(lines, i)
                made += [inline(text.rstrip()[:-1], link), *([literal(textwrap.dedent(body).strip("\n"))] if body.strip() else [])]
            else:
                made.append(inline(text, link))
    return made


def _table(lines: list[str], link: Link) -> str:
    """Return a simple table, whose columns lie under the rule of its first line."""
    starts = [m.start() for m in re.finditer("=+", lines[0])]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    if all(re.fullmatch(r"[ =]+", x) for x in lines):
        return literal("\n".join(lines))
    rows = [[inline(x[a:b].strip(), link, table=True) for a, b in spans] for x in lines if not re.fullmatch(r"[ =]+", x)]
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((head, f"|{'|'.join(['---'] * len(spans))}|", *rest))


def _indented(lines: list[str], i: int) -> tuple[str, int]:
    start = i
    while i < len(lines) and (not lines[i].strip() or lines[i].startswith(" ")):
        i += 1
    return "\n".join(lines[start:i]), i


_CODE = frozenset({"code", "code-block", "sourcecode"})
_FORMS = _ADMONITIONS | _CODE | {"math"}


def _directive(name: str, argument: str, body: str, link: Link, depth: int) -> str:
    inner = textwrap.dedent(body).strip("\n")
    if name == "math":
        return math_block(f"{argument}\n{inner}".strip())
    if name in _CODE:
        return literal(inner.strip("\n"), argument or "text")
    content = to_myst("\n".join(filter(None, (argument, inner))), link, depth + 1).strip("\n ")
    return fence(f"{{{name}}}", content, least=4)


def math_block(latex: str) -> str:
    """Return a formula on a line of its own, or on several where it is long and says where it may be broken."""
    text = " ".join(re.sub(r"(?m)^ *:\w+:.*$", "", latex).split())
    parts = _split(text, "\\qquad") if len(text) > _ROOM else [text]
    lines: list[str] = []
    for part in parts:
        if lines and re.fullmatch(r"\\text\{[^}]*\}", part):  # "or", "where": belongs to what stands before it
            lines[-1] += rf" \quad {part}"
        else:
            lines.append(part)
    return fence("{math}", "\n\n".join(lines)) if lines else ""


def _split(text: str, mark: str) -> list[str]:
    """Split at a mark outside braces and environments."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"\\begin\{\w+\}|\\end\{\w+\}|(?<!\\)[{}]|" + re.escape(mark) + r"\b", text):
        token = found[0]
        if token == mark and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        elif token != mark:
            depth += 1 if token == "{" or token.startswith("\\begin") else -1
    return [p for p in (*parts, text[start:].strip()) if p]


def inline(text: str, link: Link = lambda name: None, *, table: bool = False) -> str:
    """Return a run of text: literals, roles and links converted, everything else escaped."""
    text, made, end = clean(text), [], 0
    for found in _INLINE.finditer(text):
        made += [prose(text[end : found.start()]), _marked(found, link, table)]
        end = found.end()
    whole = joined([*made, prose(text[end:])])
    return " ".join(whole.split()) if table else whole


def _marked(found: re.Match[str], link: Link, table: bool) -> str:
    if found["role"] == "math":
        latex = " ".join(found["told"].split())
        if not latex or "$" in latex or latex.endswith("\\"):
            return code(latex, table=table)
        bar = latex.replace("|", r"\vert ") if table else latex  # a bar would end the cell
        return f"${bar}$"
    if found["url"]:
        return linked(found["text"].strip(), found["url"])
    told = " ".join((found["literal"] or found["told"] or found["text"]).split())
    told = re.sub(r"^~?(.*?)(?: <[^<>]*>)?$", r"\1", told) if found["role"] else told
    shown = code(told, table=table)
    where = link(told)
    return f"[{shown}]({where})" if where and shown else shown

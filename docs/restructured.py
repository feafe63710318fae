"""Docstrings, which are reStructuredText, as the Markdown that MyST reads."""

import re
import textwrap
from collections.abc import Callable

Link = Callable[[str], str | None]
"""What an inline literal links to, or None."""

_DIRECTIVE = re.compile(r"^\.\. ([\w-]+)::(?: (.*))?$")
_INLINE = re.compile(r"``(?P<literal>.+?)``|:(?P<role>[\w:+-]+):`(?P<told>[^`]+)`|`(?P<text>[^`<]+?)(?: <(?P<url>[^>]+)>)?`_{0,2}", re.S)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]+?)(?<=[^\s*])\1(?![\w*])", re.S)
_ROOM = 84
"""Letters of LaTeX that fit a line of a page; a longer formula is broken where it has a \\qquad."""


def to_myst(doc: str, link: Link = lambda name: None) -> str:
    """Return a docstring as Markdown: directives become fences, roles become dollars and code."""
    return "\n\n".join(_blocks(doc.expandtabs().splitlines(), link)).strip() + "\n"


def _blocks(lines: list[str], link: Link) -> list[str]:
    made: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        if not line.strip():
            i += 1
        elif found := _DIRECTIVE.match(line):
            body, i = _indented(lines, i + 1)
            made.append(_directive(found[1], found[2] or "", body, link))
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
            names = ", ".join(f"`{name.strip()}`" for name in line.split(","))
            made.append(f"- {names}: {inline(' '.join(textwrap.dedent(body).split()), link)}")
        else:
            start = i
            while i < len(lines) and lines[i].strip() and not _DIRECTIVE.match(lines[i]):
                i += 1
            text = "\n".join(lines[start:i])
            if text.rstrip().endswith("::"):
                body, i = _indented(lines, i)
                made += [inline(text.rstrip()[:-1], link), f"```text\n{textwrap.dedent(body).strip()}\n```"]
            else:
                made.append(inline(text, link))
    return made


def _table(lines: list[str], link: Link) -> str:
    """Return a simple table, whose columns lie under the rule of its first line."""
    starts = [m.start() for m in re.finditer("=+", lines[0])]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    rows = [[inline(x[a:b].strip(), link, table=True) for a, b in spans] for x in lines if not re.fullmatch(r"[ =]+", x)]
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((head, f"|{'|'.join(['---'] * len(spans))}|", *rest))


def _indented(lines: list[str], i: int) -> tuple[str, int]:
    start = i
    while i < len(lines) and (not lines[i].strip() or lines[i].startswith(" ")):
        i += 1
    return "\n".join(lines[start:i]), i


def _directive(name: str, argument: str, body: str, link: Link) -> str:
    inner = textwrap.dedent(body).strip("\n")
    if name == "math":
        return math_block(f"{argument}\n{inner}".strip())
    if name in ("code-block", "code", "sourcecode"):
        return f"```{argument or 'text'}\n{inner.strip()}\n```"
    content = to_myst("\n".join(filter(None, (argument, inner))), link).strip()
    return f"````{{{name}}}\n{content}\n````"


def math_block(latex: str) -> str:
    """Return a formula on a line of its own, or on several where it is long and says where it may be broken."""
    text = " ".join(re.sub(r"(?m)^\s*:\w+:.*$", "", latex).split())
    parts = _split(text, "\\qquad") if len(text) > _ROOM else [text]
    lines: list[str] = []
    for part in parts:
        if lines and re.fullmatch(r"\\text\{[^}]*\}", part):  # "or", "where": belongs to what stands before it
            lines[-1] += rf" \quad {part}"
        else:
            lines.append(part)
    return "```{math}\n" + "\n\n".join(lines) + "\n```"


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
    made, end = [], 0
    for found in _INLINE.finditer(text):
        made += [_prose(text[end : found.start()]), _marked(found, link, table)]
        end = found.end()
    whole = "".join((*made, _prose(text[end:])))
    return " ".join(whole.split()) if table else whole


def _marked(found: re.Match[str], link: Link, table: bool) -> str:
    if found["role"] == "math":
        latex = " ".join(found["told"].split())
        bar = latex.replace("|", r"\vert ") if table else latex  # a bar would end the cell
        return f"${bar}$"
    if found["url"]:
        return f"[{found['text'].strip()}]({found['url']})"
    literal = " ".join((found["literal"] or found["told"] or found["text"]).split())
    literal = re.sub(r"^~?(.*?)(?: <[^>]*>)?$", r"\1", literal) if found["role"] else literal
    told = literal.replace("|", r"\|") if table else literal
    shown = f"`{told}`"
    where = link(literal)
    return f"[{shown}]({where})" if where else shown


def _prose(text: str) -> str:
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = _EMPHASIS.sub(keep, text)
    text = re.sub(r"([*$#\[\]|~^])", r"\\\1", text).replace("<", "&lt;")
    text = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], text)

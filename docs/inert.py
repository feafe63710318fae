"""Text as Markdown in which nothing but that text is to be seen: no directive, role, tag, link or table comes out of what a docstring says."""

import re

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,2})(?=[^\s*])([^*]+?)(?<=[^\s*])\1(?![\w*])", re.S)
_SPECIAL = re.compile(r"([\\`*$#\[\]{|~^%]|\+(?=\+\+)|:(?=::)|(?<=\))=|!(?=$|arXiv:))")
_UNDERLINE = re.compile(r"(?m)^([^\S\n]*)(?=[-=]+[^\S\n]*$|---)")
_URL = re.compile(r"https?://[^\s<>\"'`\\]+")
_LANGUAGE = re.compile(r"[\w+#.-]+")


def clean(text: str) -> str:
    """Return text that can be written: a control character or half of a surrogate pair becomes the sign for what is no character."""
    return _UNPRINTABLE.sub("\ufffd", text)


def prose(text: str) -> str:
    """Escape a run of text, in which emphasis stays and arXiv numbers become links."""
    made, end = [], 0
    for found in _EMPHASIS.finditer(text):
        made += [_escaped(text[end : found.start()]), f"{found[1]}{_escaped(found[2])}{found[1]}"]
        end = found.end()
    whole = "".join((*made, _escaped(text[end:])))
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", whole)


def _escaped(text: str) -> str:
    marked = _SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
    return _UNDERLINE.sub(r"\1\\", marked)


def code(text: str, *, table: bool = False) -> str:
    """Return text as code on a line, with more backticks around it than in it."""
    told = " ".join(text.split())
    if not told:
        return ""
    mark = "`" * (_longest(told) + 1)
    room = " " if told.startswith("`") or told.endswith("`") else ""
    return f"{mark}{room}{told.replace('|', chr(92) + '|') if table else told}{room}{mark}"


def fence(info: str, content: str, *, least: int = 3) -> str:
    """Return a block between fences longer than any within; what looks like an option of a directive is none."""
    mark = "`" * max(least, _longest(content) + 1)
    gap = "\n" if re.match(r":|-{3}", content) else ""
    return f"{mark}{info}\n{gap}{content}\n{mark}"


def literal(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return fence(language if _LANGUAGE.fullmatch(language) else "text", text)


def link(shown: str, url: str) -> str:
    """Return a link to a page of the web, and for any other address what it would have been called."""
    if not _URL.fullmatch(url):
        return prose(shown)
    return f"[{prose(shown)}]({re.sub(r'[()|]', lambda m: f'%{ord(m[0]):X}', url)})"


def joined(parts: list[str]) -> str:
    """Join pieces of a line: two that both end in the mark of code or of a formula must not become one."""
    made: list[str] = []
    for part in filter(None, parts):
        if made and made[-1][-1] == part[0] and part[0] in "`$" and not made[-1].endswith("\\" + part[0]):
            made.append("&#8203;")
        made.append(part)
    return "".join(made)


def _longest(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)

"""Formulas as MathML, made when the pages are: browsers set it themselves, so no page asks another host for a script."""

import html
import re
import xml.etree.ElementTree as ET

from latex2mathml.converter import convert

_NAMES = re.compile(
    r"\\(?:text|mathrm|mathbf|mathbb|operatorname|begin|end)\*?\{[^{}]*\}|\\[A-Za-z]+|(?P<name>[A-Za-z]{3,}(?:\\_[A-Za-z]+)*)"
)
"""What LaTeX knows already, or a name of three letters or more: ``old``, ``importance\\_cap``."""


def _named(found: re.Match[str]) -> str:
    return rf"\text{{{found['name'].replace(chr(92), '')}}}" if found["name"] else found[0]


def formula(latex: str, *, block: bool = False) -> str:
    """Return one formula as a ``<math>`` element, and what is none, or brings more than a formula, as code."""
    try:
        made = _element(latex, block)
        safe = all(_is_plain(part) for part in ET.fromstring(made).iter())
    except Exception:  # the converter has its own errors and Python's, that of its depth included
        safe = False
    return made if safe else f"<code>{html.escape(latex)}</code>"


def _is_plain(part: ET.Element) -> bool:
    tag = part.tag.removeprefix("{http://www.w3.org/1998/Math/MathML}")
    return re.fullmatch(r"math|m[a-z]+|none", tag) is not None and not any(k == "href" or k.startswith(("on", "{")) for k in part.attrib)


def _element(latex: str, block: bool) -> str:
    plain = re.sub(r"\\([bB]ig+)([lrm]?)\b", r"\\\1", latex).replace("\\textstyle", "")
    if block:  # a small fraction saves a line of text from growing; on a line of its own it is only hard to read
        plain = re.sub(r"\\t(frac|binom)\b", r"\\\1", plain)
    made = convert(_NAMES.sub(_named, plain), display="block" if block else "inline")
    if block:  # cells of a table are set small by a browser, as in a line of text
        made = made.replace("<mtable", '<mtable displaystyle="true"')
    return re.sub(r"<mrow>((?:<mi mathvariant=\"normal\">\w</mi>)+)</mrow>", _word, made)


def _word(found: re.Match[str]) -> str:
    """Return the letters of an upright word as one identifier, or each of them would stand apart."""
    letters = "".join(re.findall(r">(\w)<", found[1]))
    return f'<mi mathvariant="normal">{letters}</mi>'


def _inline(self, node):
    self.body.append(f'<span class="math">{formula(node.astext())}</span>')
    _done()


def _block(self, node):
    lines = [part for part in re.split(r"\n\s*\n", node.astext()) if part.strip()]
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body += [f'<div class="line" title="{html.escape(part)}">{formula(part, block=True)}</div>' for part in lines]
    self.body.append("</div>")
    _done()


def _done():
    from docutils.nodes import SkipNode

    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Docstrings that mean ill: a page shows what they say, does nothing that they say, and is made in no time."""

import html
import re
import time

import pytest
from blocks import ROOT  # noqa: F401 - puts the folder of the pages on the path
from family import Zoo
from generate import generate
from inert import clean, code, fence
from page import component_page
from restructured import inline, to_myst

import lossary
from lossary.cli.prose import paragraphs
from lossary.registry import Component

LONG = 20_000
HOSTILE = {
    "a table of one rule": "=== ===",
    "a table of rules": "=== ===\n=== ===\n=== ===",
    "a placeholder": "a *b* \x00 5\x00 \x000\x00",
    "nested notes": "\n".join(f"{'  ' * k}.. note::\n" for k in range(600)) + "  " * 600 + "deep",
    "half a surrogate": "a \ud800 b ``\udfff`` :math:`\ud801`",
    "roles that are none": ":a" * LONG,
    "a role without an end": ":a:`" + ":a" * LONG,
    "backticks": "`" * LONG,
    "backticks and words": "`a <" * LONG,
    "targets of a role": ":py:`" + "a <" * LONG + "`",
    "stars": "*a " * LONG,
    "dollars": "$" * LONG,
    "braces": ".. math:: " + "{" * LONG,
    "equations": ".. math:: " + "\\begin{a}" * 5000,
    "blank lines": ".. math:: a\n\n" + "   \n" * LONG + "   b",
    "rules": "=" * LONG + " x",
    "many rules": "=== " * LONG + "x",
    "nulls": "\x00" * LONG,
    "an include": ".. include:: /etc/passwd",
    "a raw block": ".. raw:: html\n\n   <script>alert(1)</script>",
    "a directive of MyST": ".. note:: {include} /etc/passwd\n\n   ```{include} /etc/passwd\n   ```",
    "a role of MyST": "{include}`/etc/passwd` {raw}`x` *{include}*``/etc/passwd``",
    "tags": "<script>alert(1)</script> *<b>* &lt;script&gt; ` < ``<script>alert(1)</script>`` ",
    "code of many backticks": "```` ``<script>alert(1)</script>` ```` ``a````<script>`` ``b`c````d``",
    "links": "`x <javascript:alert(1)>`_ [x](javascript:alert(1)) <javascript:alert(1)> `y <https://a.b/(c)|d>`_ ![x](http://a.b/c.png)",
    "a container": ":::{include} /etc/passwd\n:::\n\n::::\n\na\n:::{note}\nb\n:::",
    "a fence in a block": "Look::\n\n   ```\n   ```{include} /etc/passwd\n   ```\n   <script>alert(1)</script>\n\nafter",
    "a fence in code": ".. code-block:: {include} /etc/passwd\n\n   ```\n   <script>alert(1)</script>\n   ````",
    "a fence in a formula": ".. math:: ```\n\n   <script>alert(1)</script>\n\n.. math:: --- a\n\n.. math:: :class: a",
    "a fence in prose": "```{include} /etc/passwd\n```\n\n~~~{include} /etc/passwd\n~~~",
    "what stands at the start of a line": "a\n===\n\nb\n=\n\nc\n--\n\n% gone\n\n(target)=\n\n+++\n\n:class: x\n\n---\n",
    "formulas that are none": ":math:` ` :math:`$` :math:`a\\` :math:`a`:math:`b` $$x$$ \\$ :math:`\\text{<script>alert(1)</script>}`",
    "a table of pipes": "=== ===\na|b ``c|d``\n=== ===\n:math:`e|f` `g <http://h|i>`_\n=== ===",
    "backslashes": "\\` ``a`` \\\\{include}``b`` \\<script>",
    "a name with a fence": "a, ```, `b`\n    <script>alert(1)</script>",
}


NEVER = {
    "html_block", "html_inline", "image", "myst_target", "myst_block_break", "myst_line_comment", "front_matter", "myst_role", "math_block",
    "footnote_ref",
}  # fmt: skip


def saying(doc: str) -> Component:
    """A component with this docstring, as the catalog holds it."""

    def made_up(log_prob: lossary.PerToken, advantages: lossary.PerToken) -> lossary.PerToken:
        return -log_prob * advantages

    made_up.__doc__ = doc
    return next(iter(lossary.Catalog().extended([lossary.policy_loss(made_up)], brought="lossary")))


def texts(doc: str) -> list[str]:
    return [to_myst(doc), inline(doc), inline(doc, table=True), component_page(Zoo.of([]), saying(f"{doc}\n\n{doc}\n"), None)]


@pytest.mark.parametrize("doc", HOSTILE.values(), ids=HOSTILE)
def test_a_page_is_made_of_anything_and_in_no_time(doc: str) -> None:
    start = time.process_time()
    for text in texts(doc):
        text.encode("utf-8")
        assert "\0" not in text
    assert time.process_time() - start < 4


@pytest.mark.parametrize("doc", [d for d in HOSTILE.values() if len(d) < 2000], ids=[k for k, d in HOSTILE.items() if len(d) < 2000])
def test_what_a_docstring_says_is_only_said(doc: str) -> None:
    """As MyST reads it: no tag, no link but to the web, no directive or role but those that the page makes itself."""
    parser = pytest.importorskip("myst_parser.parsers.mdit", reason="`make docs` installs it")
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig

    read = parser.create_md_parser(MdParserConfig(enable_extensions={"dollarmath", "colon_fence"}), RendererHTML)
    waiting = texts(doc)
    while waiting:
        for t in [t for block in read.parse(f"# x\n\n{waiting.pop()}") for t in (block, *(block.children or ()))]:
            assert t.type not in NEVER
            assert t.type != "heading_open" or t.markup.startswith("#")
            if t.type in ("fence", "colon_fence") and t.info.strip().startswith("{"):
                name = t.info.split()[0]
                assert name in ("{math}", "{note}", "{tip}", "{container}", "{image}")
                assert name == "{image}" or not re.match(r":|---", t.content)
                waiting += [] if name in ("{math}", "{image}") else [t.content]
            if t.type == "link_open":
                assert re.match(r"https?://|[\w./-]+\.md(#[\w-]+)?$", t.attrs["href"])


@pytest.mark.parametrize("word", ["<script>alert(1)</script>", "{include}", "javascript:alert(1)"])
def test_what_is_not_done_is_still_to_be_read(word: str) -> None:
    said = [inline(f"a {word} b"), inline(f"``{word}``"), to_myst(f"Look::\n\n    {word}\n"), to_myst(f".. raw:: html\n\n   {word}")]
    for text in said:
        assert word in re.sub(r"\\(?=\W)", "", html.unescape(text))


def test_fences_are_longer_than_what_they_hold() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`") == "`` ` ``"
    assert fence("text", "````") == "`````text\n````\n`````"
    assert to_myst(".. note:: a\n\n   .. tip:: b\n") == "`````{note}\na\n\n````{tip}\nb\n````\n`````\n"
    assert inline("``a````b``").count("&#8203;") == 1


def test_plain_docstrings_stay_as_they_are() -> None:
    assert inline("a & b, (c) d_e: *f* - g! ``h`` :math:`i_j`") == "a &amp; b, (c) d_e: *f* - g! `h` $i_j$"
    assert clean("tab\there, é\n") == "tab\there, é\n"


def test_a_page_that_cannot_be_made_names_its_component(tmp_path, monkeypatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("why")

    monkeypatch.setattr("generate.component_page", broken)
    with pytest.raises(RuntimeError, match=r"policy_loss 'made-up' \(.*test_restructured.*\) has no page: ValueError: why"):
        generate(tmp_path, of=[saying("x")], portray=lambda c: None)


@pytest.mark.parametrize("doc", HOSTILE.values(), ids=HOSTILE)
def test_a_terminal_shows_anything_and_in_no_time(doc: str) -> None:
    start = time.process_time()
    assert paragraphs(f"{doc}\n\n{doc}")
    assert time.process_time() - start < 4


HOSTILE_FORMULAS = [
    r"\text{<script>alert(1)</script>}", r"\frac{", "{" * 2000, "x^" * 500, r"\begin{x}", "a & b", r"\href{javascript:alert(1)}{x}", "\ufffd", "}",
]  # fmt: skip


@pytest.mark.parametrize("latex", HOSTILE_FORMULAS, ids=range(len(HOSTILE_FORMULAS)))
def test_a_formula_that_is_none_is_shown_as_it_was_written(latex: str) -> None:
    pytest.importorskip("latex2mathml", reason="`make docs` installs it")
    from mathml import formula

    for block in (False, True):
        made = formula(latex, block=block)
        assert "<script" not in made
        assert "href" not in made or made.startswith("<code>")
        assert made.startswith(("<math", "<code>"))
    assert formula("a < b").startswith("<math")

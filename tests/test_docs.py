"""The pages: none is missing, and what they show is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from blocks import ROOT, Block, blocks, matches, run
from example import recipe_of
from family import FRAMEWORKS, TITLES, Zoo
from generate import generate, without_page
from page import component_page
from restructured import to_myst

import lossary
from lossary.registry import KINDS, Component

OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
HAND = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Path:
    """Every page, without pictures."""
    folder = tmp_path_factory.mktemp("zoo")
    generate(folder, portray=lambda c: None)
    return folder


@lossary.policy_loss
def made_up(log_prob: lossary.PerToken, advantages: lossary.PerToken, *, weight: float = 1.0) -> lossary.PerToken:
    r"""Do what no page tells; unlike ``reinforce`` it is not there.

    .. math:: L_t = -c\, A_t\, \ell_t
    """
    return -weight * log_prob * advantages


def component(function) -> Component:
    """The made-up component as the catalog would hold it, had it come with the package."""
    return next(iter(lossary.Catalog().extended([function], brought="lossary")))


# ── no component without a page ──────────────────────────────────────────────────────────────────────────────────────


def test_every_component_has_a_page(zoo):
    assert without_page(zoo, OURS) == []
    assert {p.parent.name for p in zoo.rglob("*/index.md")} == {c.kind.name for c in OURS}


def test_a_component_without_a_page_is_found(zoo, tmp_path):
    new = component(made_up)
    assert without_page(zoo, [*OURS, new]) == ["policy_loss/made-up"]
    generate(tmp_path, of=[*OURS, new], portray=lambda c: None)
    assert without_page(tmp_path, [*OURS, new]) == []
    (tmp_path / "kl" / "k3.md").unlink()
    (tmp_path / "kl" / "k2.md").write_text("")
    assert sorted(without_page(tmp_path, OURS)) == ["kl/k2", "kl/k3"]
    generate(tmp_path, portray=lambda c: None)  # and a page whose component is gone goes too
    assert not (tmp_path / "policy_loss" / "made-up.md").exists()


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_a_page_tells_all_that_is_known(c, zoo):
    text = (zoo / c.kind.name / f"{c.name}.md").read_text("utf-8")
    assert len(re.findall(r"container\} idea\n.{12}", text)) == 1
    for name in (*c.params.model_fields, *(i.name for i in c.inputs), *c.aliases):
        assert f"`{name}`" in text
    assert ("## Hyperparameters" in text) is bool(c.params.model_fields)
    assert ("## Elsewhere" in text) is bool(c.aliases or c.compat)
    assert all(f"| {FRAMEWORKS[framework]} | " in text for framework in c.compat)
    assert all(f"`{name}`" in text for name in c.suits.get("aggregation", "").split(" | ") if name)
    assert all(f"- Made for `{key}" in text for key in c.suits if key != "aggregation")
    assert all(number in text for number in re.findall(r"arXiv:[\d.]+", c.paper))
    assert "## Neighbours" in text
    if c.kind.name in ("policy_loss", "kl", "aggregation", "value_loss", "auxiliary_loss"):
        assert "```{math}\n" in text or c.name == "constant-divisor"
    assert not re.search(r"^\.\. |:math:`|``\w", text.replace("```", ""), re.M)  # nothing is left as reStructuredText


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_the_recipe_of_a_page_composes_without_a_warning(c):
    recipe = yaml.safe_load(recipe_of(c))
    assert c.name in str(recipe)
    assert lossary.compose(recipe).warnings == ()


def test_every_kind_and_framework_has_a_name_for_people():
    assert set(KINDS) == set(TITLES)
    assert {framework for c in OURS for framework in c.compat} <= set(FRAMEWORKS)


def test_a_name_links_to_the_component_it_means():
    book = Zoo.of(OURS)
    ppo = next(c for c in OURS if c.name == "ppo-clip")
    assert book.named("dual-clip", ppo).name == "dual-clip"
    assert book.named("low_var_kl", ppo).name == "k3"
    assert book.named("clip_ratio_low", ppo) is None
    assert book.named("grpo") is None  # a policy loss and an advantage
    assert "unlike [`reinforce`](reinforce.md) it" in component_page(book, component(made_up), None)


def test_docstrings_become_markdown():
    made = to_myst("One ``x`` of :math:`a_b`.\n\n.. math:: c = d\n\nSee arXiv:2402.03300, *now*, 2 * 3.\n")
    assert made.split("\n\n") == [
        "One `x` of $a_b$.", "```{math}\nc = d\n```", "See [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), *now*, 2 \\* 3.\n"
    ]  # fmt: skip


def test_words_in_formulas_stay_words():
    pytest.importorskip("latex2mathml", reason="`make docs` installs it")
    from mathml import formula

    made = formula(r"\epsilon_{low} + importance\_cap + n_{it} + \operatorname{sg}(x)")
    assert "<mtext>low</mtext>" in made
    assert "<mtext>importance_cap</mtext>" in made
    assert "<mi>i</mi><mi>t</mi>" in made
    assert "<mo>sg</mo>" in made


# ── every block runs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", HAND, ids=lambda p: p.name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))
    scope = {"__name__": "page"}
    for block in blocks(page.read_text("utf-8")):
        run(block, scope, tmp_path)


def test_most_pages_have_blocks():
    counts = {p.name: len(blocks(p.read_text("utf-8"))) for p in HAND}
    assert {name for name, n in counts.items() if n == 0} == {"batch.md", "glossary.md", "performance.md"}


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")  # a fragment says nothing of the section that would suit it
@pytest.mark.parametrize("page", HAND, ids=lambda p: p.name)
def test_settings_in_the_prose_are_right(page):
    text = page.read_text("utf-8")
    found = re.findall(r"`((?:policy_loss|kl|entropy|correction|filter|advantage|aggregation|value_loss): [^`]*)`", text)
    for text in (t for t in found if "..." not in t):
        said = yaml.safe_load(text)
        if isinstance(said.get("kl"), str):
            said["kl"] = {"use": said["kl"], "coef": 0.001}
        lossary.compose({"policy_loss": "ppo-clip", **({"advantage": "gae"} if "value_loss" in said else {}), **said})


def test_verls_estimators_are_found():
    text = (ROOT / "docs" / "migrating.md").read_text("utf-8")
    rows = re.search(r"`algorithm.adv_estimator`.*?\n\n", text, re.S)[0]
    names = {name for cell in re.findall(r"^\| (`.*?) \|", rows, re.M)[1:] for name in re.findall(r"`(\w+)`", cell)}
    assert len(names) >= 12
    assert all(lossary.catalog().get("advantage", name) for name in names)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "assert 1 == 2"), ("yaml", "policy_loss: {use: ppo-clp}"), ("console", "$ lossary list kll\n...\n"), ("sh", "make coffee"),
        ("console", "$ lossary check grpo\nnothing\n"), ("toml", "a ="), ("ruby", "puts 1"),
    ],
)  # fmt: skip
def test_a_block_that_is_wrong_fails(language, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception):  # noqa: B017, PT011 each fails in its own way
        run(Block(language, text + "\n", "", ""), {}, tmp_path)


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("a\nb\nc", True),
        ("a\n...\nc", True),
        ("...\nc", True),
        ("a\n...", True),
        ("...", True),
        ("a\nb...\nc", True),
        ("a\nc", False),
        ("a", False),
    ],
)
def test_dots_stand_for_anything(shown, same):
    assert matches(shown, "a\nb\nc\n") is same


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_sphinx_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="`make docs` installs it")
    for page in (ROOT / "docs").rglob("*"):
        if page.is_file() and not {"_build", "zoo", "__pycache__"} & set(page.relative_to(ROOT / "docs").parts):
            copy = tmp_path / "docs" / page.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(page.read_bytes())
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "html"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "html").rglob("*.html"))
    assert len(pages) > len(OURS)
    for page in pages:
        assert not re.search(r"(?:src|href)=\"https?://[^\"]*\\.(?:js|css|woff2?)\"", page.read_text("utf-8"))  # no page needs the network

"""The pages: none is missing, and what they show is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from blocks import ROOT, Block, blocks, matches, run
from example import recipe_of
from family import FRAMEWORKS, TITLES, Zoo
from generate import generate, without_page
from page import component_page
from restructured import to_myst

import lossary
from lossary.cli.measured import KNOWN, explained, of_strangers
from lossary.cli.portrait.examples import required
from lossary.cli.sections import keys_of, must_be_said
from lossary.conformance.kit import RULES
from lossary.pipeline import bundled_recipes, load_recipe
from lossary.registry import KINDS, Component
from lossary.registry.claims import CLAIMS
from lossary.trainer.loop import train
from lossary.trainer.settings import Settings

OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
HAND = sorted((ROOT / "docs").glob("*.md"))
HERE = [p for p in HAND if p.name != "plugins.md"]
"""Pages whose blocks run in this process; what the one on plugins installs, ``test_plugins_page`` keeps apart."""


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
    assert not re.search(r"^\| `\w+` \| [^|]* \| [^|]*(?:[<>]|&[lg]t;)=? \d", text, re.M)  # no line ends between a sign and its number
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


def test_fractions_on_a_line_of_their_own_are_large():
    pytest.importorskip("latex2mathml", reason="`make docs` installs it")
    from mathml import formula

    assert 'displaystyle="false"' in formula(r"\tfrac{1}{n} \sum_t x_t")
    assert 'displaystyle="false"' not in formula(r"\tfrac{1}{n} \sum_t x_t", block=True)
    assert '<mtable displaystyle="true"' in formula(r"\begin{cases} \frac{1}{n} & x > 0 \\\\ 0 & x \le 0 \end{cases}", block=True)


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_the_index_has_a_line_for_every_component(c, zoo):
    text = (zoo / "index.md").read_text("utf-8")
    assert len(re.findall(rf"^- \[{re.escape(c.name)}\]\({c.kind.name}/{re.escape(c.name)}\.md\): \S", text, re.M)) == 1


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_a_page_says_what_the_section_must_add(c, zoo):
    """What has no default is never shown as one, be it a hyperparameter or a key of the section."""
    text = (zoo / c.kind.name / f"{c.name}.md").read_text("utf-8")
    told = re.search(r"## In a recipe\n\nWith its defaults:(.*)\n", text)
    assert set(must_be_said(c)) | set(required(c)) == set(re.findall("`(\\w+)`", told[1] if told else ""))
    for key in keys_of(c):
        assert f"| `{key.name}` | " in text
    assert ("Beside its hyperparameters the section" in text) is bool(keys_of(c))


def test_the_kinds_are_counted(zoo):
    text = (zoo / "_kinds.md").read_text("utf-8")
    assert sum(int(n) for n in re.findall(r"^\| \[.*?\) \| (\d+) \|", text, re.M)) == len(OURS)


def test_the_tables_of_checks_and_claims_are_whole(zoo):
    checks, claims = (re.findall(r"^\| `([\w-]+)` \|", (zoo / f"{name}.md").read_text("utf-8"), re.M) for name in ("_checks", "_claims"))
    assert checks == [rule.name for rule in RULES]
    assert claims == list(CLAIMS)
    assert set(claims) < set(checks)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def listed() -> list[str]:
    """The names, or patterns of names, that the page on metrics explains."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.M)
    assert all(meaning.strip() for _, meaning in rows)
    return [name for names, _ in rows for name in re.findall(r"`([^`]+)`", names)]


def test_the_page_on_metrics_lists_what_the_table_at_the_end_knows():
    assert len(listed()) == len(set(listed())) > 80
    assert set(listed()) == set(KNOWN)
    assert len(KNOWN) == len(set(KNOWN))


@pytest.mark.parametrize("recipe", sorted(bundled_recipes()))
def test_every_metric_of_a_bundled_recipe_is_explained(recipe, tmp_path):
    small = ("train.steps=1", "warm_up.steps=1", "rollout.prompts=2", "evaluate.items=2")
    if recipe != "demo":
        small += ("model={d_model: 8, layers: 1, heads: 2}",)
    _, lines = train(Settings.of(load_recipe(recipe, small)), tmp_path)
    names = {name for line in lines for name in line}
    assert {"step", "eval/accuracy", "actor/loss", "actor/grad_norm", "time/cpu_seconds"} <= names
    assert {n for n in names if not explained(n)} == set()


def test_every_metric_of_filters_and_corrections_is_explained():
    recipe = {
        "advantage": "grpo", "policy_loss": "dual-clip", "reward": {"use": "clip-rewards"}, "filter": "group-spread",
        "correction": ["target-ess", {"use": "m2po", "denominator": "original"}],
    }  # fmt: skip
    objective = lossary.compose(recipe)
    old = -torch.rand(6)
    columns = {"old_log_prob": old, "rollout_log_prob": old + 0.1 * torch.rand(6), "rewards": torch.tensor([1.0, 0, 1])}
    batch = objective.weigh(objective.estimate(lossary.Batch.from_packed([3, 1, 2], group_ids=[1, 1, 1], **columns)))
    names = set(objective.metrics(objective.loss(batch, log_prob=old.clone().requires_grad_()), batch))
    assert {
        "filter/group_spread_kept",
        "correction/ess",
        "rollout_corr/chi2_seq",
        "critic/reward_clip_rewards",
        "actor/pg_clipfrac_lower",
    } <= names
    assert {n for n in names if not explained(n)} == set()


def test_every_report_of_a_component_is_explained():
    """Of all that stand in the source, also those that no bundled recipe uses."""
    seen = set()
    for role, folder in {"actor": "algorithms/policy", "critic": "algorithms/value", "correction": "estimators/correction"}.items():
        for path in (ROOT / folder).glob("*.py"):
            seen |= {f"{role}/{name}" for name in re.findall(r'"([\w/]+)": (?:Mean|Max|Min)\(', path.read_text("utf-8"))}
    for path in (ROOT / "algorithms" / "auxiliary").glob("*.py"):
        seen |= {f"actor/{name}" for name in re.findall(r'"([\w/]+)": (?:Mean|Max|Min)\(', path.read_text("utf-8"))}
    assert len(seen) > 30
    assert {name for name in seen if not explained(name)} == set()


def test_a_strangers_metric_is_told_from_ours():
    assert of_strangers(["actor/pg_loss", "actor/clipped", "step", "critic/mine", "actor/clipped"]) == ["actor/clipped", "critic/mine"]


# ── every block runs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", HERE, ids=lambda p: p.name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))
    scope = {"__name__": "page"}
    for block in blocks(page.read_text("utf-8")):
        run(block, scope, tmp_path)


@pytest.mark.parametrize("page", HAND, ids=lambda p: p.name)
def test_no_block_runs_off_the_right_edge(page):
    """About 88 characters fit beside the menu of a page."""
    assert [line for block in blocks(page.read_text("utf-8")) for line in block.text.splitlines() if len(line) > 88] == []


def test_pages_that_link_into_the_zoo_say_how_to_read_them():
    linking = {p.name for p in HAND if re.search(r"\(zoo/|\{include\} zoo/", p.read_text("utf-8"))} - {"index.md"}
    saying = {p.name for p in HAND if "`make docs`" in p.read_text("utf-8").split("\n\n")[1]}
    assert linking == saying > {"choosing.md", "migrating.md"}


def test_a_filter_on_the_raw_score_is_not_one_on_the_punished_reward():
    """As the page on other frameworks says of DAPO: all right but one too long, and a spread only after the punishment."""
    text = (ROOT / "docs" / "migrating.md").read_text("utf-8").partition("### DAPO")[2]
    (code,) = re.findall(r"```python\n(.*?)```", text.partition("### Setting")[0], re.S)
    recipe = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.S)[0])
    assert recipe["filter"]["use"] == "group-spread"
    scope = {"__name__": "page"}
    exec(compile(code, "migrating.md", "exec"), scope)
    recipe["reward"] |= {"max_resp_len": 4, "overlong_buffer_len": 2}
    left = []
    for chosen in (recipe["filter"], "acc-spread"):
        objective = lossary.compose({**recipe, "filter": chosen}, components=[scope["acc_spread"]], columns=[scope["acc"]])
        batch = lossary.Batch.from_packed(
            [4, 1, 1, 1, 1, 1], rewards=torch.tensor([1.0, 1, 1, 0, 1, 1]), acc=torch.tensor([1.0, 1, 1, 0, 1, 1]),
            old_log_prob=torch.full((9,), -1.0), group_ids=["long", "long", "mixed", "mixed", "same", "same"], fields=[scope["acc"]],
        )  # fmt: skip
        left.append(sorted(set(objective.estimate(batch).groups)))
    assert [len(groups) for groups in left] == [2, 1]


def test_most_pages_have_blocks():
    counts = {p.name: len(blocks(p.read_text("utf-8"))) for p in HAND}
    assert {name for name, n in counts.items() if n == 0} == {"batch.md", "glossary.md", "metrics.md", "performance.md"}


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

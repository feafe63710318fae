"""``lossary list``, ``show`` and ``find``: what they print, for people and for machines."""

import json
import re

import pytest
import yaml
from commands import ended, run
from example import recipe_of

import lossary
from lossary import catalog
from lossary.cli.finding import found
from lossary.cli.prose import paragraphs, plain
from lossary.cli.sections import keys_of, must_be_said, section_of
from lossary.registry import bounds_of

# ── list ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_json_is_a_list_of_components():
    code, out, _ = run("list", "--json")
    found = json.loads(out)
    keys = {"kind", "name", "aliases", "summary", "paper", "traits", "section", "keys", "inputs", "params", "distribution"}
    assert code == 0
    assert all(set(c) == keys for c in found)
    assert len(found) == len(list(catalog()))
    assert len({(c["kind"], c["name"]) for c in found}) == len(found)
    ppo = next(c for c in found if c["name"] == "ppo-clip")
    assert ppo["inputs"] == [{"name": n, "optional": False} for n in ("log_prob", "old_log_prob", "advantages")]
    assert ppo["aliases"] == ["regular"]
    assert ppo["traits"]["scope"] == "token"
    assert ppo["params"][0] == {
        "name": "clip_ratio_low", "type": "number", "bounds": ">= 0 and <= 1", "default": "0.2",
        "description": "how far a ratio may fall below 1 before it stops paying",
    }  # fmt: skip
    assert all(c["summary"] and c["distribution"] == "lossary" for c in found)


@pytest.mark.parametrize("kind", ["advantage", "policy_loss", "policy-loss"])
def test_list_of_one_kind(kind):
    code, out, _ = run("list", kind, "--json")
    assert code == 0
    assert {c["kind"] for c in json.loads(out)} == {kind.replace("-", "_")}


def test_list_for_people_names_everything():
    code, out, _ = run("list")
    assert code == 0
    assert all(c.name in out and c.kind.name in out for c in catalog())


def test_list_of_an_unknown_kind(monkeypatch, capsys):
    code, _, err = ended(monkeypatch, capsys, "list", "advantag")
    assert code == 2
    assert err.startswith("lossary: There is no kind 'advantag'. Did you mean 'advantage'?")


# ── show ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("k3", ["kl"]), ("low_var_kl", ["kl"]), ("low-var-kl", ["kl"]), ("lossary/k3", ["kl"]), ("kl/k3", ["kl"]), ("kl/low_var_kl", ["kl"]),
        ("grpo", ["policy_loss", "advantage"]), ("lossary/grpo", ["policy_loss", "advantage"]), ("advantage/grpo", ["advantage"]),
        ("policy-loss/grpo", ["policy_loss"]), ("kl/lossary/k3", ["kl"]),
    ],
)  # fmt: skip
def test_show_finds_a_name_in_every_spelling(name, kinds):
    code, out, _ = run("show", name, "--json")
    found = json.loads(out)
    assert code == 0
    assert [c["kind"] for c in found] == kinds
    assert all(c["doc"].startswith(c["summary"]) for c in found)


def test_a_table_is_shown_as_one_line_per_row():
    doc = "One line.\n\n=====  ======  ==========\nname   value   by ``x``\n=====  ======  ==========\na b    ``k``   a long one\nc      2\n=====  ======  =========="
    assert paragraphs(doc) == [("text", "One line."), ("table", "a b: value k; by x a long one\nc: value 2")]
    _, out, _ = run("show", "kl/k3")
    assert "straight-through: value k3; by log_prob d; in expectation of the KL, on policy" in " ".join(out.split())


@pytest.mark.parametrize("component", list(catalog()), ids=lambda c: f"{c.kind.name}/{c.name}")
def test_show_prints_a_page_for_every_component(component, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run("show", f"{component.kind.name}/{component.name}")
    assert code == 0
    assert out.startswith(f"{component.name}  {component.kind.name}, from lossary")
    assert all(name in out for name in (*component.columns, *component.params.model_fields, *component.aliases))
    assert "\\" not in out  # formulas are written for people
    assert "``" not in out


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("ppo_clp", "No component is called 'ppo_clp'. Did you mean 'ppo-clip'? `lossary find ppo_clp` searches everything."),
        ("zzzz", "No component is called 'zzzz'. `lossary find zzzz` searches everything."),
        ("k3+", "No component is called 'k3+'. Did you mean 'k3' (so called in verl)? `lossary find k3+` searches everything."),
        ("sequence_mask", "No component is called 'sequence_mask'. Did you mean 'masked-is' (so called in ms-swift and trl)? `lossary find"),
        ("nobody/k3", "'k3' comes from lossary: say lossary/k3."), ("nobody/grpo", "'grpo' comes from lossary: say lossary/grpo."),
        ("kl/k33", "No kl is called 'k33'. Did you mean 'k3'?"), ("kl/grpo", "'grpo' is registered as"),
    ],
)  # fmt: skip
def test_show_of_an_unknown_name(name, say, monkeypatch, capsys):
    code, out, err = ended(monkeypatch, capsys, "show", name)
    assert (code, out) == (2, "")
    assert err.startswith("lossary: ")
    assert say in err


@pytest.mark.parametrize("c", [c for c in catalog() if c.params.model_fields], ids=lambda c: f"{c.kind.name}/{c.name}")
def test_show_breaks_nothing_that_one_types(c, monkeypatch):
    """At 80 columns every hyperparameter stands whole, with its default, type and meaning, and no line is longer than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("show", f"{c.kind.name}/{c.name}")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    below = out[out.rindex("  hyperparameter") :]
    words = set(below.split())
    for name, kind, bounds, default, said in bounds_of(c.params):
        assert re.search(rf"^  {name} +{re.escape(default)} ", below, re.M)
        assert {w.strip(",;") for w in f"{kind} {bounds} {plain(said)}".split()} <= {w.strip(",;") for w in words}


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("correction/high-entropy", "under correction, which also needs denominator: kept | original; may say decide: loss | measure"),
        ("masked-is", "under correction, which also needs denominator: kept | original reads"), ("truncated-is", "under correction scope"),
        ("k3", "under kl, which also needs coef: a number or a coefficient; may say apply: loss | reward (default: loss), aggregation"),
        ("auxiliary_loss/entropy", "under entropy, which also needs coef"), ("distill", "under auxiliary, which also needs coef"),
        ("clipped-mse", "under value_loss, which may also say coef: a number or a coefficient (default: 1)"),
        ("token-mean", "under aggregation, of the recipe or of a term"), ("linear", "under coef of a term"),
    ],
)  # fmt: skip
def test_show_says_what_a_recipe_must_add(name, say):
    _, out, _ = run("show", name)
    told = " ".join(re.search(r"^in a recipe.*\n(?:  .*\n)*", out, re.M)[0].split()).removeprefix("in a recipe ")
    assert told.startswith(say.removesuffix(" reads").removesuffix(" scope"))
    assert "decide" not in told or "high-entropy" in name


def refused(c, recipe) -> str:
    """What a recipe is refused for; nothing if it composes."""
    try:
        lossary.compose(recipe)
    except lossary.LossaryError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
@pytest.mark.parametrize("c", list(catalog()), ids=lambda c: f"{c.kind.name}/{c.name}")
def test_the_keys_of_a_section_are_what_a_recipe_is_held_to(c):
    """What must be said is missed where it is absent; what may be said is taken; what is not listed is refused."""
    recipe = yaml.safe_load(recipe_of(c))
    section = section_of(c)
    if section not in recipe:
        section = {"entropy": "auxiliary"}.get(section, section)
    if section not in recipe or not keys_of(c):
        assert set(must_be_said(c)) == set()
        return
    slot = recipe[section] if isinstance(recipe[section], dict) else {"use": recipe[section]}
    slot |= {"apply": "loss"} if "apply" in slot else {}  # in the reward there is no mean
    assert refused(c, {**recipe, section: slot}) == ""
    for key in keys_of(c):
        less = {k: v for k, v in slot.items() if k != key.name}
        assert bool(refused(c, {**recipe, section: less})) is (not key.default)
    every = {"coef": 0.5, "apply": "loss", "aggregation": "token-mean", "denominator": "original", "decide": "loss"}
    for key, value in every.items():
        wrong = "unknown key" in (said := refused(c, {**recipe, section: {**slot, key: value}})) or "drops no token" in said
        wrong |= "does not read the current policy" in said
        assert wrong is (key not in {k.name for k in keys_of(c)})


# ── find ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "first", "where"),
    [
        (["k3+"], "k3", "elsewhere"), (["low_var_kl"], "k3", "alias"), (["gspo"], "gspo", "name"), (["tis"], "truncated-is", "alias"),
        (["overlong_buffer_len"], "overlong", "hyperparameter"), (["teacher", "whole"], None, "text"), (["token_mask", "ms-swift"], "masked-is", "elsewhere"),
        (["DUAL_clip"], "dual-clip", "name"), (["2402.03300"], "grpo", "text"),
    ],
)  # fmt: skip
def test_find_looks_everywhere(words, first, where, monkeypatch):
    code, out, _ = run("find", *words, "--json")
    hits = json.loads(out)
    assert code == 0
    assert set(hits[0]) == {"kind", "name", "where", "text"}
    assert first in (None, hits[0]["name"])
    assert where in ("", *(h["where"] for h in hits))
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("find", *words)
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == min(len(hits), 20) + (len(hits) > 20)
    assert all(line.startswith(f"{h['kind']}/{h['name']}  ".rstrip()) for line, h in zip(lines, hits, strict=False))
    assert max(map(len, lines)) <= 80
    assert all("*" in line for line in lines[:20])  # the words are marked
    assert any(f"*{words[0].lower().replace('_', '-')}*" in line.lower().replace("_", "-") for line in lines)


def test_find_puts_the_best_first():
    order = ["alias", "name", "elsewhere", "hyperparameter", "text"]
    for words in (["entropy"], ["mask"], ["ratio"], ["clip"]):
        hits = found(words, catalog())
        exact = [h for h in hits if h.text.replace("_", "-") == words[0]]
        rest = [order.index(h.where) for h in hits if h not in exact]
        assert rest == sorted(rest)
        assert hits[: len(exact)] == exact
        assert len({h.name for h in hits}) == len(hits) > 3
    assert next(h.name for h in found(["k3"], catalog())) == "kl/k3"
    assert [h.where for h in found(["entropy"], catalog())][:2] == ["name", "alias"]


def test_find_says_that_there_are_more():
    _, out, _ = run("find", "the")
    hits = json.loads(run("find", "the", "--json")[1])
    assert len(hits) > 20
    assert out.splitlines()[-1] == f"... and {len(hits) - 20} more; another word makes it fewer."


@pytest.mark.parametrize(("words", "say"), [(["zzz"], "Nothing speaks of 'zzz'.\n"), (["k3", "zzz"], "Nothing speaks of 'k3 zzz'.")])
def test_find_finds_nothing(words, say):
    code, out, err = run("find", *words)
    assert (code, out) == (1, "")
    assert err.startswith(say)
    code, out, _ = run("find", *words, "--json")
    assert (code, json.loads(out)) == (1, [])

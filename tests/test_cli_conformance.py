"""``lossary conformance``: what it takes, what it prints, how it ends."""

import json
import re

import pytest
from commands import ended, run
from test_catalog import install

from lossary.registry import Catalog

MINE = '''"""Losses of mine."""
from lossary import PerToken, column, policy_loss

valid = column("valid", level="sequence", doc="whether it counts")


@policy_loss(paper="a test", scope="token", deviates={"referenced": "It is only a sketch so far."})
def sketch(log_prob: PerToken, advantages: PerToken, valid: PerToken) -> PerToken:
    """Multiply: ``-v A l``."""
    return -valid * advantages * log_prob


@policy_loss(paper="a test", scope="token")
def mean(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Average: ``-mean(A l)``."""
    return (-advantages * log_prob).mean()
'''
PACKAGE = (
    MINE.replace("column(", "lossary.column(").replace("from lossary import", "import lossary\nfrom lossary import")
    + """

@lossary.hookimpl
def lossary_components():
    return [mean]
"""
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.py").write_text(
        MINE.replace('deviates={"referenced"', 'deviates={"documented"').replace("Multiply: ``-v A l``.", "Multiply it all.")
    )
    return tmp_path


def test_a_file_is_a_row_for_each_component_and_what_is_broken_below(mine):
    code, out, err = run("conformance", "mine.py")
    assert (code, err) == (1, "")
    assert max(map(len, out.splitlines())) <= 80
    lines = out.splitlines()
    (row,) = [line for line in lines if "policy_loss/sketch" in line]
    assert "deviates: documented" in row
    (row,) = [line for line in lines if "policy_loss/mean" in line]
    assert "broken: returns; not seen: " in row
    assert out.count(" breaks ") == 1
    assert "policy_loss 'mean' (mine.py:13) breaks 'returns'" in out
    assert "1 deviates, 1 broken, 14 not seen; 4 not claimed" in lines[-1]


def test_one_component_is_a_row_for_each_check(mine):
    code, out, _ = run("conformance", "kl/k3-huber")
    assert code == 0
    assert out.startswith("k3-huber  kl, k3_huber.py:")
    assert re.search("deviates +referenced +It says where it comes", out)
    assert re.search("kept +zero-at-equality", out)
    assert out.splitlines()[-1] == "22 checks: 21 kept, 1 deviates; 2 not claimed"


def test_claims_that_a_component_does_not_make_are_shown_beside_the_others(mine):
    (mine / "alone.py").write_text(MINE.rpartition("\n\n@")[0].replace(', deviates={"referenced": "It is only a sketch so far."}', ""))
    _, out, _ = run("conformance", "alone.py", "--examples", "1")
    assert re.findall("^not claimed +([a-z-]+)", out, re.M) == ["on-policy-gradient", "pulls-back"]
    assert out.splitlines()[-1] == "19 checks: 19 kept; 2 not claimed"
    _, out, _ = run("conformance", "policy_loss/ppo-clip", "--examples", "1")
    assert "not claimed" not in out
    _, out, _ = run("conformance", "kl/k3-huber", "--examples", "1")
    assert re.findall("^not claimed +([a-z-]+)", out, re.M) == ["unbiased", "unbiased-gradient"]


def test_a_machine_may_read_it(mine):
    code, out, _ = run("conformance", "mine.py", "--json", "--examples", "1")
    assert code == 1
    sketch, mean = json.loads(out)
    assert [(c["kind"], c["name"], c["distribution"]) for c in (sketch, mean)] == [
        ("policy_loss", "sketch", "plugin mine.py"), ("policy_loss", "mean", "plugin mine.py")
    ]  # fmt: skip
    found = {c["name"]: c for c in mean["checks"]}
    assert found["returns"]["outcome"] == "broken"
    assert "usual cause" in found["returns"]["message"]
    assert found["scope"]["outcome"] == "not-seen"
    assert found["signature"] == {**found["signature"], "outcome": "kept", "message": None}
    assert {c["outcome"] for c in sketch["checks"]} == {"kept", "deviates", "not-claimed"}
    assert "compiles" not in found
    assert [c["name"] for c in mean["checks"] if c["outcome"] == "not-claimed"] == ["on-policy-gradient", "pulls-back"]


def test_a_name_of_several_kinds_is_all_of_them(mine):
    code, out, _ = run("conformance", "grpo", "--examples", "1")
    assert code == 0
    assert "policy_loss/grpo" in out
    assert "advantage/grpo" in out
    assert "deviates: scope@scale=batch-std (The " in out


def test_the_compiler_is_asked_on_demand(mine):
    _, out, _ = run("conformance", "policy_loss/reinforce", "--compile", "--json", "--examples", "1")
    assert {c["name"]: c["outcome"] for c in json.loads(out)[0]["checks"]}["compiles"] == "kept"


def test_an_installed_package_by_its_distribution_and_by_its_entry_point(site, monkeypatch):
    install(site, "mean-dist", "1.0", "mean_mod", PACKAGE)
    install(site, "bad-dist", "1.0", "bad_mod", "raise RuntimeError('no')")
    monkeypatch.setattr("lossary.cli.conformance.catalog", lambda: Catalog.load())
    for target in ("mean-dist", "mean_dist", "mean_mod", "mean-dist/mean"):
        code, out, _ = run("conformance", target, "--json", "--examples", "1")
        assert code == 1
        assert [c["distribution"] for c in json.loads(out)] == ["mean-dist 1.0"]
    for target in ("bad-dist", "bad_mod"):
        with pytest.raises(Exception, match=r"plugin 'bad_mod' \(bad-dist 1\.0\) did not load: RuntimeError: no"):
            run("conformance", target)


def test_a_module_that_is_only_importable(mine, monkeypatch):
    monkeypatch.syspath_prepend(mine)
    (mine / "importable_losses.py").write_text(MINE)
    code, out, _ = run("conformance", "importable_losses", "--json", "--examples", "1")
    assert code == 1
    assert len(json.loads(out)) == 2


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("ppo-clp", "'ppo-clp' is no component, and no package or module that brings one. Did you mean 'ppo-clip'?"),
        ("json", "'json' is no component, and no package or module that brings one."),
        ("kl/k33", "No kl is called 'k33'. Did you mean 'k3'?"),
        ("nowhere.py", "there is no file"),
        ("empty.py", "offers nothing"),
        ("broken.py", "plugin 'broken.py' does not load: ZeroDivisionError"),
        ("wrong.py", "deviates from 'scopes', which is no check. Did you mean 'scope'?"),
    ],
)
def test_what_cannot_be_tried_is_one_paragraph_and_2(target, said, mine, monkeypatch, capsys):
    (mine / "empty.py").write_text("x = 1\n")
    (mine / "broken.py").write_text("1 / 0\n")
    (mine / "wrong.py").write_text(MINE.replace('"referenced"', '"scopes"'))
    code, out, err = ended(monkeypatch, capsys, "conformance", target)
    assert (code, out) == (2, "")
    assert said in err

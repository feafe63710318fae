"""One token's arithmetic, on the terminal and on a page."""

import json
import re

import pytest
import torch
from commands import ended, run

import lossary
from lossary.batch import Batch
from lossary.diagnostics.dump import load_batch, save_batch
from lossary.diagnostics.explaining import explain
from lossary.registry import ColumnError

RECIPE = {
    "policy_loss": {"use": "ppo-clip", "clip_ratio_high": 0.2},
    "kl": {"use": "k3", "coef": 0.1, "apply": "loss"},
    "aggregation": "token-mean",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Three sequences whose numbers can be worked out by hand."""
    path = tmp_path_factory.mktemp("dumps") / "step.safetensors"
    old = torch.full((6,), -1.0)
    objective = lossary.compose(RECIPE)
    batch = Batch.from_packed(
        [2, 3, 1], old_log_prob=old, ref_log_prob=old, advantages=torch.tensor([1.0, 1, 2, -2, 2, 0]), token_ids=torch.arange(6)
    )
    log_prob = old + torch.tensor([0.0, 0.1, 0.5, 0.5, -0.5, 0.0])
    batch = objective.weigh(batch)
    tokens = ["a", "<b>", "c & d", "e", "f", ""]
    save_batch(path, batch, objective=objective, recipe=RECIPE, outputs={"log_prob": log_prob}, tokens=tokens)
    return path


def explained(file, sequence, token):
    dump = load_batch(file)
    return explain(dump.objective(lossary.catalog()), dump.batch, dump.outputs, sequence, token)


def test_the_arithmetic_is_that_of_the_formula(file):
    e = explained(file, 1, 0)  # a ratio of 1.65 with a positive advantage: clipped
    policy, kl = e.terms
    assert e.ratio == pytest.approx(1.648721, rel=1e-5)
    assert policy.loss == pytest.approx(-2.4)
    assert policy.weight == pytest.approx(1 / 6)
    assert policy.contribution == pytest.approx(-0.4)
    assert (policy.effective_weight, policy.branch) == (0.0, "cut off: no gradient")
    assert policy.slopes == {"log_prob": 0.0}
    assert kl.contribution == pytest.approx(0.1 / 6 * (2.718281828**-0.5 - 1 + 0.5), rel=1e-4)
    assert e.total == pytest.approx(policy.contribution + kl.contribution)
    values = {(op.name, op.inputs): op.value for op in policy.operations}
    assert values["clamp", ("1.64872", "none", "1.2")] == pytest.approx(1.2)
    assert values["mul", ("-2", "1.2")] == pytest.approx(-2.4)


def test_the_same_ratio_with_a_negative_advantage_is_not_clipped(file):
    policy = explained(file, 1, 1).terms[0]
    assert policy.effective_weight == pytest.approx(1.648721, rel=1e-5)
    assert policy.branch == "pushed as its advantage says"
    assert policy.contribution == pytest.approx(2 * 1.648721 / 6, rel=1e-5)


def test_every_token_together_is_the_loss(file):
    dump = load_batch(file)
    total = sum(explained(file, s, t).total for s, n in enumerate(dump.batch.lengths) for t in range(n))
    assert total == pytest.approx(float(dump.recorded.total), rel=1e-5)


@pytest.mark.parametrize("name", ["gspo", "cispo", "reinforce", "sapo", "gmpo"])
@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
def test_other_losses_add_up_too(name):
    objective = lossary.compose({"policy_loss": name, "aggregation": "seq-mean-token-mean"})
    torch.manual_seed(0)
    old = -torch.rand(6)
    batch = objective.weigh(Batch.from_packed([2, 3, 1], old_log_prob=old, advantages=torch.randn(6), group_ids=torch.tensor([0, 0, 1])))
    outputs = {"log_prob": old + 0.1}
    total = sum(explain(objective, batch, outputs, s, t).total for s, n in enumerate(batch.lengths) for t in range(n))
    assert total == pytest.approx(float(objective.loss(batch, **outputs).total), rel=1e-5)
    assert explain(objective, batch, outputs, 1, 1).terms[0].operations


def test_a_token_that_a_correction_dropped_says_so():
    band = {"use": "masked-is", "level": "token", "lower": 0.8, "upper": 1.25, "denominator": "kept"}
    objective = lossary.compose({"policy_loss": "reinforce", "aggregation": "token-mean", "correction": band})
    old, rollout = -torch.ones(4), torch.tensor([-1.0, -2.0, -1.0, -1.1])
    batch = Batch.from_packed([4], old_log_prob=old, rollout_log_prob=rollout, advantages=torch.ones(4))
    batch = objective.weigh(objective.estimate(batch))
    gone, left = (explain(objective, batch, {"log_prob": old}, 0, t).terms[0] for t in (1, 3))
    assert (gone.seen, gone.contribution, gone.branch) == (False, 0.0, "dropped: no gradient")
    assert left.correction == pytest.approx(2.718281828**0.1, rel=1e-4)
    assert left.contribution == pytest.approx(left.correction / 3, rel=1e-5)


def test_a_place_outside_the_batch_says_what_there_is(file):
    with pytest.raises(ColumnError, match="no sequence 7; the batch has 3"):
        explained(file, 7, 0)
    with pytest.raises(ColumnError, match="sequence 2 has no token 1; it has 1"):
        explained(file, 2, 1)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_fits_a_terminal(file):
    code, out, _ = run("explain", str(file), "--token", "1,0")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines()), max(out.splitlines(), key=len)
    assert re.search(r"ratio 1\.64872", out)
    assert "effective weight 0: cut off: no gradient" in out
    assert "total  the token adds" in out
    told = json.loads(run("explain", str(file), "--token", "1,0", "--json")[1])
    assert told["terms"][0]["contribution"] == pytest.approx(-0.4)


def test_the_page_stands_alone_and_escapes_what_the_model_said(file, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    assert run("explain", str(file), "--token", "0,1", "--html", str(page))[0] == 0
    text = page.read_text("utf-8")
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert not re.search(r"(?:src|href)=|https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count('class="up here"') + text.count('class="down here"') == 3  # in the total and in both terms
    code, _, said = ended(monkeypatch, capsys, "explain", str(file), "--token", "0,1", "--html", str(page))
    assert (code, "is there already" in said) == (2, True)
    assert run("explain", str(file), "--token", "1,1", "--html", str(page), "--force")[0] == 0
    assert "c &amp; d" in page.read_text("utf-8")


@pytest.mark.parametrize("token", ["1", "a,b", "1,-1", ""])
def test_a_token_is_two_numbers(file, token, monkeypatch, capsys):
    code, _, said = ended(monkeypatch, capsys, "explain", str(file), "--token", token)
    assert (code, "say SEQUENCE,TOKEN" in said) == (2, True)


def test_the_forensics_command_says_where_the_gradient_comes_from(file):
    code, out, _ = run("forensics", str(file))
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert re.search(r"policy +\d+\.\d%", out)
    told = json.loads(run("forensics", str(file), "--json")[1])
    assert told["effective_weight"]["all"]["tokens"] == 5
    assert told["effective_weight"]["all"]["zeroed"] == pytest.approx(1 / 5)
    shares = [t["share"] for t in told["gradients"]["log_prob"]["terms"].values()]
    assert sum(shares) == pytest.approx(1)

"""Pictures: what they show is what the components give, and a file is written only where one was meant."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lossary
import lossary.cli.portrait as portraits
from lossary.cli import main
from lossary.cli.app import app
from lossary.cli.portrait import Picture, portrait_of
from lossary.cli.portrait.draw import rendered

pytest.importorskip("matplotlib", reason="drawing is an extra: lossary[plot]")
OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
BLANK = {
    "coefficient/constant", "reward/scale-rewards", "filter/not-truncated", "correction/batch-normalise", "correction/pf-ppo",
    "correction/drop-truncated", "correction/drop-impossible", "correction/high-entropy",
}  # fmt: skip
"""Components about which nothing is a curve; tasks beside."""
ONE_OF_A_KIND = {
    "policy_loss": "gspo", "value_loss": "clipped-mse", "auxiliary_loss": "distill", "kl": "k3", "advantage": "grpo", "aggregation": "token-mean",
    "correction": "truncated-is", "reward": "overlong", "filter": "group-spread", "coefficient": "adaptive-kl",
}  # fmt: skip


LONG = 300 * "x" + ".svg"


def portrait(kind: str, name: str) -> Picture:
    picture = portrait_of(lossary.catalog().get(kind, name))
    assert picture is not None
    return picture


def at(line, x: float) -> float:
    """The value of a line at the point nearest to x."""
    return line.y[(line.x - x).abs().argmin()].item()


# ── what is drawn ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "name"), ONE_OF_A_KIND.items())
def test_one_of_each_kind_has_a_picture(kind, name):
    picture = portrait(kind, name)
    assert picture.caption.endswith(".")
    assert rendered(picture, "png")[:8] == b"\x89PNG\r\n\x1a\n"


def sound(picture: Picture) -> None:
    """Every axis has a line, every line has finite values, and something in it moves or is said to be level."""
    for panel in picture.panels:
        assert panel.lines
        assert panel.title
        assert panel.x
        for line in panel.lines:
            assert line.x.shape == line.y.shape
            assert len(line.x) > 1
            assert line.y.isfinite().all()
            assert (line.x.diff() > 0).all()
    shown = [(line.x.tolist(), line.y.tolist()) for panel in picture.panels for line in panel.lines]
    assert not all(y == x for x, y in shown), "nothing is changed"


@pytest.mark.slow
@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_every_component_sits_for_its_picture(c):
    picture = portrait_of(c)
    assert (picture is None) is (c.kind.name == "task" or f"{c.kind.name}/{c.name}" in BLANK)
    if picture is not None:
        sound(picture)
        if c.kind.name in ("policy_loss", "kl", "aggregation"):
            assert len(picture.panels) == 2
        assert rendered(picture, "svg").startswith(b"<?xml")


def test_a_policy_loss_is_drawn_against_the_ratio():
    loss, pull = portrait("policy_loss", "ppo-clip").panels
    good, bad = pull.lines
    assert (good.label, bad.label) == ("$A=+1$", "$A=-1$")
    assert [at(good, r) for r in (0.5, 1.0, 1.5)] == pytest.approx([0.5, 1.0, 0.0], abs=0.02)
    assert [at(bad, r) for r in (0.5, 1.0, 1.5)] == pytest.approx([0.0, 1.0, 1.5], abs=0.02)
    assert [at(loss.lines[0], r) for r in (0.5, 1.5)] == pytest.approx([-0.5, -1.2], abs=0.02)


def test_a_narrow_clip_is_looked_at_closely():
    _, pull = portrait("policy_loss", "gspo").panels
    low, high = pull.lines[0].x[0].item(), pull.lines[0].x[-1].item()
    assert 0.99 < low < 1 - 3e-4
    assert 1 + 4e-4 < high < 1.01
    assert at(pull.lines[0], high) == 0


def test_a_kl_is_drawn_against_the_log_ratio():
    value, slope = portrait("kl", "k2").panels
    exact, own = value.lines
    x = own.x
    assert torch.allclose(own.y, x**2 / 2)
    assert torch.allclose(exact.y, torch.expm1(-x) + x)
    assert torch.allclose(slope.lines[1].y, x)
    assert len(portrait("kl", "k3").panels[0].lines) == 1  # there is nothing to compare it with but itself


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("k3", ["k3, own gradient", "straight-through, unbiased, importance-token"]), ("k2", ["$k_3$, exact", "k2, own gradient", "importance-token"]),
        ("k1", ["$k_3$, exact", "k1, own gradient", "straight-through, unbiased", "importance-token"]),
        ("abs", ["$k_3$, exact", "abs, own gradient", "straight-through, unbiased", "importance-token"]), ("full", ["$k_3$, exact", "full"]),
    ],
)  # fmt: skip
def test_other_gradients_of_a_kl_are_further_lines(name, labels):
    _, slope = portrait("kl", name).panels
    assert [line.label for line in slope.lines] == labels
    for line in slope.lines:
        if line.label.startswith("straight-through"):
            assert torch.allclose(line.y, line.x)  # d, the gradient of the KL
    assert len({line.tone for line in slope.lines}) == len(slope.lines)


def test_only_a_picture_that_stands_alone_bears_its_name(tmp_path, monkeypatch):
    """On a page name and caption are HTML; a saved file has both, and the settings."""
    said = []
    real = portraits.draw.rendered
    monkeypatch.setattr(
        portraits.draw,
        "rendered",
        lambda p, form, ink, *, heading: said.append((p.caption, heading)) or real(p, form, ink, heading=heading),
    )
    assert show("ppo-clip", "--plot", str(tmp_path / "x.svg")).exit_code == 0
    assert show("linear", "--plot", str(tmp_path / "y.svg")).exit_code == 0
    portraits.save(portrait("kl", "k3"), tmp_path / "z.svg")
    assert said[0] == ("One token. Settings: clip_ratio_low 0.2, clip_ratio_high 0.2, log_ratio_bound 20.0.", "ppo-clip  (policy loss)")
    assert said[1] == ("With start: 0.02, end: 0.0, steps: 500.", "linear  (coefficient)")
    assert said[2][1] == ""
    picture = portrait("kl", "k3")
    sizes = [float(re.search(rb'height="([\d.]+)pt"', real(picture, "svg", heading=h))[1]) for h in ("", "k3  (kl)")]
    assert sizes[1] > sizes[0] + 20


def test_a_legend_of_one_entry_is_left_out():
    from lossary.cli.portrait.draw import _entries

    assert _entries(portrait("aggregation", "token-mean")) == {}
    assert list(_entries(portrait("kl", "full"))) == ["$k_3$, exact", "full"]
    assert list(_entries(portrait("coefficient", "adaptive-kl"))) == ["target"]  # it explains a faint line beside another
    alone = [
        c.name for c in OURS if c.kind.name == "kl" and (p := portrait_of(c)) and len({q.label for n in p.panels for q in n.lines}) == 1
    ]
    assert all(_entries(portrait("kl", name)) == {} for name in alone)


def test_an_aggregation_is_drawn_against_the_length():
    token, whole = portrait("aggregation", "seq-mean-token-mean").panels
    (line,) = token.lines
    assert torch.allclose(line.y, 1 / (6 * line.x))
    assert torch.allclose(whole.lines[0].y, torch.full_like(line.x, 1 / 6))


def test_a_judge_is_drawn_against_its_opinion():
    (panel,) = portrait("advantage", "rlsd").panels
    good, bad = panel.lines
    assert at(good, 3) == pytest.approx(1.1)
    assert at(bad, 3) == pytest.approx(-0.9)
    (panel,) = portrait("advantage", "opd").panels
    assert torch.allclose(panel.lines[0].y, panel.lines[0].x)


def test_the_same_picture_is_the_same_file():
    picture = portrait("kl", "k1")
    assert rendered(picture, "svg") == rendered(picture, "svg")
    assert b"http://" not in rendered(picture, "svg").replace(b"http://www.w3.org", b"").replace(b"http://purl.org", b"").replace(
        b"http://creativecommons.org", b""
    )


# ── lossary show NAME --plot FILE ────────────────────────────────────────────────────────────────────────────────────


def show(*words):
    """What ``lossary show`` says and how it ends."""
    return CliRunner().invoke(app, ["show", *words])


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")])
def test_show_writes_the_picture(suffix, start, tmp_path):
    path = tmp_path / f"x.{suffix}"
    done = show("kl/k3", "--plot", str(path))
    assert done.exit_code == 0
    assert done.stdout.endswith(f"picture: {path}\n")
    assert path.read_bytes().startswith(start)


def test_json_stays_json(tmp_path):
    done = show("kl/k3", "--json", "--plot", str(tmp_path / "x.png"))
    assert json.loads(done.stdout)[0]["name"] == "k3"
    assert done.stderr == f"picture: {tmp_path / 'x.png'}\n"


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (("k3", "--plot", "x.bmp"), "x.bmp: a picture ends in .svg, .png or .pdf, not in .bmp."),
        (("k3", "--plot", "x"), "x: a picture ends in .svg, .png or .pdf, this name in none."),
        (("k3", "--plot", ""), "--plot names no file; say one that ends in .svg, .png or .pdf."),
        (("k3", "--plot", "", "--force"), "--plot names no file; say one that ends in .svg, .png or .pdf."),
        (("k3", "--plot", LONG), f"{LONG} cannot be written: File name too long."),
        (("k3", "--plot", LONG, "--force"), f"{LONG} cannot be written: File name too long."),
        (("k3", "--plot", "loose.svg"), "loose.svg is there already; --force replaces it."),
        (("k3", "--plot", "nowhere/x.svg"), "nowhere/x.svg cannot be written: No such file or directory."),
        (("k3", "--plot", "there.svg"), "there.svg is there already; --force replaces it."),
        (("k3", "--plot", "folder.svg", "--force"), "folder.svg cannot be written: Is a directory."),
        (("grpo", "--plot", "x.svg"), "'grpo' is several components: say advantage/grpo and policy_loss/grpo."),
        (("constant", "--plot", "x.svg"), "'constant' has no picture: nothing about a coefficient like this is a curve."),
        (("k33", "--plot", "x.svg"), "No component is called 'k33'. Did you mean 'k3'? `lossary find k33` searches everything."),
        (("k3", "--force"), "--force says that --plot may replace a file; say --plot FILE too."),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_told_and_nothing_is_written(words, say, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.svg").write_text("mine")
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "loose.svg").symlink_to("gone.svg")
    monkeypatch.setattr(sys, "argv", ["lossary", "show", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err) == (2, "", f"lossary: {say}\n")
    assert (tmp_path / "there.svg").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.svg", "loose.svg", "there.svg"]


def test_force_replaces(tmp_path):
    (tmp_path / "x.svg").write_text("old")
    assert show("k1", "--plot", str(tmp_path / "x.svg"), "--force").exit_code == 0
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")


def test_matplotlib_is_imported_only_to_draw():
    folder = Path(portraits.__file__).parent
    imports = {p.name: re.findall(r"^( *)(?:import|from) matplotlib", p.read_text("utf-8"), re.M) for p in folder.glob("*.py")}
    assert {name for name, found in imports.items() if found} == {"draw.py"}
    assert all(imports["draw.py"])  # inside a function, or for a type checker alone

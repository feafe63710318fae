"""The report as a page: whoever reads it, with whatever, on paper or at night; nothing of it comes from elsewhere."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from lossary.ablation.ablation import parsed
from lossary.ablation.folder import AblationFolder
from lossary.ablation.report import page
from lossary.ablation.variants import spread
from lossary.trainer.run_folder import RunFolder

VOID = {"meta", "br", "hr", "img", "link", "input"}
FILE = """
base: demo
vary: {policy_loss: [ppo-clip, gspo, reinforce, {use: ppo-clip, clip_ratio_high: 0.3}], train.lr: [1e-3, 1e-4, 1e-5]}
seeds: 2
budget: {steps: 3}
"""


class Node:
    def __init__(self, tag: str, attributes: dict[str, str], above: "Node | None") -> None:
        self.tag, self.attributes, self.above, self.inside, self.text = tag, attributes, above, [], ""

    def all(self, *tags: str) -> list["Node"]:
        """What lies below, in the order of the page."""
        found: list[Node] = []
        for node in self.inside:
            found += [node] if not tags or node.tag in tags else []
            found += node.all(*tags)
        return found

    def said(self) -> str:
        return self.text + "".join(n.said() for n in self.inside)

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")


class Tree(HTMLParser):
    """The page as a tree; an element that is closed by another is a fault of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = self.here = Node("", {}, None)
        self.feed(text)
        assert self.here is self.root, f"<{self.here.tag}> is never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {k: v or "" for k, v in attrs}, self.here)
        assert len(node.attributes) == len(attrs), f"<{tag}> has an attribute twice"
        self.here.inside.append(node)
        if tag not in VOID:
            self.here = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here.inside.append(Node(tag, {k: v or "" for k, v in attrs}, self.here))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.here.tag, f"</{tag}> closes <{self.here.tag}>"
        assert self.here.above is not None
        self.here = self.here.above

    def handle_data(self, data: str) -> None:
        self.here.text += data


def made(home: Path, text: str = FILE, metrics: tuple[str, ...] = ("reward", "eval/accuracy", "actor/pg_loss")) -> AblationFolder:
    """A folder whose runs were never run."""
    ablation = parsed(text, "mine", home, "mine.yaml")
    folder = AblationFolder(home / "out")
    folder.prepare(ablation, spread(ablation))
    for i, run in enumerate(folder.runs()):
        own = RunFolder.new(folder.home(run), run.slug, "")
        lines = [{"step": s, **{m: 0.1 * s + 0.01 * i + 0.001 * k for k, m in enumerate(metrics)}} for s in range(4)]
        (own.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(made(tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="module")
def root(text: str) -> Node:
    return Tree(text).root


def test_the_document_says_its_language_size_and_title(text: str, root: Node) -> None:
    assert text.startswith("<!doctype html>")
    (html,) = root.all("html")
    assert html.get("lang") == "en"
    assert {m.get("name"): m.get("content") for m in root.all("meta")}["viewport"] == "width=device-width, initial-scale=1"
    assert root.all("title")[0].said() == "mine: ablation"


def test_headings_go_down_one_level_at_a_time(root: Node) -> None:
    levels = [int(n.tag[1]) for n in root.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert all(n.said().strip() for n in root.all("h1", "h2", "h3"))


def test_landmarks_have_names_of_their_own(root: Node) -> None:
    assert [len(root.all(t)) for t in ("header", "nav", "main")] == [1, 1, 1]
    ids = {n.get("id"): n for n in root.all() if n.get("id")}
    names = [
        n.get("aria-label") or ids[n.get("aria-labelledby")].said() for n in root.all() if n.tag == "section" or n.get("role") == "region"
    ]
    assert len(set(names)) == len(names) == 5
    assert all(n.get("aria-label") for n in root.all("nav"))
    assert {a.get("href") for a in root.all("a")} == {f"#{i}" for i in ids}


def test_no_id_stands_twice(root: Node) -> None:
    ids = [n.get("id") for n in root.all() if n.get("id")]
    assert len(ids) == len(set(ids))


def test_every_picture_says_what_it_shows_or_is_left_out(root: Node) -> None:
    pictures = root.all("svg")
    shown = [s for s in pictures if s.get("aria-hidden") != "true"]
    assert len(shown) == 3
    for s in shown:
        assert s.get("role") == "img"
        assert "At the end: ppo-clip" in s.get("aria-label")
    for s in set(pictures) - set(shown):  # keys and intervals: what they show stands beside them
        assert s.above is not None
        assert s.above.said().strip() or s.above.tag == "td"


def test_tables_are_told_and_sorted_by_buttons(root: Node) -> None:
    (table,) = root.all("table")
    assert table.all("caption")[0].said()
    head, body = table.all("thead")[0], table.all("tbody")[0]
    assert {th.get("scope") for th in head.all("th")} == {"col"}
    assert [len(row.all("th")) for row in body.all("tr")] == [1] * 12
    assert {th.get("scope") for th in body.all("th")} == {"row"}
    assert all(th.said().strip() for th in head.all("th"))
    buttons = head.all("button")
    assert len(buttons) == len(head.all("th")) - 1  # the drawn interval is sorted by its numbers
    assert {b.get("type") for b in buttons} == {"button"}
    assert [th.all("button")[0].said() for th in head.all("th") if th.get("aria-sort")] == ["Final"]
    scores = [float(row.all("td")[0].get("data-s")) for row in body.all("tr")]
    assert scores == sorted(scores, reverse=True)
    assert all(td.get("data-s") or td.said().strip() in ("", "\u2013") or td.all("svg") for td in body.all("td"))


def test_colour_is_never_all_that_tells_variants_apart(root: Node) -> None:
    (legend,) = (n for n in root.all("ul") if n.get("class") == "legend")
    kinds = [(p.get("class"), p.get("stroke-dasharray")) for p in legend.all("path")]
    assert len(set(kinds)) == 12
    neighbours = [dash for _, dash in kinds[:6]]
    assert len(set(neighbours)) == 6
    assert all(p.all("title")[0].said() for s in root.all("svg") if s.get("role") == "img" for p in s.all("path"))


def test_what_scrolls_can_be_reached_by_keys_and_is_named(root: Node) -> None:
    for n in [*root.all("pre"), *(d for d in root.all("div") if d.get("class") == "scroll")]:
        assert n.get("tabindex") == "0"
        assert n.get("role") in ("group", "region")
        assert n.get("aria-label")
    assert {b.get("aria-pressed") for b in root.all("button") if b.get("data-v")} == {"true"}


def test_nothing_is_loaded(text: str, root: Node) -> None:
    assert not [n for n in root.all() if n.get("src") or n.tag in ("link", "iframe", "object", "embed", "img")]
    assert all(n.get("href").startswith("#") for n in root.all("a"))
    code = "".join(n.said() for n in root.all("style", "script"))
    assert not re.search(r"https?:|@import|url\(|fetch\(|import\(|XMLHttpRequest|@font-face", code)


# ── the style ────────────────────────────────────────────────────────────────────────────────────────────────────────


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def schemes(style: str) -> dict[str, dict[str, str]]:
    """The variables as they stand in the light, in the dark, and on paper, where the dark rules must not reach."""

    def variables(block: str) -> dict[str, str]:
        return dict(re.findall(r"--(\w+): (#\w+)", block))

    light = variables(style[: style.index("@media")])
    dark = re.search(r"@media screen and \(prefers-color-scheme: dark\) \{ :root \{(.*?)\} \}", style, re.S)
    paper = re.search(r"@media print \{ :root \{(.*?)\}", style, re.S)
    assert dark
    assert paper
    return {"light": light, "dark": {**light, **variables(dark[1])}, "paper": {**light, **variables(paper[1])}}


def test_everything_written_stands_out(root: Node) -> None:
    style = root.all("style")[0].said()
    found = schemes(style)
    assert contrast("#777", "#fff") == pytest.approx(4.48, abs=0.01)
    for scheme, v in found.items():
        for ground in ("bg", "panel"):
            for ink in ("fg", "soft", "link", "bad"):
                assert contrast(v[ink], v[ground]) >= 4.5, (scheme, ink, ground)
        for i in range(8):
            assert contrast(v[f"c{i}"], v["bg"]) >= 3, (scheme, i)
    assert {k: found["dark"][k] != v for k, v in found["light"].items()} == dict.fromkeys(found["light"], True)


def test_paper_phones_and_quiet_readers_are_thought_of(text: str) -> None:
    for rule in ("@media print", "@media (max-width: 560px)", "@media (prefers-reduced-motion: reduce)", ":focus-visible"):
        assert rule in text
    assert "beforeprint" in text  # what is folded is unfolded on paper


# ── what is written into it ──────────────────────────────────────────────────────────────────────────────────────────


def test_names_and_metrics_from_strangers_stay_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    folder = made(tmp_path, FILE, metrics=("eval/accuracy", f"{evil}_loss", 'a" onload="b'))
    plan = folder.plan()
    plan["variants"][0]["name"] = plan["variants"][0]["contestant"] = plan["base"] = evil
    folder.plan_file.write_text(json.dumps(plan))
    (folder.path / "ablation.yaml").write_text(f"# </pre><script>{evil}</script>\n")
    tree = Tree(page(folder)).root
    assert not tree.all("img")
    assert len(tree.all("script")) == 1
    assert not [n for n in tree.all() if any(k.startswith("on") for k in n.attributes)]
    assert evil in tree.said()


def test_runs_that_say_nothing_or_no_number_leave_a_page(tmp_path: Path) -> None:
    folder = made(tmp_path, "base: demo\nvary: {train.lr: [1e-3, 1e-4]}\nseeds: 1\nbudget: {steps: 3}\n")
    first, second = folder.runs()
    path = folder.run_path(first)
    assert path is not None
    (path / "metrics.jsonl").write_text('{"step": 3, "eval/accuracy": NaN, "reward": 1e400}\n{"step": 4, "eval/acc')
    other = folder.run_path(second)
    assert other is not None
    (other / "metrics.jsonl").write_bytes(b"\xff\xfe\x00[1]\n3\nnull\n")
    root = Tree(page(folder)).root
    assert "nan" not in "".join(s.get("d") + s.get("points") for s in root.all("path", "polygon"))

"""An ablation as one HTML file: nothing is loaded from elsewhere, and nothing in it depends on when or how often the runs were stopped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .charts import Line, chart, key, whisker
from .comparing import Comparison, compare, curve
from .folder import AblationFolder

GROUPS = (
    ("Learning", "What the policy achieves.", ("reward", "eval/*", "critic/score/mean")),
    ("Loss components", "Every term, before its coefficient, and their sums.", ("actor/*_loss", "critic/*_loss", "actor/loss", "critic/loss", "*_coef")),
    ("Clipping", "Share of tokens whose gradient a clip takes away, or that a correction drops.", ("*clipfrac*", "*_dropped*", "*keepfrac*", "filter/*")),
    ("Distance", "How far the policy moves from the one that sampled, or from the reference [nats].", ("*kl*", "rollout_corr/*ppl*", "actor/drift")),
    ("Entropy", "Of the policy [nats].", ("actor/entropy",)),
    ("Effective weights", "What tokens count for, and how many equal ones that amounts to.", ("*weight*", "*ess*", "*chi2*", "rollout_corr/*", "correction/*")),
    ("Advantages, lengths and gradients", "", ("critic/*", "response_length/*", "*grad_norm", "*")),
)  # fmt: skip
UNSEEN = ("step", "time/*")


@dataclass(frozen=True)
class Group:
    """Charts under one heading."""

    title: str
    told: str
    charts: list[tuple[str, Markup]]


def page(folder: AblationFolder) -> str:
    """Return the report of a folder."""
    plan, compared = folder.plan(), compare(folder)
    styles = {name: i for i, name in enumerate(dict.fromkeys(v["contestant"] for v in plan["variants"]))}
    bounds = (min((s.score[1] for s in compared.standings), default=0.0), max((s.score[2] for s in compared.standings), default=1.0))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    home = files("lossary") / "ablation"
    template = environment.from_string((home / "report.html.j2").read_text("utf-8"))
    return template.render(
        plan=plan,
        compared=compared,
        rows=[
            (s, Markup(key(styles[s.name])), Markup(whisker(s.score[1], s.score[0], s.score[2], bounds, styles[s.name])))
            for s in compared.standings
        ],
        legend=[(name, i, Markup(key(i))) for name, i in styles.items()],
        groups=groups(folder, plan, styles),
        axes=[(path, [_yaml(v) for v in values]) for path, values in plan["vary"].items()],
        variants=[
            (v, folder.recipe(v["slug"]).read_text("utf-8"), [(p, _yaml(x)) for p, x in v["changes"].items()]) for v in plan["variants"]
        ],
        source=(folder.path / "ablation.yaml").read_text("utf-8"),
        headline=headline(compared),
        style=Markup((home / "report.css").read_text("utf-8")),
        script=Markup((home / "report.js").read_text("utf-8")),
    )


def headline(compared: Comparison) -> str:
    """Return the one sentence at the top."""
    if not compared.standings:
        return "No run is finished yet."
    best = compared.standings[0]
    apart = [s.name for s in compared.standings[1:] if s.score[2] < best.score[1] and min(s.runs, best.runs) > 1]
    told = f"{best.name} comes first with {best.score[0]:.3f} ({best.score[1]:.3f} to {best.score[2]:.3f})"
    if len(compared.standings) == 1:
        return f"{told}."
    if not apart:
        return f"{told}; nothing sets it apart from the others yet." if best.runs < 2 else f"{told}; its interval lies above no other."
    return f"{told}; its interval lies above that of {', '.join(apart)}."


def groups(folder: AblationFolder, plan: dict[str, Any], styles: dict[str, int]) -> list[Group]:
    """Return a chart of every metric that any run has, under the first heading that fits it."""
    names = sorted({name for run in folder.runs() for line in folder.lines(run) for name, v in line.items() if isinstance(v, int | float)})
    left = [n for n in names if not any(fnmatchcase(n, u) for u in UNSEEN)]
    made = []
    for title, told, patterns in GROUPS:
        mine = [n for p in patterns for n in left if fnmatchcase(n, p)]
        mine = list(dict.fromkeys(mine))
        left = [n for n in left if n not in mine]
        drawn = [(n, found) for n in mine if (found := lines_of(folder, plan, n, styles))]
        if drawn:
            made.append(Group(title, told, [(n, Markup(chart(n, found))) for n, found in drawn]))
    return made


def lines_of(folder: AblationFolder, plan: dict[str, Any], metric: str, styles: dict[str, int]) -> list[Line]:
    """Return a curve of a metric for each contestant that has it."""
    home = {v["name"]: v["contestant"] for v in plan["variants"]}
    values: dict[str, dict[int, list[float]]] = {}
    for run in folder.runs():
        for step, value in zip(*curve(folder, run, metric), strict=True):
            if math.isfinite(value):
                values.setdefault(home[run.variant], {}).setdefault(step, []).append(value)
    made = []
    for name, found in values.items():
        steps = sorted(found)
        mean, low, high = ([f(found[s]) for s in steps] for f in (_mean, min, max))
        made.append(Line(name, styles[name], steps, mean, low, high))
    return sorted(made, key=lambda line: line.style)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()
    return text.removesuffix("\n...").strip()

"""From runs to a ranking, and to sentences that say no more than the runs do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .folder import AblationFolder, Run, state_of
from .statistics import Array, Scores, area, final, holm, improvement_with_interval, iqm_with_interval, paired, seeds_needed

ALPHA = 0.05


@dataclass(frozen=True)
class Standing:
    """A contestant's place."""

    name: str
    score: tuple[float, float, float]
    """Interquartile mean of the final scores with its interval."""
    area: tuple[float, float, float]
    better: tuple[float, float, float] | None
    """Probability of improvement on the base, with its interval; None: it is the base, or shares no stratum with it."""
    difference: float | None
    p: float | None
    adjusted: float | None
    runs: int
    failed: int
    missing: int


@dataclass(frozen=True)
class Comparison:
    """The whole ablation in numbers and sentences."""

    metric: str
    base: str
    standings: list[Standing]
    sentences: list[str]
    cautions: list[str]

    def for_machines(self) -> dict[str, Any]:
        """Return it as JSON may hold it."""
        keys = ("name", "score", "area", "better", "difference", "p", "adjusted", "runs", "failed", "missing")
        ranking = [{k: getattr(s, k) for k in keys} for s in self.standings]
        return {"metric": self.metric, "base": self.base, "ranking": ranking, "sentences": self.sentences, "cautions": self.cautions}


def compare(folder: AblationFolder) -> Comparison:
    """Return what the finished runs of a folder say."""
    plan = folder.plan()
    home = {v["name"]: (v["contestant"], v["stratum"]) for v in plan["variants"]}
    finals: dict[str, dict[str, dict[int, float]]] = {}
    areas: dict[str, dict[str, dict[int, float]]] = {}
    counts: dict[str, dict[str, int]] = {}
    for run in folder.runs():
        contestant, stratum = home[run.variant]
        count = counts.setdefault(contestant, {"done": 0, "failed": 0, "missing": 0})
        state = state_of(folder, run)["state"]
        found = curve(folder, run, plan["score"]) if state == "done" else ([], [])
        scored = math.isfinite(final(*found)) and math.isfinite(area(*found))
        count["done" if scored else "failed" if state == "failed" else "missing"] += 1
        if scored:
            finals.setdefault(contestant, {}).setdefault(stratum, {})[run.seed] = final(*found)
            areas.setdefault(contestant, {}).setdefault(stratum, {})[run.seed] = area(*found)
    base = plan["base"]
    tests = {name: _paired(finals[name], finals[base]) for name in finals if name != base and base in finals}
    adjusted = dict(zip(tests, holm([t[2] for t in tests.values()]), strict=True))
    standings = [
        Standing(
            name,
            iqm_with_interval(_arrays(finals[name])),
            iqm_with_interval(_arrays(areas[name])),
            improvement_with_interval(_arrays(finals[name]), _arrays(finals[base]))
            if name in tests and set(finals[name]) & set(finals[base])
            else None,
            tests[name][0] if name in tests else None,
            tests[name][2] if name in tests else None,
            adjusted.get(name),
            counts[name]["done"],
            counts[name]["failed"],
            counts[name]["missing"],
        )
        for name in finals
    ]
    standings.sort(key=lambda s: (-s.score[0], -s.area[0], s.name))
    return Comparison(
        plan["score"], base, standings, _sentences(standings, finals, base, tests, adjusted), _cautions(counts, standings, tests, adjusted)
    )


def curve(folder: AblationFolder, run: Run, metric: str) -> tuple[list[int], list[float]]:
    """Return the steps at which a run measured something, and what."""
    found = [(line["step"], float(line[metric])) for line in folder.lines(run) if isinstance(line.get(metric), int | float)]
    return [s for s, _ in found], [v for _, v in found]


def _arrays(scores: Mapping[str, Mapping[int, float]]) -> Scores:
    return {s: np.array([values[k] for k in sorted(values)]) for s, values in scores.items()}


def _differences(a: Mapping[str, Mapping[int, float]], b: Mapping[str, Mapping[int, float]]) -> list[Array]:
    return [np.array([a[s][k] - b[s][k] for k in sorted(set(a[s]) & set(b[s]))]) for s in sorted(set(a) & set(b))]


def _paired(a: Mapping[str, Mapping[int, float]], b: Mapping[str, Mapping[int, float]]) -> tuple[float, float, float]:
    return paired(_differences(a, b))


def _sentences(standings: list[Standing], finals: Any, base: str, tests: Any, adjusted: Any) -> list[str]:
    said = []
    for s in standings:
        if s.name not in tests:
            continue
        mean, error, p = tests[s.name]
        n = sum(len(d) for d in _differences(finals[s.name], finals[base]))
        if n < 2:
            said.append(
                f"{s.name} and {base} cannot be told apart: they share {n or 'no'} seed{'s' if n != 1 else ''}, and noise is known from two on."
            )
        elif adjusted[s.name] < ALPHA:
            word = "above" if mean > 0 else "below"
            said.append(f"{s.name} is {word} {base} by {abs(mean):.3f} (paired by seed, {n} pairs, p = {adjusted[s.name]:.2g} after Holm).")
        else:
            needed = seeds_needed(mean, error, n)
            more = f"; about {needed} seeds would show a difference of this size" if needed and needed > n and needed < 10_000 else ""
            said.append(
                f"{s.name} and {base} cannot be told apart: the difference is {mean:+.3f}, p = {adjusted[s.name]:.2g} after Holm{more}."
            )
    pairs = [(a.name, b.name) for a, b in pairwise(standings) if base not in (a.name, b.name)]
    found = [_paired(finals[a], finals[b]) for a, b in pairs]
    for (a, b), (mean, _, _), p in zip(pairs, found, holm([t[2] for t in found]), strict=True):
        if p >= ALPHA:
            said.append(f"The order of {a} and {b} is not known: {mean:+.3f}, p = {p:.2g}.")
    return said


def _cautions(counts: Any, standings: list[Standing], tests: Any, adjusted: Any) -> list[str]:
    said = []
    if len(tests) > 1:
        chance = 1 - (1 - ALPHA) ** len(tests)
        said.append(
            f"{len(tests)} variants are compared with the base. If none differed, one would still seem to in {chance:.0%} of such ablations; "
            "the p-values are therefore adjusted by Holm's method."
        )
        alone = [name for name, t in tests.items() if t[2] < ALPHA <= adjusted[name]]
        if alone:
            said.append(f"Alone, {', '.join(alone)} would have seemed to differ; among {len(tests)} comparisons that is luck often enough.")
    fewest = min((s.runs for s in standings), default=0)
    if 0 < fewest < 5:
        said.append(
            f"With {fewest} run{'s' if fewest > 1 else ''} an interval reaches no further than the best and the worst of them: read it as a range, not as a bound."
        )
    for name, count in counts.items():
        if count["failed"]:
            said.append(
                f"{name}: {count['failed']} of {sum(count.values())} runs failed; its numbers are of those that did not, so they flatter it."
            )
        if count["missing"]:
            said.append(f"{name}: {count['missing']} of {sum(count.values())} runs are not finished or measured no finite score.")
    return said

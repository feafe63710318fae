"""The zoo: a page for every component, tables of kinds, columns and names, all from the catalog. ``conf.py`` calls it."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from restructured import inline, to_myst

from lossary import catalog
from lossary.cli.portrait import Picture, portrait_of, save
from lossary.cli.portrait.draw import DARK, LIGHT
from lossary.cli.portrait.examples import required
from lossary.pipeline.recipe import SECTIONS
from lossary.registry import FIELDS, KINDS, Component, Level, bounds_of

Draw = Callable[[Picture, Path], None]

TITLES = {
    "policy_loss": ("Policy losses", "What the policy pays per token: the first term of every recipe."),
    "value_loss": ("Value losses", "What a critic pays for having been wrong."),
    "auxiliary_loss": ("Auxiliary losses", "Further terms of the actor: imitation, distillation, entropy."),
    "kl": ("KL estimators", "How far the policy is from the reference, estimated from the sampled token or from the whole distribution."),
    "advantage": ("Advantages", "How much better an answer, or a token, was than expected. A list in a recipe is a chain."),
    "aggregation": ("Aggregations", "How much each token counts when the losses of a step become one number."),
    "correction": ("Corrections", "Weights and rejections against the mismatch between the sampler and the trainer."),
    "reward": ("Rewards", "What changes a reward before advantages are made of it."),
    "filter": ("Filters", "Which sequences leave a step, as if they had never been sampled."),
    "coefficient": ("Coefficients", "The number that multiplies a term, where it is not a plain one."),
    "task": ("Tasks", "What the bundled trainer trains on."),
    "tracker": ("Trackers", "Where metrics go."),
}
SCOPES = {
    "token": "A token's result depends on that token alone: a batch may be cut anywhere.",
    "sequence": "A token's result depends on its sequence: a batch is cut between sequences.",
    "group": "A token's result depends on its group: the answers to one prompt stay in one micro-batch.",
    "step": "A token's result depends on the whole step: a batch is not cut, or the recipe says that an approximation will do.",
}
CLAIMS = {
    "on-policy-gradient": "On policy its gradient is the plain policy gradient.",
    "zero-at-equality": "It is 0 where both policies agree.",
    "non-negative": "It is never negative.",
}
FRAMEWORKS = {"verl": "verl", "trl": "TRL", "skyrl": "SkyRL", "openrlhf": "OpenRLHF", "areal": "AReaL", "nemo": "NeMo-RL", "roll": "ROLL"}


@dataclass(frozen=True)
class Zoo:
    """The components of this distribution, and where their pages lie."""

    components: tuple[Component, ...]

    @classmethod
    def of(cls, components: Iterable[Component]) -> "Zoo":
        """Keep our own, in the order of kinds and names."""
        order = list(KINDS)
        ours = (c for c in components if c.distribution == "lossary")
        return cls(tuple(sorted(ours, key=lambda c: (order.index(c.kind.name), c.name))))

    @property
    def kinds(self) -> list[str]:
        """The kinds that have a component."""
        return list(dict.fromkeys(c.kind.name for c in self.components))

    def family(self, kind: str) -> list[Component]:
        """Return the components of a kind."""
        return [c for c in self.components if c.kind.name == kind]

    def named(self, text: str, near: Component | None = None) -> Component | None:
        """Return the component that a literal means: one of the same kind, or the only one of that name."""
        name = text.replace("_", "-")
        found = [c for c in self.components if name in (c.name, *c.aliases)]
        if near is not None:
            if same := [c for c in found if c.kind == near.kind and c.name != near.name]:
                return same[0]
            if text in near.params.model_fields or text == near.name:
                return None
        return found[0] if len(found) == 1 and text not in FIELDS and found[0].kind.name != "task" else None


def generate(folder: Path, draw: Draw | None = None) -> None:
    """Write every page under ``folder``; a file that says already what it should is left alone, so that a second build is short."""
    zoo = Zoo.of(catalog())
    wanted: dict[Path, str] = {folder / "index.md": _index(zoo), folder / "_columns.md": columns_table(zoo)}
    wanted[folder / "_names.md"] = names_tables(zoo)
    kept: set[Path] = set()
    for kind in zoo.kinds:
        wanted[folder / kind / "index.md"] = _kind_page(zoo, kind)
    for c in zoo.components:
        picture = portrait_of(c)
        wanted[folder / c.kind.name / f"{c.name}.md"] = component_page(zoo, c, picture)
        if picture is not None:
            light = folder / c.kind.name / f"{c.name}.svg"
            light.parent.mkdir(parents=True, exist_ok=True)
            kept |= {light, light.with_suffix(".dark.svg")}
            (draw or _drawn)(picture, light)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    for old in folder.rglob("*.*"):
        if old not in wanted and old not in kept:
            old.unlink()


def _numbers(picture: Picture) -> str:
    return repr([(p.title, p.x, p.at, p.window, [(q.label, q.tone, q.x.tolist(), q.y.tolist()) for q in p.lines]) for p in picture.panels])


def _drawn(picture: Picture, light: Path) -> None:
    """Draw once, and colour the same lines again for dark pages."""
    mark = f"<!-- {hashlib.sha256(_numbers(picture).encode()).hexdigest()[:16]} -->\n"
    if light.exists() and light.with_suffix(".dark.svg").exists() and light.read_text("utf-8").endswith(mark):
        return
    fresh = light.with_suffix(".new.svg")
    save(picture, fresh, LIGHT)
    text = fresh.read_text("utf-8") + mark
    fresh.unlink()
    dark = text
    for name in ("text", "grid", "rule", "faint", "first", "second", "third"):
        dark = dark.replace(getattr(LIGHT, name), getattr(DARK, name))
    for path, wanted in ((light, text), (light.with_suffix(".dark.svg"), dark)):
        if not path.exists() or path.read_text("utf-8") != wanted:
            path.write_text(wanted, "utf-8")


# ── a component ──────────────────────────────────────────────────────────────────────────────────────────────────────


def component_page(zoo: Zoo, c: Component, picture: Picture | None) -> str:
    """Return the page of a component."""

    def link(text: str) -> str | None:
        found = zoo.named(text, c)
        return _path(c, found) if found is not None else None

    first, _, rest = c.doc.partition("\n")
    parts = [f"# {c.name}", f":::{{div}} kind-line\n{_kind_line(c)}\n:::"]
    if idea := _idea(c):
        parts.append(f":::{{div}} idea\n{inline(idea, link)}\n:::")
    parts += [inline(first, link), to_myst(rest, link).strip()]
    if picture is not None:
        parts.append(_picture(c, picture))
    if text := recipe_of(c):
        note = (
            ""
            if not required(c)
            else f" {_listed(required(c))} must be said; the {'values are' if len(required(c)) > 1 else 'value is'} an example."
        )
        parts += ["## In a recipe", f"With its defaults:{note}" if note else "With its defaults:", f"```yaml\n{text}```"]
    parts += [*_params(c), *_reads(c, link), *_traits(c), *_elsewhere(c), *_neighbours(zoo, c)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _path(c: Component, to: Component) -> str:
    return f"{to.name}.md" if to.kind == c.kind else f"../{to.kind.name}/{to.name}.md"


def _idea(c: Component) -> str:
    said = (sys.modules[c.function.__module__].__doc__ or "").strip()
    return " ".join(said.split("\n\n")[0].split())


def _kind_line(c: Component) -> str:
    title = TITLES.get(c.kind.name, (c.kind.name, ""))[0]
    gives = inline(c.kind.gives)
    return f"[{title}](index.md) · gives {gives}{f' · {paper(c.paper)}' if c.paper else ''}"


def paper(text: str) -> str:
    """Return where a component comes from, arXiv numbers as links."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _picture(c: Component, picture: Picture) -> str:
    titles = ", ".join(re.split(r"  |,|\$", p.title)[0] for p in picture.panels)
    alt = f"{c.name}: {titles}"
    images = [
        f"```{{image}} {c.name}{kind}.svg\n:class: only-{mode}\n:alt: {alt}\n```" for kind, mode in (("", "light"), (".dark", "dark"))
    ]
    return "\n\n".join((*images, f":::{{div}} caption-of-picture\n{inline(picture.caption)}\n:::"))


def recipe_of(c: Component) -> str:
    """Return a recipe that uses a component with its defaults and composes without a warning; empty: no section takes its kind."""
    kind = c.kind.name
    slot = _slot(c)
    suited = c.suits.get("aggregation", "token-mean").split(" | ")[0]
    plain = {"policy_loss": "ppo-clip", "aggregation": suited}
    if kind == "policy_loss":
        return _yaml({"policy_loss": slot, **({"aggregation": suited} if "aggregation" in c.suits else {})})
    if kind == "auxiliary_loss":
        slot = {"use": slot.pop("use"), "coef": 0.01, **slot}
        return _yaml({"policy_loss": "ppo-clip", "auxiliary": slot})
    if kind == "kl":
        slot = {"use": slot.pop("use"), "coef": 0.001, "apply": c.suits.get("apply", "loss"), **slot}
        return _yaml({"policy_loss": "ppo-clip", "kl": slot})
    if kind == "coefficient":
        return _yaml({"policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": slot}})
    if kind == "aggregation":
        return _yaml({"policy_loss": "ppo-clip", "aggregation": slot})
    if kind == "value_loss":
        return _yaml({"advantage": "gae", "policy_loss": "ppo-clip", "value_loss": slot})
    if kind == "task":
        return _yaml({"advantage": "grpo", **plain, "task": slot})
    section = next((s for s in SECTIONS if s in (kind, f"{kind}s")), None)
    if section is None:
        return ""
    beside = {} if kind == "advantage" else {"advantage": "grpo"}
    return _yaml({section: slot, **beside, "policy_loss": "ppo-clip"})


def _slot(c: Component) -> dict[str, object]:
    from lossary.cli.portrait.examples import settings_of

    told = c.params.model_validate({k: v for k, v in settings_of(c).items() if k in required(c)})
    return {"use": c.name, **told.model_dump(mode="json")}


def _yaml(recipe: dict[str, object]) -> str:
    lines = []
    for key, value in recipe.items():
        if isinstance(value, dict) and len(value) > 1:
            lines.append(f"{key}:")
            for name, inner in value.items():
                lines.append(f"  {name}: {_value(inner)}")
        else:
            lines.append(f"{key}: {_value(value['use'] if isinstance(value, dict) else value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, float):
        short = re.sub(r"e([-+])0?(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", f"{value:g}")
        return (short if "." in short or "e" in short else f"{short}.0") if float(short) == value else repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}"
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


# ── its sections ─────────────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; its cells are Markdown."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] * len(head))}|"]
    return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in rows)))


def _params(c: Component) -> list[str]:
    rows = [
        (f"`{name}`", _cell(kind), _cell(bounds), f"`{default}`" if default != "required" else "*required*", inline(said, table=True))
        for name, kind, bounds, default, said in bounds_of(c.params)
    ]
    return ["## Hyperparameters", table(("name", "type", "bounds", "default", "meaning"), rows)] if rows else []


def _cell(text: str) -> str:
    return inline(text, table=True)


def _reads(c: Component, link: Callable[[str], str | None]) -> list[str]:
    rows = []
    for i in c.inputs:
        field = FIELDS.get(i.name)
        level = (i.level or (field.level if field else None)) if field and field.level is not Level.SPECIAL else None
        rows.append(
            (
                f"[`{i.name}`](../../glossary.md#column-{i.name.replace('_', '-')})",
                level.value if level else "",
                field.unit if field else "",
                _markdown(field.doc if field else "") + (" *(optional)*" if i.optional else ""),
            )
        )
    return ["## Reads", table(("column", "level", "unit", "meaning"), rows)] if rows else []


def _markdown(text: str) -> str:
    """Escape prose that marks code with single backticks, as the vocabulary does."""
    return "".join(part if k % 2 else inline(part, table=False).replace("|", "\\|") for k, part in enumerate(re.split(r"(`[^`]*`)", text)))


def _traits(c: Component) -> list[str]:
    losses = c.kind.columns and c.kind.name not in ("coefficient", "reward", "filter")
    said = [SCOPES.get(c.scope, c.scope)] if losses else []
    said += [CLAIMS.get(claim, claim) for claim in c.claims]
    if c.stateful:
        said.append("It keeps state between steps, which is saved with a checkpoint.")
    lines = [f"- {line}" for line in said]
    for key, rule in c.suits.items():
        if key == "aggregation":
            lines.append(f"- Made for the aggregation {_listed(rule.split(' | '), 'or')}; with any other, composing a recipe warns.")
        elif key == "apply":
            lines.append(f"- Made for `apply: {rule}`; used otherwise, composing a recipe warns.")
        else:
            lines.append(f"- Made for `{key}` {inline(rule)}; outside of that, composing a recipe warns.")
    return ["## Traits and traps", "\n".join(lines)] if lines else []


def _elsewhere(c: Component) -> list[str]:
    if not (c.aliases or c.compat):
        return []
    lines = [f"Also found as {_listed(c.aliases)}."] if c.aliases else []
    rows = [(FRAMEWORKS.get(framework, framework), how.replace("|", "\\|")) for framework, how in c.compat.items()]
    return ["## Elsewhere", *lines, *([table(("framework", "how it is called there"), rows)] if rows else [])]


def _listed(names: Iterable[str], word: str = "and") -> str:
    quoted = [f"`{n}`" for n in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def _neighbours(zoo: Zoo, c: Component) -> list[str]:
    """Those that its text names first, then those that name it, then the rest of a small family."""
    family = [o for o in zoo.family(c.kind.name) if o is not c]
    names = lambda text: set(re.findall(r"``([\w-]+)``", text))  # noqa: E731
    near = [o for o in family if o.name in names(c.doc)] + [o for o in family if c.name in names(o.doc)]
    rest = family if len(family) <= 12 else [o for o in family if c.paper and o.paper == c.paper]
    chosen = list({o.name: o for o in (*near, *rest)}.values())
    if not chosen:
        at = next((k for k, o in enumerate(zoo.family(c.kind.name)) if o is c), 0)
        chosen = family[max(at - 3, 0) : at + 3]
    lines = [f"- [{o.name}]({o.name}.md): {inline(o.summary)}" for o in chosen]
    return ["## Neighbours", "\n".join(lines), "[The whole family](index.md)"] if lines else []


# ── tables of many ───────────────────────────────────────────────────────────────────────────────────────────────────


def _kind_page(zoo: Zoo, kind: str) -> str:
    title, said = TITLES.get(kind, (kind.replace("_", " "), ""))
    family = zoo.family(kind)

    def link(near: Component) -> Callable[[str], str | None]:
        return lambda text: _path(near, found) if (found := zoo.named(text, near)) is not None else None

    rows = [(f"[{c.name}]({c.name}.md)", inline(c.summary, link(c), table=True), paper(c.paper)) for c in family]
    told = f"In recipes and in code the kind is called `{kind}`. A component of it gives {inline(KINDS[kind].gives)}."
    listed = "\n".join(c.name for c in family)
    return (
        f"# {title}\n\n{said} {told}\n\n{table(('name', 'what it does', 'paper'), rows)}\n\n"
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def _index(zoo: Zoo) -> str:
    parts = [
        "# The zoo",
        f"{len(zoo.components)} components in {len(zoo.kinds)} kinds. Every page is made from the component itself: its text is the docstring, "
        "its tables are the signature, its curves come from calling it. `lossary list` and `lossary show NAME` tell the same in a terminal.",
    ]
    for kind in zoo.kinds:
        title, said = TITLES.get(kind, (kind, ""))
        family = zoo.family(kind)
        links = " · ".join(f"[{c.name}]({kind}/{c.name}.md)" for c in family)
        parts.append(f"## [{title}]({kind}/index.md)\n\n{said}\n\n{links}")
    listed = "\n".join(f"{kind}/index" for kind in zoo.kinds)
    return "\n\n".join((*parts, f"```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{listed}\n```")) + "\n"


def columns_table(zoo: Zoo) -> str:
    """Return the vocabulary as a table, for a page in the folder above."""
    parts = []
    for level in Level:
        fields = [f for f in FIELDS.values() if f.level is level]
        if not fields:
            continue
        parts.append(f"## {_LEVELS[level.value][0]}\n\n{_LEVELS[level.value][1]}")
        for f in fields:
            readers = [c for c in zoo.components if f.name in c.columns]
            traits = [
                t
                for t in (f.unit, "with gradient" if f.differentiable else "", "`[., K]`" if f.wide else "", "integer" if f.integer else "")
                if t
            ]
            nan = f" NaN: {f.nan_means}." if f.nan_means else ""
            bracket = f" ({', '.join(traits)})" if traits else ""
            parts.append(
                f"(column-{f.name.replace('_', '-')})=\n**`{f.name}`**{bracket}. "
                f"{_markdown(f.doc[:1].upper() + f.doc[1:])}.{nan}{_read_by(readers)}"
            )
    return "\n\n".join(parts) + "\n"


_LEVELS = {
    "token": ("Per token", "`[N]`: one value for each sampled token. A column that is given per sequence is spread when a component asks."),
    "sequence": ("Per sequence", "`[S]`: one value for each response."),
    "group": ("Per group", "`[G]`: one value for each prompt."),
    "vocab": ("Per word of the vocabulary", "`[n, V]`: one row for each token of a chunk; a whole batch of them never exists."),
    "special": ("Special names", "What a component may name before `*` that is no column."),
}


def _read_by(readers: list[Component]) -> str:
    if not readers:
        return " *Read by no component in the box.*"
    if len(readers) > 12:
        return f" *Read by {len(readers)} components.*"
    return " *Read by* " + ", ".join(f"[{c.name}](zoo/{c.kind.name}/{c.name}.md)" for c in readers) + "."


def names_tables(zoo: Zoo) -> str:
    """Return, for a page in the folder above, what each framework calls our components, and all names that stand for another."""
    known = {framework for c in zoo.components for framework in c.compat}
    parts = []
    for framework in sorted(known, key=lambda f: (list(FRAMEWORKS).index(f) if f in FRAMEWORKS else 99, f)):
        rows = [(_link(c), c.kind.name, how.replace("|", "\\|")) for c in zoo.components if (how := c.compat.get(framework))]
        parts.append(f"## {FRAMEWORKS.get(framework, framework)}, name by name\n\n{table(('here', 'kind', 'there'), rows)}")
    rows = [(f"`{alias}`", _link(c), c.kind.name) for c in zoo.components for alias in c.aliases]
    parts.append(
        "## Names that mean the same\n\nA recipe may say these as they are; `-` and `_` are the same.\n\n"
        + table(("name", "component", "kind"), sorted(rows))
    )
    return "\n\n".join(parts) + "\n"


def _link(c: Component) -> str:
    return f"[{c.name}](zoo/{c.kind.name}/{c.name}.md)"

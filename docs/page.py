"""The page of one component."""

import re
import sys
from collections.abc import Callable, Iterable

from example import recipe_of
from family import FRAMEWORKS, SCOPES, TITLES, Zoo, markdown, paper, table
from inert import clean, code, literal
from restructured import inline, to_myst

from lossary.cli.portrait import Picture
from lossary.cli.portrait.examples import required
from lossary.cli.sections import keys_of, must_be_said, section_of
from lossary.registry import FIELDS, Component, Level, bounds_of
from lossary.registry.claims import CLAIMS


def component_page(zoo: Zoo, c: Component, picture: Picture | None) -> str:
    """Return the page of a component."""

    def link(text: str) -> str | None:
        found = zoo.named(text, c)
        return path_between(c, found) if found is not None else None

    first, _, rest = c.doc.partition("\n")
    parts = [f"# {c.name}", f":::{{container}} kind-line\n{_kind_line(c)}\n:::"]
    if idea := _idea(c):
        parts.append(f":::{{container}} idea\n{inline(idea, link)}\n:::")
    parts += [inline(first, link), to_myst(rest, link).strip()]
    if picture is not None:
        parts.append(_picture(c, picture))
    if text := recipe_of(c):
        said = [*must_be_said(c), *required(c)]
        note = f" {_listed(said)} must be said; the {'values are examples' if len(said) > 1 else 'value is an example'}." if said else ""
        parts += ["## In a recipe", f"With its defaults:{note}", literal(text.rstrip("\n"), "yaml"), *_keys(c)]
    parts += [*_params(c), *_reads(c, link), *_traits(c), *_elsewhere(c), *_neighbours(zoo, c)]
    return clean("\n\n".join(p for p in parts if p) + "\n")


def path_between(c: Component, to: Component) -> str:
    return f"{to.name}.md" if to.kind == c.kind else f"../{to.kind.name}/{to.name}.md"


def _idea(c: Component) -> str:
    said = (sys.modules[c.function.__module__].__doc__ or "").strip()
    return " ".join(said.split("\n\n")[0].split())


def _kind_line(c: Component) -> str:
    title = TITLES.get(c.kind.name, (c.kind.name, ""))[0]
    gives = inline(c.gives)
    return f"[{title}](index.md) · gives {gives}{f' · {paper(c.paper)}' if c.paper else ''}"


def _picture(c: Component, picture: Picture) -> str:
    titles = ", ".join(re.split(r"  |,|\$", p.title)[0] for p in picture.panels)
    alt = f"{c.name}: {titles}"
    images = [
        f"```{{image}} {c.name}{kind}.svg\n:class: only-{mode}\n:alt: {alt}\n```" for kind, mode in (("", "light"), (".dark", "dark"))
    ]
    return "\n\n".join((*images, f":::{{container}} caption-of-picture\n{inline(picture.caption)}\n:::"))


def _keys(c: Component) -> list[str]:
    rows = [(f"`{k.name}`", inline(k.may_be, table=True), inline(k.default, table=True) or "*required*") for k in keys_of(c)]
    return [f"Beside its hyperparameters the section `{section_of(c)}` takes:", table(("key", "may be", "default"), rows)] if rows else []


def _params(c: Component) -> list[str]:
    whole = lambda cell: re.sub("((?:[<>]|&[lg]t;)=?) ", "\\1\u00a0", cell)  # noqa: E731 no line ends between a sign and its number
    rows = [
        (
            f"`{name}`",
            _cell(kind),
            whole(_cell(bounds)),
            code(default, table=True) if default != "required" else "*required*",
            inline(said, table=True),
        )
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
                markdown(field.doc if field else "") + (" *(optional)*" if i.optional else ""),
            )
        )
    return ["## Reads", table(("column", "level", "unit", "meaning"), rows)] if rows else []


def _traits(c: Component) -> list[str]:
    losses = c.kind.columns and c.kind.name not in ("coefficient", "reward", "filter")
    said = [SCOPES.get(c.scope, c.scope)] if losses else []
    said += [CLAIMS[claim][1] for claim in c.claims]
    if c.stateful:
        said.append("It keeps state between steps, which is saved with a checkpoint.")
    lines = [f"- {line}" for line in said]
    for key, rule in c.suits.items():
        if key == "aggregation":
            lines.append(f"- Made for the aggregation {_listed(rule.split(' | '), 'or')}; with any other, composing a recipe warns.")
        elif key == "apply":
            lines.append(f"- Made for {code(f'apply: {rule}')}; used otherwise, composing a recipe warns.")
        else:
            wanted = f"{code(key)} {inline(rule)}" if rule[:1] in "<>=" else code(f"{key}: {rule}")
            lines.append(f"- Made for {wanted}; outside of that, composing a recipe warns.")
    return ["## Traits and traps", "\n".join(lines)] if lines else []


def _elsewhere(c: Component) -> list[str]:
    if not (c.aliases or c.compat):
        return []
    lines = [f"Also found as {_listed(c.aliases)}."] if c.aliases else []
    rows = [(FRAMEWORKS.get(framework, framework), markdown(how)) for framework, how in c.compat.items()]
    return ["## Elsewhere", *lines, *([table(("framework", "how it is called there"), rows)] if rows else [])]


def _listed(names: Iterable[str], word: str = "and") -> str:
    quoted = [code(n) for n in names]
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

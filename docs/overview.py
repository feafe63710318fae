"""Tables of many components: the index, a kind, the vocabulary, what frameworks call them."""

from collections.abc import Callable

from family import FRAMEWORKS, TITLES, Zoo, markdown, paper, table
from page import path_between
from restructured import inline

from lossary.conformance.kit import RULES
from lossary.registry import FIELDS, KINDS, Component, Level
from lossary.registry.claims import CLAIMS


def kind_page(zoo: Zoo, kind: str) -> str:
    title, said = TITLES.get(kind, (kind.replace("_", " "), ""))
    family = zoo.family(kind)

    def link(near: Component) -> Callable[[str], str | None]:
        return lambda text: path_between(near, found) if (found := zoo.named(text, near)) is not None else None

    rows = [(f"[{c.name}]({c.name}.md)", inline(c.summary, link(c), table=True), paper(c.paper)) for c in family]
    told = f"In recipes and in code the kind is called `{kind}`. A component of it gives {inline(KINDS[kind].gives)}."
    listed = "\n".join(c.name for c in family)
    return (
        f"# {title}\n\n{said} {told}\n\n{table(('name', 'what it does', 'paper'), rows)}\n\n"
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def index_page(zoo: Zoo) -> str:
    parts = [
        "# The zoo",
        f"{len(zoo.components)} components in {len(zoo.kinds)} kinds. Every page is made from the component itself: its text is the docstring, "
        "its tables are the signature, its curves come from calling it. `lossary list` and `lossary show NAME` tell the same in a terminal.",
    ]
    for kind in zoo.kinds:
        title, said = TITLES.get(kind, (kind, ""))
        family = zoo.family(kind)
        rows = [f"- [{c.name}]({kind}/{c.name}.md): {inline(c.summary)}" for c in family]
        parts.append(f"## [{title}]({kind}/index.md)\n\n{said}\n\n::::{{container}} names\n" + "\n".join(rows) + "\n::::")
    listed = "\n".join(f"{kind}/index" for kind in zoo.kinds)
    return "\n\n".join((*parts, f"```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{listed}\n```")) + "\n"


def kinds_table(zoo: Zoo) -> str:
    """Return how many components of each kind there are, and three of them, for a page in the folder above."""
    rows = []
    for kind in zoo.kinds:
        family = zoo.family(kind)
        shown = ", ".join(f"[{c.name}](zoo/{kind}/{c.name}.md)" for c in sorted(family, key=lambda c: -len(c.compat))[:3])
        rows.append((f"[{TITLES.get(kind, (kind, ''))[0]}](zoo/{kind}/index.md)", str(len(family)), shown))
    return table(("kind", "components", "among them"), rows) + "\n"


def checks_table(zoo: Zoo) -> str:
    """Return every check of the conformance kit, of whom it is asked, and what is usually wrong, for a page in the folder above."""
    rows = []
    for rule in RULES:
        asked = [kind for kind in zoo.kinds if any(rule.applies(c) for c in zoo.family(kind))]
        every = [kind for kind in zoo.kinds if KINDS[kind].columns]
        if rule.name in CLAIMS:
            whom = f"{', '.join(f'`{k}`' for k in CLAIMS[rule.name][0])}, where claimed"
        else:
            whom = "every component" if set(asked) >= set(every) else ", ".join(f"`{k}`" for k in asked)
        rows.append((f"`{rule.name}`", inline(rule.says, table=True), whom, markdown(rule.cause)))
    return table(("check", "what is promised", "of whom", "what is usually wrong"), rows) + "\n"


def claims_table(zoo: Zoo) -> str:
    """Return every claim, which kinds may make it and who does, for a page in the folder above."""
    rows = []
    for name, (kinds, says) in CLAIMS.items():
        makers = [c for c in zoo.components if name in c.claims]
        shown = ", ".join(f"[{c.name}](zoo/{c.kind.name}/{c.name}.md)" for c in makers[:3])
        rest = f" and {len(makers) - 3} more" if len(makers) > 3 else ""
        rows.append((f"`{name}`", markdown(says), ", ".join(f"`{k}`" for k in kinds), shown + rest))
    return table(("claim", "what it says", "of kind", "made by"), rows) + "\n"


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
            nan += f" -inf: {f.inf_means}." if f.inf_means else ""
            bracket = f" ({', '.join(traits)})" if traits else ""
            parts.append(
                f"(column-{f.name.replace('_', '-')})=\n**`{f.name}`**{bracket}. "
                f"{markdown(f.doc[:1].upper() + f.doc[1:])}.{nan}{_read_by(readers)}"
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
        rows = [(_link(c), c.kind.name, markdown(how)) for c in zoo.components if (how := c.compat.get(framework))]
        parts.append(f"## {FRAMEWORKS.get(framework, framework)}, name by name\n\n{table(('here', 'kind', 'there'), rows)}")
    rows = [(f"`{alias}`", _link(c), c.kind.name) for c in zoo.components for alias in c.aliases]
    parts.append(
        "## Names that mean the same\n\nA recipe may say these as they are; `-` and `_` are the same.\n\n"
        + table(("name", "component", "kind"), sorted(rows))
    )
    return "\n\n".join(parts) + "\n"


def _link(c: Component) -> str:
    return f"[{c.name}](zoo/{c.kind.name}/{c.name}.md)"

"""The zoo: a page for every component, tables of kinds, columns and names, all from the catalog. ``conf.py`` calls it."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from family import Zoo
from overview import checks_table, claims_table, columns_table, index_page, kind_page, kinds_table, names_tables
from page import component_page

from lossary import catalog
from lossary.cli.portrait import Picture, portrait_of, save
from lossary.cli.portrait.draw import DARK, LIGHT
from lossary.registry import Component

Draw = Callable[[Picture, Path], None]
Portray = Callable[[Component], Picture | None]


def generate(folder: Path, *, of: Iterable[Component] | None = None, portray: Portray = portrait_of, draw: Draw | None = None) -> None:
    """Write every page under ``folder``; a file that says already what it should is left alone, so that a second build is short."""
    zoo = Zoo.of(catalog() if of is None else of)
    wanted: dict[Path, str] = {folder / "index.md": index_page(zoo), folder / "_columns.md": columns_table(zoo)}
    wanted[folder / "_names.md"] = names_tables(zoo)
    wanted[folder / "_kinds.md"] = kinds_table(zoo)
    wanted[folder / "_checks.md"] = checks_table(zoo)
    wanted[folder / "_claims.md"] = claims_table(zoo)
    kept: set[Path] = set()
    for kind in zoo.kinds:
        wanted[folder / kind / "index.md"] = kind_page(zoo, kind)
    for c in zoo.components:
        picture = portray(c)
        wanted[folder / c.kind.name / f"{c.name}.md"] = _page(zoo, c, picture)
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


def _page(zoo: Zoo, c: Component, picture: Picture | None) -> str:
    try:
        return component_page(zoo, c, picture)
    except Exception as error:
        raise RuntimeError(f"{c.kind.name} {c.name!r} ({c.place}) has no page: {type(error).__name__}: {error}") from error


def without_page(folder: Path, of: Iterable[Component]) -> list[str]:
    """Return the components that have no page, or an empty one, or are in no index."""
    return [f"{c.kind.name}/{c.name}" for c in of if not _has_page(folder, c)]


def _has_page(folder: Path, c: Component) -> bool:
    page, family = folder / c.kind.name / f"{c.name}.md", folder / c.kind.name / "index.md"
    if not (page.exists() and family.exists()):
        return False
    listed = family.read_text("utf-8").splitlines()
    return page.read_text("utf-8").startswith(f"# {c.name}\n") and c.name in listed


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

"""Helpers of the tests of the catalog: packages written to disk, found by their entry points."""

import importlib

from lossary.registry import (
    Catalog,
    hookimpl,
    kl_estimator,
    policy_loss,
)


def write(folder, name, source):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    importlib.invalidate_caches()
    return path


GOOD = """
import lossary.registry as r

@r.policy_loss(aliases=("other_name",))
def stranger(log_prob, advantages):
    '''Vanilla.'''
    return -log_prob * advantages

@r.hookimpl
def lossary_components():
    return [stranger]
"""


def install(folder, name, version, module, source, entry=None, requires=""):
    """Write what pip would: a module and a dist-info with an entry point."""
    write(folder, f"{module}.py", source)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    (info / "entry_points.txt").write_text(f"[lossary]\n{entry or module} = {module}\n")


def brought(book, distribution):
    return {f"{c.kind.name}/{c.name}" for c in book if c.distribution == distribution}


def pl(name, source="return -log_prob * advantages", alias=""):
    traits = f"(aliases=({alias!r},))" if alias else ""
    return f"\nimport lossary.registry as r\n@r.policy_loss{traits}\ndef {name}(log_prob, advantages):\n    {source}\n"


class Built:
    """A plugin that is an object: the built-ins' door."""

    def __init__(self, functions=(), columns=(), recipes=None):
        self.functions, self.columns, self.recipes = functions, columns, recipes or {}
        self.heard = []

    @hookimpl
    def lossary_components(self):
        return self.functions

    @hookimpl
    def lossary_fields(self):
        return self.columns

    @hookimpl
    def lossary_recipes(self):
        return self.recipes

    @hookimpl
    def lossary_event(self, event):
        self.heard.append(event)


@policy_loss(aliases=("vanilla", "low_var"))
def first_loss(log_prob, advantages):
    """The first."""
    return -log_prob * advantages


@kl_estimator
def k9(log_prob, ref_log_prob):
    return log_prob - ref_log_prob


def only_failure(site, source, module="bad_one"):
    """The one cause why a plugin is out; the good one beside it is in."""
    install(site, "good-dist", "1.2", "good_one", GOOD)
    install(site, "bad-dist", "0.1", module, source)
    book = Catalog.load()
    assert brought(book, "good-dist 1.2") == {"policy_loss/stranger"}
    assert brought(book, "bad-dist 0.1") == set()
    (failure,) = book.failures
    return failure.why

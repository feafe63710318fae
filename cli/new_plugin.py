"""``lossary new-plugin``: a package with one loss that already works, to be changed into one's own."""

import keyword
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path
from string import Template
from time import gmtime

from rich.console import Console

from .. import __version__
from ..pipeline import bundled_recipes
from ..registry import KINDS, LossaryError
from ..registry.api import API
from ..registry.selection import brought_by, installed, names_of

FILES = (
    ("pyproject.toml", "pyproject.toml", "builds the wheel; its entry point makes it a plugin"),
    ("src/$module/__init__.py", "src/__init__.py", "the hooks: what the package offers"),
    ("src/$module/tilted.py", "src/tilted.py", "a loss, to be replaced by yours"),
    ("src/$module/recipe.yaml", "src/recipe.yaml", "a recipe that uses it"),
    ("src/$module/py.typed", "src/py.typed", ""),
    ("tests/test_tilted.py", "tests/test_tilted.py", "the conformance kit and three tests"),
    ("README.md", "README.md", ""),
    ("LICENSE", "LICENSE", "MIT; change it if you prefer another"),
    (".github/workflows/test.yml", "github/test.yml", "the tests on every push"),
    (".gitignore", "gitignore", ""),
)
"""Where a file goes, which template it is made of, and what is said of it."""
_SPOKEN_FOR = {"lossary", "src", "tests", "this-script"}
_LONGEST = 50
"""So that no line of what is written is too long."""


def new_plugin(name: str, into: Path) -> None:
    """Write a package and say what to do next; whatever stands in the way is an error before anything is written."""
    check_name(name)
    folder = into / name
    write(name, folder)
    _report(name, folder)


def check_name(name: str) -> None:
    """Raise ``LossaryError`` for a name that cannot be a distribution, a module and a vendor at once, or that is somebody else's."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > _LONGEST:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:_LONGEST].strip("-")
        hint = f" {plain!r} would do." if plain and plain != name else ""
        raise LossaryError(f"{name!r} is no name for a plugin: lower-case letters, digits and single dashes, a letter first.{hint}")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or name in _SPOKEN_FOR:
        raise LossaryError(f"{name!r} means something to Python or to lossary already: choose a longer name, such as 'my-{name}'.")
    if module in KINDS or name in bundled_recipes():
        what = f"a kind of component, as in {name}/NAME" if module in KINDS else "a recipe in the box"
        raise LossaryError(f"{name!r} is {what}: choose another name, such as 'my-{name}'.")
    if there := next((e for e in installed()[0] if name in names_of(e)), None):
        raise LossaryError(f"A plugin called {name!r} is installed already: {brought_by(there)}.")
    # Not what lies in the current folder: a file my_losses.py there is what often becomes the package my-losses.
    if PathFinder.find_spec(module, [p for p in sys.path if p and Path(p) != Path.cwd()]) is not None:
        raise LossaryError(f"Python knows a module {module!r} already, and only one of the two could be imported: choose another name.")


def write(name: str, folder: Path) -> None:
    """Write the package into a folder that is not there yet: whole, or not at all."""
    if folder.is_symlink() or folder.exists():
        raise LossaryError(f"{folder} is there already; nothing was written.")
    said = {
        "name": name,
        "module": name.replace("-", "_"),
        "lossary_version": _minor(__version__),
        "api": str(API),
        "year": str(gmtime().tm_year),
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            for path, text in _made(said):
                (aside / path).parent.mkdir(parents=True, exist_ok=True)
                (aside / path).write_text(text, "utf-8")
            aside.chmod(0o755)  # a temporary folder is for nobody else, a project is for everybody
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    except OSError as error:
        raise LossaryError(f"{folder} cannot be written: {error.strerror or error}.") from error


def _made(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    box = files(__package__) / "plugin_template"
    for path, template, _ in FILES:
        text = (box / f"{template}.txt").read_text("utf-8")
        yield Template(path).substitute(said), Template(text).substitute(said)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _report(name: str, folder: Path) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{folder}[/]", soft_wrap=True)
    said = {"name": name, "module": name.replace("-", "_")}
    rows = [(Template(path).substitute(said), what) for path, _, what in FILES]
    wide = max(len(path) for path, _ in rows)
    for path, what in rows:
        beside = f"  [dim]{what}[/]" if what and wide + 4 + len(what) <= console.width else ""
        console.print(f"  [cyan]{path:{wide if beside else 0}}[/]{beside}", soft_wrap=True)
    console.print("\nNext:", style="bold")
    for command in (f"cd {shlex.quote(str(folder))}", "pip install -e '.[dev]'", "pytest"):
        console.print(f"  {command}", soft_wrap=True, markup=False)
    console.print(f"Then `lossary train {name}` trains with it; docs/plugins.md tells the rest.", soft_wrap=True)

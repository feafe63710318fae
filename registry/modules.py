"""Code that a recipe names: a module, a file of its own folder, or a function by its import path."""

import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .component import Component, component_of, describe
from .errors import LossaryError, PluginError, UnknownName, nearest, text_of, worded
from .fingerprint import DIGEST
from .isolation import isolated
from .kinds import KINDS

FILE = "lossary_plugin_"


def load(name: str, folder: Path) -> ModuleType:
    """Import a module, or run a ``.py`` file of ``folder``; what goes wrong is a ``PluginError`` with the line."""
    try:
        with isolated(f"plugin {name!r}"):
            return _executed(name, folder) if name.endswith(".py") else _module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin's module may raise anything, also what is meant to end the process
        if type(error) is PluginError:
            raise
        if isinstance(error, LossaryError):
            raise PluginError(f"plugin {name!r}: {text_of(error)}") from error
        beside = f" There is a file {name}.py beside the recipe: write {name + '.py'!r}." if (folder / f"{name}.py").is_file() else ""
        raise PluginError(f"plugin {name!r} does not load: {said(error)}{beside}") from error


def said(error: BaseException) -> str:
    """Return an error's type, text and line in one sentence; ours name the place themselves."""
    if isinstance(error, LossaryError):
        return text_of(error)
    return f"{worded(error)}{line_in(error)}"


def _module(name: str) -> ModuleType:
    if "/" in name or "\\" in name:
        raise PluginError(f"plugin {name!r} is neither a module, as in my_package.losses, nor a .py file.")
    _check_importable(name)
    return importlib.import_module(name)


def _check_importable(name: str) -> None:
    """Refuse what is no module's name, and modules that cannot hold components: importing one is running it."""
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(f"{name!r} is no module's name, as in my_package.losses.")
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise PluginError(f"{name!r} belongs to Python itself, which holds no components.")


def file_inside(folder: Path, name: str) -> Path:
    """Return a plugin file of a recipe's folder; one that lies elsewhere, also behind a link, raises ``PluginError``."""
    path, home = (folder / name).resolve(), folder.resolve()
    if not path.is_relative_to(home):
        raise PluginError(
            f"plugin {name!r} lies outside the recipe's folder {home}; a recipe names code of its own folder or installed modules."
        )
    if path.exists() and not path.is_file():
        raise PluginError(f"plugin {name!r}: {folder / name} is no ordinary file.")
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise PluginError(f"plugin {name!r}: there is no file {folder / name}.{nearest(path.name, beside)}")
    return path


def _executed(name: str, folder: Path) -> ModuleType:
    path = file_inside(folder, name)
    # A name of its own for each path, so that equal file names of two recipes do not meet in sys.modules.
    unique = f"{FILE}{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin {name!r}: {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    setattr(module, DIGEST, blake2b(path.read_bytes(), digest_size=8).hexdigest())  # the file may be edited while its code runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]  # as an ordinary import does: half a module is worse than none
        raise
    return module


def function_at(path: str) -> Callable[..., Any]:
    """Return the function at ``package.module:function``; a module of Python itself, or one that cannot be imported, raises ``UnknownName``."""
    name, _, attribute = path.partition(":")
    try:
        _check_importable(name)
        with isolated(f"the module {name!r}"):
            module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except PluginError as error:
        raise UnknownName(f"{path!r}: {text_of(error)}") from error
    except BaseException as error:  # a stranger's module may raise anything
        raise UnknownName(f"{path!r} cannot be imported: {said(error)}") from error
    if not hasattr(module, attribute):
        raise UnknownName(f"{path!r}: the module has no {attribute!r}.{nearest(attribute, vars(module))}")
    function = getattr(module, attribute)
    if not callable(function):
        raise UnknownName(f"{path!r} is no function but {type(function).__name__}.")
    found: Callable[..., Any] = function
    return found


def imported(path: str, kind: str) -> Component:
    """Return the component at ``package.module:function``: a decorated function, or one whose signature keeps to the kind's contract."""
    function = function_at(path)
    made = component_of(function)
    if made is None:
        made = describe(function, KINDS[kind])
        if not made.inputs:  # any function without arguments would do, and be called
            raise UnknownName(
                f"{path!r} reads no column, so nothing but a decorator can say that it is a {kind}; write @{_decorator(kind)}."
            )
    return replace(made, distribution=distribution_of(path.partition(":")[0]))


def _decorator(kind: str) -> str:
    return {"kl": "kl_estimator", "advantage": "advantage_estimator", "reward": "reward_term", "filter": "sequence_filter"}.get(kind, kind)


def findable(name: str) -> bool:
    """Say whether a top-level module of this name could be imported, without importing it."""
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module that was made by hand may have no spec
        return name in sys.modules


def belongs(module: str, entry: str) -> bool:
    """Say whether a module is the one that an entry point's value names, or lies in it."""
    home = entry.partition(":")[0].strip()
    return module == home or module.startswith(f"{home}.")


def distribution_of(module: str) -> str:
    """Return ``name version`` of the installed distribution that a module belongs to, or ``module NAME``."""
    top = module.partition(".")[0]
    if top == __name__.partition(".")[0]:
        return top
    try:
        found = sorted(set(_distributions().get(top, ())))
        return f"{found[0]} {distribution(found[0]).version}" if len(found) == 1 else f"module {module}"
    except Exception:  # a stranger's metadata may be half deleted
        return f"module {module}"


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())


def line_in(error: BaseException) -> str:
    """Say where in the plugin's own file it went wrong: the deepest line of the first file that is neither ours nor the importer's."""
    if isinstance(error, SyntaxError):  # it names file and line itself
        return ""
    strange = [f for f in traceback.extract_tb(error.__traceback__) if _strange(f.filename)]
    own = [f for f in strange if f.filename == strange[0].filename]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""


def traced(error: BaseException) -> str:
    """Return the traceback from the first line on that is the plugin's own, if one is."""
    at = error.__traceback__
    while at is not None and not _strange(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return "".join(traceback.format_exception(type(error), error, at or error.__traceback__))


def _strange(filename: str) -> bool:
    path = Path(filename)
    return not filename.startswith("<frozen ") and path.parent not in _HOSTS and "pluggy" not in path.parts


_HOSTS = (Path(__file__).parent, Path(importlib.__file__).parent, Path(importlib.metadata.__file__).parent)


def unlisted(kind: str, name: str) -> str | None:
    """Return a module outside the house that defines a component nobody listed; only a failed look-up pays for this search."""
    for module in list(sys.modules.values()):
        place = str(getattr(module, "__name__", ""))
        if place.partition(".")[0] == __name__.partition(".")[0]:
            continue
        for value in list(getattr(module, "__dict__", {}).values()):
            # type(), for isinstance asks an object for its __class__, and a stranger's may answer with a warning.
            made = component_of(value) if type(value) is FunctionType else None
            if made and made.kind.name == kind and name in (made.name, *made.aliases) and value.__module__ == place:
                return Path(str(module.__file__)).name if place.startswith(FILE) else place
    return None

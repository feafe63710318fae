"""Options that several commands share."""

import os
from typing import Annotated

import typer

CLOSED = "LOSSARY_NO_PLUGINS"


def _close(context: typer.Context, asked: bool) -> bool:
    """Say it in the environment, so that worker processes and ranks hear it too, and only while this command runs."""
    if asked:
        before = os.environ.get(CLOSED)
        os.environ[CLOSED] = "1"
        context.call_on_close(lambda: os.environ.pop(CLOSED) if before is None else os.environ.update({CLOSED: before}))
    return asked


NoPlugins = Annotated[
    bool,
    typer.Option(
        "--no-plugins", callback=_close, help="Run nobody else's code: no installed plugin, no plugins: of a recipe, no import path."
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="FILE|MODULE|RECIPE", help="Also what a .py file, a module or the plugins: of a recipe bring; may be repeated."
    ),
]

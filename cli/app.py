"""Commands. Nothing heavy is imported before a command needs it."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A glossary of losses: list, find, look up, check and train.",
)
Json = Annotated[bool, typer.Option("--json", help="Print what a machine may read.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as a.b=value, e.g. policy_loss.clip_ratio_high=0.3")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("list")
def list_(kind: Annotated[str | None, typer.Argument(help="Only one kind, e.g. policy_loss")] = None, json: Json = False) -> None:
    """Every component, by kind."""
    from .catalog import list_components

    list_components(kind, as_json=json)


@app.command()
def find(words: Annotated[list[str], typer.Argument(help="What to look for; all of the words must be found.")], json: Json = False) -> None:
    """Which component is meant: names, what frameworks say, hyperparameters and what they mean."""
    from .finding import find

    raise typer.Exit(find(words, as_json=json))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name, alias, vendor/name or kind/name")],
    json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw its curves into this .svg, .png or .pdf file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot replace a file that is there.")] = False,
) -> None:
    """One component: formula, columns, hyperparameters with bounds, paper, aliases; with --plot its picture."""
    from .catalog import plot_component, show_component

    if plot is not None:  # first: a page that ends in an error was printed in vain
        plot_component(name, plot, force=force)
    elif force:
        print("lossary: --force says that --plot may replace a file; say --plot FILE too.", file=sys.stderr)
        raise typer.Exit(2)
    show_component(name, as_json=json)
    if plot is not None:
        print(f"picture: {plot}", file=sys.stderr if json else sys.stdout)


@app.command()
def check(
    recipe: Annotated[str, typer.Argument(help="A bundled name or a file")],
    overrides: Overrides = None,
    json: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also list every setting, and where its value was said.")] = False,
) -> None:
    """Whether a recipe is right: every fault with its place, or what it resolves to."""
    from .checking import check_recipe

    raise typer.Exit(check_recipe(recipe, overrides or [], as_json=json, explained=explain))


@app.command()
def schema(
    name: Annotated[str | None, typer.Argument(help="One component: a name, alias or kind/name")] = None,
    recipe: Annotated[str | None, typer.Option(help="Take in the plugins of this recipe.")] = None,
) -> None:
    """JSON Schema of a recipe, or of one component, for editors."""
    from .schema import print_schema

    print_schema(name, recipe)


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A bundled name or a file")] = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder instead of starting a new run.")] = None,
    json: Json = False,
) -> None:
    """Train on the recipe's task."""
    from .training import train_recipe

    if resume is not None and recipe is not None and "=" in recipe:  # without a recipe the first override stands in its place
        overrides = [recipe, *(overrides or [])]
        recipe = None
    if (recipe is None) == (resume is None):
        print("lossary: say either a recipe or --resume RUN.", file=sys.stderr)
        raise typer.Exit(2)
    train_recipe(recipe, overrides or [], out, resume, as_json=json)


def main() -> None:
    """Run, and turn our own errors into one paragraph on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table in a terminal without Unicode is better than none
    try:
        app()
    except Exception as error:
        from ..registry import LossaryError

        if not isinstance(error, LossaryError):
            raise
        print(f"lossary: {error}", file=sys.stderr)
        raise SystemExit(2) from None

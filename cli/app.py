"""Commands. Nothing heavy is imported before a command needs it."""

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import __version__
from .options import NoPlugins, With

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A glossary of losses: list, find, look up, check, try, train, compare, and find out what is wrong.",
)
Json = Annotated[bool, typer.Option("--json", help="Print what a machine may read.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as a.b=value, e.g. policy_loss.clip_ratio_high=0.3")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="Only one kind, e.g. policy_loss")] = None,
    json: Json = False,
    more: With = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Every component, by kind."""
    from .catalog import list_components
    from .plugins import book_with

    list_components(kind, book_with(more), as_json=json)


@app.command()
def find(
    words: Annotated[list[str], typer.Argument(help="What to look for; all of the words must be found.")],
    json: Json = False,
    more: With = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Which component is meant: names, what frameworks say, hyperparameters and what they mean."""
    from .finding import find
    from .plugins import book_with

    raise typer.Exit(find(words, book_with(more), as_json=json))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name, alias, vendor/name or kind/name")],
    json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw its curves into this .svg, .png or .pdf file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot replace a file that is there.")] = False,
    more: With = None,
    no_plugins: NoPlugins = False,
) -> None:
    """One component: formula, columns, hyperparameters with bounds, paper, aliases; with --plot its picture."""
    from .catalog import plot_component, show_component
    from .plugins import book_with

    if plot is not None:  # first: a page that ends in an error was printed in vain
        plot_component(name, book_with(more), plot, force=force)
    elif force:
        print("lossary: --force says that --plot may replace a file; say --plot FILE too.", file=sys.stderr)
        raise typer.Exit(2)
    show_component(name, book_with(more), as_json=json)
    if plot is not None:
        print(f"picture: {plot}", file=sys.stderr if json else sys.stdout)


@app.command()
def check(
    recipe: Annotated[str, typer.Argument(help="A bundled name or a file")],
    overrides: Overrides = None,
    json: Json = False,
    no_plugins: NoPlugins = False,
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
def conformance(
    target: Annotated[str, typer.Argument(help="A component's name, a .py file, or an installed package")],
    json: Json = False,
    compile: Annotated[bool, typer.Option("--compile", help="Also whether torch.compile makes one graph; takes seconds each.")] = False,
    examples: Annotated[int, typer.Option(min=1, max=1000, help="Random inputs that each check tries.")] = 3,
) -> None:
    """Whether components keep what they and their kinds promise; a broken promise with its smallest input."""
    from .conformance import conform

    raise typer.Exit(conform(target, compile=compile, examples=examples, as_json=json))


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A bundled name or a file")] = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder instead of starting a new run.")] = None,
    json: Json = False,
    no_plugins: NoPlugins = False,
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


@app.command("import-config")
def import_config(
    file: Annotated[Path, typer.Argument(help="YAML, or a command's key=value and --key value words")],
    framework: Annotated[str, typer.Option("--from", help="verl, trl, skyrl or openrlhf")],
    out: Annotated[Path | None, typer.Option(help="Write the recipe into this new file instead of printing it.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if anything is only approximated.")] = False,
    json: Json = False,
) -> None:
    """Another framework's configuration as a recipe, and what became of each of its keys."""
    from .configs import import_config

    raise typer.Exit(import_config(framework, file, out, strict=strict, as_json=json))


@app.command()
def export(
    recipe: Annotated[str, typer.Argument(help="A bundled name or a file")],
    framework: Annotated[str, typer.Option("--to", help="verl or trl")],
    json: Json = False,
) -> None:
    """What a framework must be told so that a recipe is what it trains with."""
    from .configs import export

    export(framework, recipe, as_json=json)


@app.command()
def doctor(
    batch: Annotated[Path, typer.Argument(help="A saved batch, padded tensors with response_mask (.safetensors), or a run folder")],
    recipe: Annotated[str | None, typer.Argument(help="What the batch is for: a bundled name or a file")] = None,
    names: Annotated[str, typer.Option(help="Whose names padded tensors have: lossary or verl.")] = "lossary",
    json: Json = False,
    no_plugins: NoPlugins = False,
) -> None:
    """What is wrong with a batch or a run: where, why it matters, what to do. Exit code 1 if it is serious."""
    from .doctor import examine

    raise typer.Exit(examine(batch, recipe, names=names, as_json=json))


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A dumped batch")],
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Compare with this setting; may be repeated.")] = None,
    against: Annotated[str | None, typer.Option(metavar="RECIPE", help="Compare with another recipe.")] = None,
    json: Json = False,
    no_plugins: NoPlugins = False,
) -> None:
    """A dumped batch again: loss, gradients and metrics to the last bit, or what another setting would make of them."""
    from .replaying import replay

    raise typer.Exit(replay(file, set_ or [], against, as_json=json))


@app.command()
def forensics(file: Annotated[Path, typer.Argument(help="A dumped batch")], json: Json = False, no_plugins: NoPlugins = False) -> None:
    """Which term a dumped step's gradient comes from, and how much of each token's advantage was left."""
    from .forensics import show_forensics

    show_forensics(file, as_json=json)


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="A dumped batch")],
    token: Annotated[str, typer.Option(metavar="I,J", help="Token J of sequence I, both counted from 0.")],
    html: Annotated[Path | None, typer.Option(help="Also draw its sequence, coloured by contribution, into this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html replace a file that is there.")] = False,
    json: Json = False,
    no_plugins: NoPlugins = False,
) -> None:
    """The arithmetic of one token of a dumped batch: columns, ratio, clip, weight, contribution."""
    from .tokens import explain_token

    explain_token(file, token, html, as_json=json, force=force)


@app.command()
def ablate(
    file: Annotated[str, typer.Argument(help="A bundled ablation or a file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The ablation's folder; by default ablations/NAME.")] = None,
    processes: Annotated[int | None, typer.Option("--processes", "-n", min=1, help="Runs at a time; by default one for each core.")] = None,
    launcher: Annotated[Literal["local", "slurm"], typer.Option(help="Processes here, or jobs of a cluster.")] = "local",
    slurm: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A parameter of submitit, as slurm_partition=gpu.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check and list the variants.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Also run again what failed.")] = False,
    json: Json = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Train variants of a recipe and compare them; the same command goes on where it was stopped."""
    from .ablating import ablate

    raise typer.Exit(ablate(file, overrides or [], out, processes, launcher, slurm or [], dry=dry_run, retry=retry, as_json=json))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an ablation")],
    out: Annotated[Path | None, typer.Option(help="The file to write; by default report.html in the folder.")] = None,
    json: Json = False,
) -> None:
    """One page of an ablation: ranking, curves, recipes; it needs no network."""
    from .reporting import report

    report(folder, out, as_json=json)


@app.command()
def plugins(
    json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also the traceback of each one that failed.")] = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Every installed plugin: who brought it, its state and cause, what it brings. Exit code 1 if one failed, else 0."""
    from .plugins import list_plugins

    raise typer.Exit(list_plugins(as_json=json, verbose=verbose))


@app.command("new-plugin")
def new_plugin(
    name: Annotated[str, typer.Argument(help="Of the package, e.g. my-losses")],
    into: Annotated[Path, typer.Option(help="The folder in which its folder is made.")] = Path(),
) -> None:
    """A package of your own: one loss that already works, a recipe, tests."""
    from .new_plugin import new_plugin

    new_plugin(name, into)


def _warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: object = None, line: str | None = None
) -> None:
    """Print our own warnings as a sentence: which line of ours gave one helps nobody."""
    ours = category.__module__.partition(".")[0] == __name__.partition(".")[0]
    print(f"lossary: {message}" if ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip(), file=sys.stderr)


def main() -> None:
    """Run, and turn our own errors into one paragraph on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table in a terminal without Unicode is better than none
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            app()
    except Exception as error:
        from ..registry import LossaryError

        if not isinstance(error, LossaryError):
            raise
        print(f"lossary: {error}", file=sys.stderr)
        raise SystemExit(2) from None

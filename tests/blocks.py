"""The code blocks of our pages, and how each is run: recipes are checked, Python is executed, commands are typed."""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from lossary.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
SHORT = ("train.steps=1", "warm_up.steps=1", "rollout.prompts=2", "evaluate.items=2")
"""What a page's ``lossary train`` gets besides, so that its recipe runs and nobody waits for it to learn."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    file: str
    """What the sentence before it calls the file that it is; empty: none."""
    mark: str
    """What a comment before it calls it."""


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page; MyST's directives are none."""
    made = []
    for found in re.finditer(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", page, re.M | re.S):
        if found[2].startswith("{"):
            continue
        before = page[: found.start()].rstrip()
        file = re.search(r"`([\w./-]+\.\w+)`:$", before)
        mark = re.search(r"<!-- (\w+) -->$", before)
        made.append(Block(found[2], found[3], file[1] if file else "", mark[1] if mark else ""))
    return made


def matches(shown: str, said: str) -> bool:
    """Whether a page shows what a command says; ``...`` stands for anything: on a line of its own for lines, else for a part of one."""
    said = "\n".join(line.rstrip() for line in said.strip().splitlines())
    parts = [r"(?:.*\n)*?.*" if line == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in shown.strip().splitlines()]
    pattern = r"\n".join(parts).replace(r"(?:.*\n)*?.*\n", r"(?:.*\n)*?").replace(r"\n(?:.*\n)*?.*", r"(?:\n.*)*")
    return re.fullmatch(pattern, said) is not None


def typed(command: str) -> tuple[int, str]:
    """Run a command ``lossary ...``, with variables before it if need be, in this process; return its exit code and all that it said."""
    words, variables = shlex.split(command), {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    program, *words = words
    assert program == "lossary", command
    result = CliRunner().invoke(app, [*words, *(SHORT if words[0] == "train" else ())], env=variables)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def run(block: Block, scope: dict[str, Any], folder: Path) -> None:
    """Run one block in ``folder``, which is the current one; Python shares ``scope`` with the blocks before it."""
    if block.file:
        (folder / block.file).write_text(block.text)
    if block.language == "python":
        exec(compile(block.text, "page", "exec"), scope)
    elif block.language == "yaml":
        path = folder / (block.file or "page.yaml")
        path.write_text(block.text)
        code, said = typed(f"lossary check {path.name}")
        assert code == 0, f"{block.text}\n{said}"
    elif block.language == "console":
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M):
            code, said = typed(command)
            assert matches(shown, said), f"$ {command}\n{said}\nis not\n{shown}"
            assert code == bool(re.search(r"^\d+ faults?$| broken|^[1-9]\d* errors?, ", shown, re.M)), said
    elif block.language == "sh":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
        assert set(re.findall(r"^make ([a-z]+)", block.text, re.M)) <= targets
    elif block.language == "toml":
        tomllib.loads(block.text)
    else:
        assert block.language == "text", f"nobody runs a block of {block.language!r}"

"""The page on plugins, typed by somebody who has nothing but it: in an empty folder, in an environment of their own."""

import re
import resource
import shlex
import tomllib

import pytest
from blocks import ROOT, SHORT, blocks, matches
from plugin_env import Environment

PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")
BLOCKS = blocks(PAGE)
COMMAND = re.compile(r"^\$ ((?:\w+=\S* )*)(.*)\n((?:(?!\$ ).*\n?)*)", re.M)
ASKED = {"cd", "lossary", "pip", "pytest", "python"}
FAILS = re.compile(r"^lossary: |\bfaults?\b|\d failed|\d broken", re.M)
"""What is shown of a command that ends with an exit code."""


class Reader:
    """Somebody who types the page into a shell."""

    def __init__(self, folder):
        self.env = Environment(folder / "env")
        self.here = folder / "empty"
        self.here.mkdir()

    def types(self, words, variables):
        """Run one command."""
        program, *rest = words
        if program == "cd":
            self.here = (self.here / rest[0]).resolve(strict=True)
            return 0, ""
        if program == "lossary" and rest[0] == "train":
            rest += SHORT
        said = self.env.run(*(("lossary", *rest) if program == "lossary" else (program, *rest)), cwd=self.here, **variables)
        return said.code, said.text

    def reads(self, block):
        """Write a file, or type what a block says and compare."""
        if block.file:
            path = self.here / block.file
            assert path.parent.is_dir(), f"{block.file}: nobody has made its folder"
            path.write_text(block.text)
        elif block.language == "yaml":
            (self.here / "page.yaml").write_text(block.text)
            code, said = self.types(["lossary", "check", "page.yaml"], {})
            assert code == 0, said
        for variables, command, shown in COMMAND.findall(block.text if block.language == "console" else ""):
            code, said = self.types(shlex.split(command), dict(v.split("=", 1) for v in variables.split()))
            assert matches(shown, said), f"$ {command}\n{said}\nis not\n{shown}"
            assert bool(code) == bool(FAILS.search(shown)), f"$ {command}\nended with {code}:\n{said}"


def test_the_page_can_be_typed():
    """Every command is one that a reader has, every file is whole, and nothing is left for a reader to guess."""
    commands = [shlex.split(c)[0] for b in BLOCKS if b.language == "console" for _, c, _ in COMMAND.findall(b.text)]
    assert len(commands) > 20
    assert set(commands) == ASKED
    assert {b.language for b in BLOCKS} == {"console", "python", "yaml", "toml"}
    for block in BLOCKS:
        if block.language == "python":
            assert block.file, block.text
            compile(block.text, block.file, "exec")
    written = [b.file for b in BLOCKS if b.file]
    assert {"my_losses.py", "mine.yaml", "src/my_losses/leaky_clip.py", "src/my_losses/columns.py"} < set(written)


def test_what_the_page_shows_of_the_package_is_what_is_written(tmp_path):
    from lossary.cli.new_plugin import write

    write("my-losses", tmp_path / "my-losses")
    (shown,) = [tomllib.loads(b.text) for b in BLOCKS if b.language == "toml"]
    made = tomllib.loads((tmp_path / "my-losses" / "pyproject.toml").read_text())
    assert shown["project"]["entry-points"] == made["project"]["entry-points"]
    first = next(b.text for b in BLOCKS if b.file == "src/my_losses/__init__.py")
    lines = (tmp_path / "my-losses" / "src" / "my_losses" / "__init__.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and '"""' not in line]
    kept = [line for line in code if line.partition("#")[0].rstrip() in first.splitlines()]
    assert set(code) - set(kept) == {"    return [tilted]", '__all__ = ["tilted"]'}


@pytest.mark.slow
def test_everything_on_the_page_happens_as_shown_in_under_ten_minutes(tmp_path):
    reader, began = Reader(tmp_path), resource.getrusage(resource.RUSAGE_CHILDREN)
    for block in BLOCKS:
        reader.reads(block)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor: what else a machine does while this runs says nothing of the page.
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 600

"""Commands, typed in this process."""

import sys

import pytest
from typer.testing import CliRunner

from lossary.cli import main
from lossary.cli.app import app


def run(*words):
    """The exit code, stdout and stderr of a command, in this process."""
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def ended(monkeypatch, capsys, *words):
    """The same through ``main``, which turns our errors into a paragraph."""
    monkeypatch.setattr(sys, "argv", ["lossary", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return caught.value.code, out.out, out.err

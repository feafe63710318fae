"""Say at the end how many records were compared."""

import pytest
from golden.records import BOOKS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if BOOKS:
        terminalreporter.section("golden records")
    for book in BOOKS:
        terminalreporter.line(book.summary())

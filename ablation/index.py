"""An sqlite index over the runs, for questions in SQL. The run folders are what is true: the file may be deleted and is made again."""

import math
import sqlite3
from pathlib import Path
from types import TracebackType

from .folder import AblationFolder, Run, cost, state_of
from .statistics import area, final

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (variant TEXT, seed INTEGER, state TEXT, step INTEGER, folder TEXT, final REAL, area REAL, cpu_seconds REAL,
    failure TEXT, PRIMARY KEY (variant, seed));
CREATE TABLE IF NOT EXISTS metrics (variant TEXT, seed INTEGER, step INTEGER, name TEXT, value REAL, PRIMARY KEY (variant, seed, name, step));
"""


class Index:
    """The index of one folder, open for a moment."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, timeout=30)
        self.connection.executescript(SCHEMA)

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.connection.commit()
        self.connection.close()

    def take_in(self, folder: AblationFolder, run: Run) -> None:
        """Replace what is known of a run by what its folder says."""
        lines, state, score = folder.lines(run), state_of(folder, run), folder.plan()["score"]
        rows = [
            (run.variant, run.seed, line["step"], name, value)
            for line in lines
            for name, value in line.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        ]
        found = [(s, v) for _, _, s, name, v in rows if name == score]
        steps, values = [s for s, _ in found], [v for _, v in found]
        path = folder.run_path(run)
        told = (
            run.variant, run.seed, state["state"], state["step"], str(path.relative_to(folder.path)) if path else None,
            final(steps, values) if values else None, area(steps, values) if values else None, cost(lines), state["failure"],
        )  # fmt: skip
        self.connection.execute("DELETE FROM metrics WHERE variant = ? AND seed = ?", (run.variant, run.seed))
        self.connection.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
        self.connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", told)


def rebuild(folder: AblationFolder) -> None:
    """Make the index anew from the run folders."""
    folder.index.unlink(missing_ok=True)
    with Index(folder.index) as index:
        for run in folder.runs():
            index.take_in(folder, run)

"""``lossary report``."""

import json
from pathlib import Path

from ..ablation.comparing import compare
from ..ablation.folder import AblationFolder
from ..ablation.index import rebuild
from ..ablation.report import page
from ..registry import LossaryError


def report(path: Path, out: Path | None, *, as_json: bool) -> None:
    """Write the page of an ablation's folder, and make its index anew."""
    folder = AblationFolder.existing(path)
    made, file = page(folder), out or path / "report.html"
    rebuild(folder)
    try:
        file.write_text(made, "utf-8")
    except OSError as error:
        raise LossaryError(f"the report {file} cannot be written: {error}") from error
    print(
        json.dumps({"report": str(file), "bytes": len(made.encode()), **compare(folder).for_machines()})
        if as_json
        else f"{file} ({len(made.encode()) // 1024} KB)"
    )

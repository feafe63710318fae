"""Every known fault of these classes has a test that bears its number."""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
IDS = json.loads((HERE / "golden" / "fault_ids.json").read_text())


def covered():
    found = set()
    for file in HERE.glob("test_*.py"):
        for name, number in re.findall(r"^def test_([a-z]+)_o(\d+)_", file.read_text("utf-8"), re.M):
            found.add(f"{name.upper()}-O{number}")
    return found


def test_every_case_is_tested():
    assert set(IDS) == covered()

"""Every known fault of these classes has a test that bears its number."""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
IDS = json.loads((HERE / "golden" / "fault_ids.json").read_text())


def covered(folder):
    found = set()
    for file in folder.glob("test_*.py"):
        for name, number in re.findall(r"^def test_([a-z]+)_o(\d+)_", file.read_text("utf-8"), re.M):
            found.add(f"{name.upper()}-O{number}")
    return found


def test_every_case_is_tested():
    assert set(IDS) == covered(HERE)


def test_a_case_that_loses_its_test_is_missed(tmp_path):
    for file in HERE.glob("test_*.py"):
        (tmp_path / file.name).write_text(file.read_text("utf-8").replace("def test_resume_o5_", "def test_resumed_o5_", 1), "utf-8")
    assert covered(tmp_path) == set(IDS) - {"RESUME-O5"} | {"RESUMED-O5"}

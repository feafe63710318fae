"""Options, the one table at the end, and the JSON beside it."""

import gc
import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import table
import torch
from device import Device
from race import Races

RESULTS = Path(__file__).parent / "results"
KEY = pytest.StashKey[Races]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lossary")
    group.addoption("--device", default="cpu", help="cpu, cuda, or dry: the steps of cuda on the CPU")
    group.addoption("--quick", action="store_true", help="small sizes, three rounds, nothing compiled")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    config.stash[KEY] = Races(Device(config.getoption("--device")), config.getoption("--quick"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=config.stash[KEY].device.now))


@pytest.fixture
def races(request: pytest.FixtureRequest) -> Any:
    gc.collect()
    return request.config.stash[KEY]


def machine(device: Device) -> str:
    """Return how results call the machine they are of."""
    if device.name == "cuda":
        return torch.cuda.get_device_name().removeprefix("NVIDIA ")
    kind = {"x86_64": "x86", "AMD64": "x86"}.get(platform.machine(), platform.machine())
    return f"{os.cpu_count()}-core {kind} CPU" + (", dry run of cuda" if device.cuda else "")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    races = config.stash[KEY]
    races.close()
    if not races.rows:
        return
    name = machine(races.device)
    told = {"machine": name, "torch": torch.__version__, "quick": races.quick, "rows": races.rows}
    slug = name.lower().replace(",", "").replace(" ", "-") + ("-quick" if races.quick else "")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{slug}.json").write_text(json.dumps(told, indent=1) + "\n")
    terminalreporter.write_line("")
    terminalreporter.write_line(table.text(told))
    terminalreporter.write_line(f"\nwritten to benchmarks/results/{slug}.json")

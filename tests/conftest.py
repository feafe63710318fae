"""One thread: on a small machine two of them cost more than they bring for tensors of this size."""

import sys

import pytest
import torch
from plugin_site import Built, first_loss, k9

from lossary import builtin
from lossary.registry import Catalog

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_plugin_outlives_its_test():
    """A recipe's plugin file stays in ``sys.modules``, where a failed look-up of another test would find it."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("lossary_plugin_"):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that stands on ``sys.path``; whatever is imported meanwhile is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for variable in ("BLOCK", "PLUGINS", "STRICT", "NO_PLUGINS"):
        monkeypatch.delenv(f"LOSSARY_{variable}", raising=False)
    builtin._catalog.cache_clear()  # what is installed here is nowhere else
    yield tmp_path
    builtin._catalog.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def book():
    return Catalog.load([Built([first_loss, k9])], discover=False)

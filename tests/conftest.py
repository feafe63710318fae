"""One thread: on a small machine two of them cost more than they bring for tensors of this size."""

import sys

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_plugin_outlives_its_test():
    """A recipe's plugin file stays in ``sys.modules``, where a failed look-up of another test would find it."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("lossary_plugin_"):
            del sys.modules[name]

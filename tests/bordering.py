"""Helpers of the tests of the border: a mask, and what is refused with which words."""

import pytest
import torch

from lossary.batch import Batch
from lossary.registry import ColumnError

MASK = torch.tensor([[1, 1, 0], [1, 0, 1]])


def refused(mask=MASK, *, make=Batch.from_padded, **columns):
    with pytest.raises(ColumnError) as caught:
        make(mask, **columns)
    return str(caught.value)

"""Helpers of the tests of batches: one batch in its padded and nested form."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

few = settings(max_examples=40, deadline=None)


NAN, INF = float("nan"), float("inf")


@st.composite
def padded(draw, rows=5, width=6):
    """A random mask with holes and empty rows, and two token columns and one sequence column over it."""
    rows, width = draw(st.integers(1, rows)), draw(st.integers(1, width))
    bits = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    mask = torch.tensor(bits).view(rows, width)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return mask, {
        "old_log_prob": torch.randn(rows, width, generator=generator, dtype=dtype),
        "token_ids": torch.randint(0, 99, (rows, width), generator=generator),
        "rewards": torch.randn(rows, generator=generator, dtype=dtype),
        "group_ids": torch.randint(0, 3, (rows,), generator=generator) * 7 - 7,
    }


def nested(rows):
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)

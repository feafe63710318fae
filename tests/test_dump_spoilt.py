"""Dumps that were spoilt by chance: whatever is broken in a file, loading it says so by name, or what was loaded is whole."""

import copy
import json
import random
import struct
import time

import pytest
import torch
from safetensors.torch import load, save
from stepping import steps

import lossary
from lossary.diagnostics import inspect
from lossary.diagnostics.dump import load_batch, save_batch
from lossary.diagnostics.packing import DumpError
from lossary.diagnostics.running import rerun
from lossary.registry import LossaryError

ROUNDS, EACH = 8, 40
"""Seeds, and files of each."""
JUNK = (
    None, True, 0, -1, 2**63 - 1, 2**63, 10**30, 1.5, float("nan"), "", "x", "token", "\ud800", [], {}, [[]], [1], [10**30], {"a": 1},
    {"tensor": "lengths"}, {"tensor": 5}, {"map": {}}, {"map": []}, {"components": [1]}, "[[[", "a: &a [*a]",
)  # fmt: skip
DTYPES = (
    torch.float16, torch.float64, torch.int8, torch.int64, torch.bool, torch.uint8, torch.complex64, torch.float8_e4m3fn, torch.uint64,
)  # fmt: skip
STRAY = (
    "kept.lengths",
    "within",
    "column.more",
    "column.log_prob",
    "weight.more",
    "model.more",
    "state.99",
    "recorded.term.x",
    "totals.tokens",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A real step of the demo: its bytes, its tensors, its plain values and where the tensors begin."""
    path = tmp_path_factory.mktemp("dumps") / "step.safetensors"

    def keep(c):
        save_batch(path, c.batch, objective=c.objective, recipe=c.recipe, outputs=c.outputs, tokens=c.tokens, replace=True)

    steps("demo", path.parent, keep, count=1)
    raw = path.read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    return raw, load(raw), json.loads(json.loads(raw[8:begin])["__metadata__"]["lossary"]), begin


def paths_of(value, path=()):
    """Every path into nested dicts and lists; of long lists only the first entries."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:9]) if isinstance(value, list) else ()
    return [path] * bool(path) + [p for key, x in inner for p in paths_of(x, (*path, key))]


def bytes_changed(raw, begin, draw):
    out = bytearray(raw)
    for _ in range(draw.randrange(1, 4)):
        out[draw.randrange(begin if draw.random() < 0.8 else len(out))] = draw.randrange(256)
    return bytes(out)


def tensor_changed(x, draw):
    """Another shape, dtype or value; None: the tensor is gone."""
    place = draw.randrange(max(x.numel(), 1))
    return draw.choice((
        lambda: None,
        lambda: x.flatten()[:-1],
        lambda: x[None],
        lambda: torch.empty(0),
        lambda: torch.tensor(3),
        lambda: x.to(draw.choice(DTYPES)),
        lambda: torch.full_like(x, 2**62) if x.dtype == torch.long else x.bitwise_not() if not x.is_floating_point() else x * float("nan"),
        lambda: x.flatten().index_fill(0, torch.tensor([place]), 1).reshape(x.shape) if x.numel() else x,
    ))()  # fmt: skip


def values_changed(meta, draw):
    path = draw.choice(paths_of(meta)) if draw.random() < 0.6 else (draw.choice(list(meta)),)
    here = meta
    for key in path[:-1]:
        here = here[key]
    if draw.random() < 0.3:
        del here[path[-1]]
    else:
        here[path[-1]] = draw.choice(JUNK)


def spoilt(whole, draw):
    """One file with a few faults of one or two kinds."""
    raw, tensors, meta, begin = whole
    kind = draw.randrange(4)
    if kind == 0:
        return bytes_changed(raw, begin, draw)
    tensors, meta = dict(tensors), copy.deepcopy(meta)
    if kind != 1:
        name = draw.choice(list(tensors))
        changed = tensor_changed(tensors.pop(name), draw)
        tensors |= {name: changed.contiguous()} if changed is not None else {}
        tensors |= {draw.choice(STRAY): torch.zeros(3)} if draw.random() < 0.1 else {}
    if kind != 2:
        values_changed(meta, draw)
    return save(tensors, metadata={"lossary": json.dumps(meta)})


def loaded(path):
    """The dump, or what loading it says against it."""
    try:
        return load_batch(path), ""
    except DumpError as error:
        return None, str(error)


def asked(dump):
    """What the commands ask of a file that was loaded; of the library's own errors its text, any other goes on."""
    try:
        objective = dump.objective(lossary.catalog())
        assert isinstance(dump.changed(objective.plan), list)
        assert inspect(dump.batch, objective).ran
        return sorted(rerun(objective, dump.batch, dump.outputs, dump.generator).gradients)
    except LossaryError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_file_spoilt_by_chance_is_refused_by_name_or_whole(whole, tmp_path, seed):
    draw, path = random.Random(seed), tmp_path / "spoilt.safetensors"
    refused, began = 0, time.perf_counter()
    for _ in range(EACH):
        path.write_bytes(spoilt(whole, draw))
        dump, said = loaded(path)
        if dump is None:
            assert said.startswith(f"{path}: ")
            refused += 1
        else:
            assert sum(dump.batch.lengths) == dump.batch.sequences.index.shape[0]
            assert asked(dump)
    assert EACH // 2 < refused < EACH
    assert time.perf_counter() - began < 60  # nothing hangs: a file takes milliseconds


def test_sizes_that_a_file_only_claims_allocate_nothing(whole, tmp_path):
    _, tensors, meta, _ = whole
    path, layout = tmp_path / "wide.safetensors", meta["batch"]["layout"]
    rows = len(layout["spans"])
    for width in (1 << 40, 1 << 62, 10**30):
        starts = torch.arange(rows) * (width if width < 1 << 50 else 0)
        changed = {**meta, "batch": {**meta["batch"], "layout": {**layout, "width": width, "spans": [width] * rows}}}
        path.write_bytes(save({**tensors, "layout.starts": starts}, metadata={"lossary": json.dumps(changed)}))
        with pytest.raises(DumpError, match=r"positions|is no list of"):
            load_batch(path)
    path.write_bytes(save({**tensors, "lengths": torch.full((rows,), 1 << 50)}, metadata={"lossary": json.dumps(meta)}))
    with pytest.raises(DumpError, match=r"'layout.source' is torch.int64 .*; expected 64-bit integers"):
        load_batch(path)


def test_a_recipe_that_would_grow_without_end_is_refused(whole, tmp_path):
    _, tensors, meta, _ = whole
    path = tmp_path / "bomb.safetensors"
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12))]
    for recipe in ("\n".join(lines), "policy_loss: &x {use: *x}", "x" * 200_000):
        path.write_bytes(save(tensors, metadata={"lossary": json.dumps({**meta, "recipe": recipe})}))
        with pytest.raises(LossaryError, match="the recipe in the file"):
            load_batch(path).read_recipe()

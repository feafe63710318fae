"""A batch in a file: what comes back is what went in, and what is no dump says so."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from stepping import steps

import lossary
from lossary.batch import Batch
from lossary.diagnostics.dump import load_batch, save_batch
from lossary.diagnostics.packing import DumpError
from lossary.diagnostics.running import rerun

RECIPES = ("demo", "ppo")


def equal(a, b):
    """Bit for bit, NaN included."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Five real steps of each recipe, each in a file, with the loss that the live objective itself gave."""
    folder, live = tmp_path_factory.mktemp("dumps"), {}

    def keep(caught):
        path = folder / f"{name}-{len(live)}.safetensors"
        if sum(p.name.startswith(name) for p in live) == 5:
            return
        leaves = {n: x.clone().requires_grad_() for n, x in caught.outputs.items()}
        out = caught.objective.loss(caught.batch, **leaves)
        slopes = torch.autograd.grad(out.total, list(leaves.values()), allow_unused=True)
        caught.objective.weigh(caught.batch)  # forgets what this look observed
        live[path] = (out.total.detach(), dict(zip(leaves, slopes, strict=True)), caught.objective.metrics(out, caught.batch))
        save_batch(path, caught.batch, objective=caught.objective, recipe=caught.recipe, outputs=caught.outputs, tokens=caught.tokens)

    for name in RECIPES:
        steps(name, folder, keep, count=2)
    return live


def test_ten_real_steps_replay_to_the_last_bit(files):
    assert len(files) == 10
    for path, (total, slopes, metrics) in files.items():
        dump = load_batch(path)
        again = rerun(dump.objective(lossary.catalog()), dump.batch, dump.outputs, dump.generator)
        assert equal(again.total, total)
        assert all(g is None or equal(again.gradients[n], g) for n, g in slopes.items())
        assert again.metrics == metrics == dump.recorded.metrics
        assert len(metrics) > 10
        assert equal(dump.recorded.total, total)
        assert {n: equal(x, again.gradients[n]) for n, x in dump.recorded.gradients.items()} == dict.fromkeys(again.gradients, True)
        assert again.total.isfinite()
        assert again.gradients["log_prob"].abs().sum() > 0


def test_a_batch_comes_back_as_it_was(files, tmp_path):
    dump = load_batch(next(iter(files)))
    save_batch(tmp_path / "again", dump.batch)
    again = load_batch(tmp_path / "again").batch
    assert again.lengths == dump.batch.lengths
    assert again.groups == dump.batch.groups
    assert again.prompts == dump.batch.prompts
    assert again.levels == dump.batch.levels
    for kind in ("columns", "weights", "coefficients"):
        assert {n: equal(x, getattr(again, kind)[n]) for n, x in getattr(dump.batch, kind).items()} == dict.fromkeys(
            getattr(again, kind), True
        )
    assert {n: again.common_weight(n) is None for n in again.weights} == {n: dump.batch.common_weight(n) is None for n in again.weights}
    assert equal(again.unpack(again["old_log_prob"]), dump.batch.unpack(dump.batch["old_log_prob"]))


def test_a_selection_comes_back_too(tmp_path):
    band = {"use": "masked-is", "level": "token", "lower": 0.8, "upper": 1.25, "denominator": "kept"}
    recipe = {"policy_loss": "ppo-clip", "aggregation": "token-mean", "correction": band}
    torch.manual_seed(0)
    mask, shape = torch.ones(4, 6, dtype=torch.bool), (4, 6)
    old, rollout = -torch.rand(shape), -torch.rand(shape)
    batch = Batch.from_padded(mask, advantages=torch.randn(shape), old_log_prob=old, rollout_log_prob=rollout)
    objective = lossary.compose(recipe)
    batch = objective.weigh(objective.estimate(batch))
    assert 0 < batch.kept.sequences.index.shape[0] < 24
    save_batch(tmp_path / "f", batch, objective=objective, recipe=recipe, outputs={"log_prob": old - 0.1})
    dump = load_batch(tmp_path / "f")
    assert equal(dump.batch.kept_tokens, batch.kept_tokens)
    again = rerun(dump.objective(lossary.catalog()), dump.batch, dump.outputs)
    assert equal(again.total, dump.recorded.total)
    assert equal(again.gradients["log_prob"], dump.recorded.gradients["log_prob"])


def small(**columns):
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    return Batch.from_padded(mask, rewards=torch.tensor([1.0, 0.0]), **columns)


def test_groups_named_by_text_keep_their_names(tmp_path):
    batch = small(group_ids=["why?", "how?"])
    save_batch(tmp_path / "f", batch, group_names=["why?", "how?"])
    dump = load_batch(tmp_path / "f")
    assert dump.group_names == ("why?", "how?")
    assert equal(dump.batch["group_ids"], batch["group_ids"])
    assert dump.batch.groups == batch.groups


def test_nothing_is_overwritten_unasked(tmp_path):
    save_batch(tmp_path / "f", small())
    with pytest.raises(DumpError, match="is there already; say replace=True"):
        save_batch(tmp_path / "f", small())
    save_batch(tmp_path / "f", small(), replace=True)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


# ── files that are none ──────────────────────────────────────────────────────────────────────────────────────────────


def meta_of(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["lossary"])


def spoilt(path, tensors=None, **meta):
    """The file with some of its tensors and plain values replaced; None takes one out."""
    kept = {n: x for n, x in {**load_file(path), **(tensors or {})}.items() if x is not None}
    told = {n: x for n, x in {**meta_of(path), **meta}.items() if x is not None}
    save_file(kept, path, metadata={"lossary": json.dumps(told)})


HOSTILE = {
    "missing tensor": ({"lengths": None}, {}, "'lengths' is missing"),
    "lengths beyond the tokens": ({"lengths": torch.tensor([2, 2**62])}, {}, "expected 64-bit integers"),
    "negative lengths": ({"lengths": torch.tensor([5, -1])}, {}, "not one count"),
    "a column too short": ({"column.rewards": torch.zeros(1)}, {}, r"'rewards' has the shape \[1\]; expected \[2"),
    "a column without a level": ({"column.more": torch.zeros(2)}, {}, "'more' has no level"),
    "a layout that points outside": ({"layout.source": torch.tensor([0, 1, 4, 99])}, {}, "points outside"),
    "a model's column of the wrong size": ({"model.log_prob": torch.zeros(3)}, {}, "the model's 'log_prob'"),
    "a model's column nobody knows": ({"model.nothing": torch.zeros(4)}, {}, "the model's 'nothing'"),
    "no batch": ({}, {"batch": None}, "'batch' is missing"),
    "a batch that is a list": ({}, {"batch": [1]}, "'batch' is missing"),
    "another format": ({}, {"format": 99}, "its format is 99"),
    "a recipe that is a number": ({}, {"recipe": 3}, "'recipe' is int"),
    "texts for other tokens": ({}, {"tokens": ["a"]}, "'tokens' is no list of 4 texts"),
    "a state that names no tensor": ({}, {"state": {"map": {"step": {"tensor": "state.7"}}}}, "'state.7', which the file lacks"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_spoilt_file_says_what_is_wrong(case, tmp_path):
    path = tmp_path / "f"
    save_batch(path, small())
    tensors, meta, said = HOSTILE[case]
    spoilt(path, tensors, **meta)
    with pytest.raises(DumpError, match=said):
        load_batch(path)


@pytest.mark.parametrize(
    "bytes_", [b"", b"\x00" * 4, struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 5) + b"{oops", b"PK\x03\x04 a pickle"]
)
def test_bytes_that_are_no_dump_are_refused(bytes_, tmp_path):
    (tmp_path / "f").write_bytes(bytes_)
    with pytest.raises(DumpError, match="no safetensors file"):
        load_batch(tmp_path / "f")


def test_every_cut_of_a_file_is_refused(tmp_path):
    save_batch(tmp_path / "f", small())
    whole = (tmp_path / "f").read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(DumpError):
            load_batch(tmp_path / "cut")


def test_somebody_elses_safetensors_are_no_dump(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "f")
    with pytest.raises(DumpError, match="part 'lossary' is missing from its header"):
        load_batch(tmp_path / "f")
    with pytest.raises(DumpError, match="no safetensors file"):
        load_batch(tmp_path / "nowhere")

"""The border: every column is checked there, once, and an error names the column, the place and the way out."""

import re

import numpy as np
import pytest
import torch
from bordering import MASK, refused
from torch.utils._python_dispatch import TorchDispatchMode

from lossary.batch import Batch
from lossary.batch.border import Outside, _admitted
from lossary.registry import FIELDS, Level, SignatureError, column

NAN, INF = float("nan"), float("inf")
IMPOSSIBLE = "There is no ratio to a policy that could not have sampled the token: take it out of the mask."


def full(value=0.0, at=None, dtype=torch.float32):
    x = torch.zeros(2, 3, dtype=dtype)
    if at is not None:
        x[at] = value
    return x


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_column_names_the_nearest_and_the_way_to_declare_one():
    text = refused(advantage=full())
    assert "there is no column 'advantage'. Did you mean 'advantages'?" in text
    assert "declared by column('advantage', level=..., doc=...) and passed in fields=[...]" in text


@pytest.mark.parametrize("name", ["sequences", "totals", "state", "step", "logits"])
def test_what_lives_at_no_level_of_a_batch_is_no_column_of_it(name):
    assert f"there is no column {name!r}." in refused(**{name: full()})


def test_a_column_of_ones_own_crosses_with_its_declaration():
    valid = column("valid", level="sequence", doc="whether it counts")
    batch = Batch.from_padded(MASK, fields=[valid], valid=[True, False])
    assert batch["valid"].tolist() == [1.0, 0.0]
    assert batch.levels["valid"] is Level.SEQUENCE
    with pytest.raises(SignatureError, match="column 'valid' is already declared with another meaning"):
        Batch.from_padded(MASK, fields=[valid, column("valid", level="token", doc="")], valid=[1, 0])


def test_verls_names():
    theirs = {
        "old_log_probs": full(-1.0, (0, 0)), "ref_log_probs": full(), "rollout_log_probs": full(), "values": full(2.0, (1, 0)), "vpreds": full(),
        "token_level_rewards": full(), "uid": ["a", "b"], "reward_baselines": [0.0, 1.0], "responses": torch.ones(2, 3, dtype=torch.long),
        "advantages": full(),
    }  # fmt: skip
    batch = Batch.from_padded(MASK, names="verl", **theirs)
    assert set(batch.columns) == {
        "old_log_prob", "ref_log_prob", "rollout_log_prob", "old_values", "values", "token_rewards", "group_ids", "baseline_rewards",
        "token_ids", "advantages",
    }  # fmt: skip
    assert batch["old_values"].tolist() == [0.0, 0.0, 2.0, 0.0]
    assert batch.groups in ((0, 1), (1, 0))


def test_a_column_given_under_two_names():
    text = refused(names="verl", old_values=full(), values=full())
    assert text == "column 'old_values' is given twice, once as 'values'."


def test_an_unknown_framework_names_the_nearest():
    assert refused(names="vrl") == "names='vrl': no such framework. Did you mean 'verl'? Known: lossary and verl."


def test_a_name_in_per_sequence_that_is_not_given():
    text = refused([2], make=Batch.from_packed, rewards=[1.0], per_sequence=["reward"])
    assert text == "per_sequence names 'reward', but no such column is given. Did you mean 'rewards'?"


def test_none_is_no_column():
    assert refused(advantages=None) == "column 'advantages' is None; leave it out instead."


# ── shapes, dtypes, devices ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"advantages": torch.zeros(2, 4)}, "column 'advantages' has the shape [2, 4]; expected [2, 3] or [2] (per sequence)."),
        ({"advantages": torch.zeros(3)}, "column 'advantages' has the shape [3]; expected [2, 3] or [2] (per sequence)."),
        ({"advantages": torch.tensor(1.0)}, "column 'advantages' has the shape []; expected [2, 3]"),
        ({"bootstrap_values": torch.zeros(3)}, "column 'bootstrap_values' has the shape [3]; expected [2]."),
        (
            {"rewards": torch.zeros(2, 3)},
            "column 'rewards' has the shape [2, 3]; expected [2]. It is one value per sequence; rewards of single tokens go into 'token_rewards'.",
        ),
        ({"teacher_topk_log_prob": torch.zeros(2, 3)}, "expected [2, 3, K] or [2, K] (per sequence)."),
        ({"component_rewards": torch.zeros(2)}, "column 'component_rewards' has the shape [2]; expected [2, K]."),
        ({"token_ids": torch.zeros(2, 3)}, "column 'token_ids' holds torch.float32; expected integers."),
        ({"advantages": torch.zeros(2, 3, dtype=torch.complex64)}, "column 'advantages' holds torch.complex64; expected real numbers."),
        ({"advantages": torch.zeros(2, 3, device="meta")}, "column 'advantages' is on meta, the mask on cpu."),
        ({"advantages": ["a", "b"]}, "column 'advantages' is no tensor: "),
        ({"advantages": object()}, "column 'advantages' is no tensor: "),
    ],
)
def test_a_misfit_is_named(columns, said):
    if "teacher_topk_log_prob" in columns:
        columns = {"teacher_topk_log_prob": torch.zeros(3, 3)}  # [2, 3] would be one row of three per sequence
    assert said in refused(**columns)


def test_logp_O6_scores_that_do_not_fit_the_tokens():
    text = refused([4], make=Batch.from_packed, rollout_log_prob=[-0.3, -1.2, -0.8])
    assert text == "column 'rollout_log_prob' has the shape [3]; expected [4] or [1] (per sequence)."


def test_plain_numbers_and_arrays_go_where_the_mask_is():
    batch = Batch.from_padded(np.array([[1, 0]]), rewards=np.array([2.0]), advantages=[[1, 2]], group_ids=np.array([7]))
    assert batch["rewards"].tolist() == [2.0]
    assert batch["rewards"].dtype == torch.float64
    assert batch["advantages"].tolist() == [1.0]
    assert batch["group_ids"].tolist() == [7]


def test_plain_numbers_are_brought_to_the_masks_device():
    mask = torch.ones(1, dtype=torch.bool, device="meta")  # stands for any other device
    x, level = _admitted(FIELDS["rewards"], [2.0], Outside(mask, mask, mask, (1,), (1,)), False)
    assert (x.device.type, level) == ("meta", Level.SEQUENCE)


# ── masks and lengths ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mask", "count"), [([[1, 2, 0]], 1), ([[0.5, 1.0, -1.0]], 2), ([[NAN, 1.0, 0.0]], 1), ([[True, False]], 0)])
def test_a_mask_holds_zeros_and_ones(mask, count):
    mask = torch.tensor(mask)
    if not count:
        assert Batch.from_padded(mask).lengths == (1,)
        return
    said = f"the mask has {count} values that are neither 0 nor 1."
    assert refused(mask) == said
    assert refused([mask.shape[1]], make=Batch.from_packed, response_mask=mask[0]) == said


def test_shapes_of_masks_and_lengths():
    assert "the mask has the shape [3]; expected [sequences, positions]" in refused(torch.ones(3))
    packed = {"make": Batch.from_packed}
    assert refused(None, **packed) == "from_packed needs either lengths or cu_seqlens."
    assert refused([2], cu_seqlens=[0, 2], **packed) == "from_packed needs either lengths or cu_seqlens."
    assert refused([2, 2], response_mask=torch.ones(3), **packed) == "the mask has 3 positions, the lengths add up to 4."
    assert refused([2, -1, 3], **packed) == "lengths must not be negative; sequence 1 has -1."
    assert refused(None, cu_seqlens=[0, 3, 2], **packed) == "lengths must not be negative; sequence 1 has -1."
    assert refused([2.5], **packed) == "lengths are torch.float32 [1]; expected one integer per sequence."
    assert "lengths are torch.int64 [1, 1]" in refused([[2]], **packed)
    assert "cu_seqlens has the shape [0]; expected [sequences + 1]" in refused(None, cu_seqlens=[], **packed)


def test_nested_tensors_must_fit_the_mask():
    def jagged(*lengths):
        return torch.nested.nested_tensor([torch.ones(n) for n in lengths], layout=torch.jagged)

    nested = {"make": Batch.from_nested}
    assert refused(torch.ones(2, 2), **nested) == "the mask is no jagged nested tensor; use from_padded or from_packed."
    assert "column 'advantages' is nested with other lengths than the mask" in refused(jagged(2, 1), advantages=jagged(1, 2), **nested)
    assert "column 'advantages' is nested with other lengths than the mask" in refused(jagged(2, 1), advantages=jagged(2, 1, 0), **nested)
    assert "column 'advantages' is a nested tensor, the mask is none; see from_nested" in refused(torch.ones(1, 3), advantages=jagged(2, 1))
    holes = torch.nested.narrow(torch.ones(2, 3), 1, torch.tensor([0, 1]), torch.tensor([2, 1]), layout=torch.jagged)
    assert "the mask is a jagged nested tensor with holes between its rows; call .contiguous() first" in refused(holes, **nested)
    own = Batch.from_nested(jagged(2, 1), advantages=jagged(2, 1), rewards=[1.0, 2.0])
    assert own.lengths == (2, 1)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_value_that_is_not_finite_is_located(value, dtype):
    text = refused(old_log_prob=full(value, (1, 2), dtype))
    at = f"column 'old_log_prob' is {value} at sequence 1, position 2."
    assert text == (f"{at} {IMPOSSIBLE}" if value == -INF else at)
    assert Batch.from_padded(MASK, old_log_prob=full(value, (1, 1), dtype))["old_log_prob"].tolist() == [0.0] * 4


def test_the_first_of_many_is_located_and_the_others_are_counted():
    x = full(NAN, (0, 1))
    x[1, 0], x[1, 1], x[1, 2] = INF, NAN, NAN
    assert refused(advantages=x) == "column 'advantages' is nan at sequence 0, position 1 and not finite at 2 more places."
    assert refused(rewards=[1.0, INF]) == "column 'rewards' is inf at sequence 1."
    wide = torch.zeros(2, 3, 2)
    wide[0, 1] = torch.tensor([3e38, INF])
    assert refused(teacher_topk_log_prob=wide) == "column 'teacher_topk_log_prob' is inf at sequence 0, position 1."
    wide[0, 1] = 3e38  # too large to add up, and still finite
    assert Batch.from_padded(MASK, teacher_topk_log_prob=wide)["teacher_topk_log_prob"].isfinite().all()
    text = refused([2, 3], make=Batch.from_packed, advantages=[0.0, 0.0, 0.0, NAN, 0.0])
    assert text == "column 'advantages' is nan at sequence 1, position 1."


def test_a_differentiable_column_is_looked_at_too():
    assert "column 'log_prob' is -inf at sequence 0, position 0" in refused(log_prob=full(-INF, (0, 0)).requires_grad_())


def test_nan_means_not_scored_for_the_sampler_but_infinity_means_nothing():
    batch = Batch.from_padded(MASK, rollout_log_prob=full(NAN, (0, 1)))
    assert batch["rollout_log_prob"].isnan().tolist() == [False, True, False, False]
    assert refused(rollout_log_prob=full(-INF, (0, 1))) == f"column 'rollout_log_prob' is -inf at sequence 0, position 1. {IMPOSSIBLE}"
    quiet = column("quiet", level="token", doc="", nan_means="absent")
    assert Batch.from_padded(MASK, fields=[quiet], quiet=full(NAN, (0, 0)))["quiet"].isnan().sum() == 1


@pytest.mark.parametrize("value", [INF, NAN])
def test_minus_infinity_means_not_filled_for_the_top_k_of_the_teacher_alone(value):
    wide = torch.zeros(2, 3, 2)
    wide[0, 1, 0] = -INF
    batch = Batch.from_padded(MASK, teacher_topk_log_prob=wide, teacher_topk_ids=torch.full((2, 3, 2), -1))
    assert batch["teacher_topk_log_prob"].tolist() == [[0, 0], [-INF, 0], [0, 0], [0, 0]]
    wide[0, 1, 1] = value
    assert refused(teacher_topk_log_prob=wide) == f"column 'teacher_topk_log_prob' is {value} at sequence 0, position 1."
    assert [name for name, c in FIELDS.items() if c.inf_means] == ["teacher_topk_log_prob"]
    open_end = column("open_end", level="token", doc="", inf_means="absent")
    assert Batch.from_padded(MASK, fields=[open_end], open_end=full(-INF, (0, 0)))["open_end"].isinf().sum() == 1


def test_the_first_fault_of_the_mask_wins_over_those_of_columns():
    assert "the mask has 1 values" in refused(torch.tensor([[2, 1, 0]]), advantages=torch.full((1, 3), NAN))


# ── rewards on masked tokens ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_reward_at_a_masked_position_is_an_error_or_has_a_meaning():
    paid = torch.tensor([[1.0, 2.0, 4.0], [0.5, -0.25, 0.0]])
    text = refused(token_rewards=paid)
    assert "column 'token_rewards' pays 2 rewards at masked positions" in text
    assert "masked_rewards='to-sequence'" in text
    dropped = Batch.from_padded(MASK, masked_rewards="drop", token_rewards=paid)
    assert dropped["token_rewards"].tolist() == [1.0, 2.0, 0.5, 0.0]
    assert "rewards" not in dropped
    moved = Batch.from_padded(MASK, masked_rewards="to-sequence", token_rewards=paid)
    assert moved["token_rewards"].tolist() == [1.0, 2.0, 0.5, 0.0]
    assert moved["rewards"].tolist() == [4.0, -0.25]
    assert moved.levels["rewards"] is Level.SEQUENCE
    added = Batch.from_padded(MASK, masked_rewards="to-sequence", token_rewards=paid, rewards=[10.0, 20.0])
    assert added["rewards"].tolist() == [14.0, 19.75]
    assert refused(masked_rewards="keep") == "masked_rewards='keep': say 'error', 'drop' or 'to-sequence'."


def test_masked_rewards_that_are_not_numbers():
    paid = full(NAN, (0, 2))
    assert "pays 1 rewards at masked positions" in refused(token_rewards=paid)
    assert Batch.from_padded(MASK, masked_rewards="drop", token_rewards=paid)["token_rewards"].tolist() == [0.0] * 4
    assert refused(masked_rewards="to-sequence", token_rewards=paid) == "column 'token_rewards' is nan at sequence 0, position 2."


@pytest.mark.parametrize("masked_rewards", ["error", "drop", "to-sequence"])
def test_token_rewards_per_sequence_have_no_masked_position(masked_rewards):
    batch = Batch.from_padded(MASK, masked_rewards=masked_rewards, token_rewards=[1.0, 2.0])
    assert batch.column("token_rewards").tolist() == [1.0, 2.0]
    assert "rewards" not in batch


# ── group ids ────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── one look from the host ───────────────────────────────────────────────────────────────────────────────────────────

WAITS = ("_local_scalar_dense", "nonzero.default", "unique", "masked_select", "is_nonzero", "equal.default", "allclose")


class Waits(TorchDispatchMode):
    """Counts what would make a CUDA device be waited for: operators whose result or shape the host must learn, and ``tolist``."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        for name in ("tolist", "item", "__bool__", "__int__", "__float__", "numpy"):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch, name):
        plain = getattr(torch.Tensor, name)

        def watched(x, *args, **kwargs):
            self.seen.append(name)
            return plain(x, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        index = name.startswith(("index.Tensor", "index_put")) and any(getattr(i, "dtype", None) == torch.bool for i in args[1] or ())
        free = name.startswith("repeat_interleave.Tensor") and (kwargs or {}).get("output_size") is None
        if name.startswith(WAITS) or index or free:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


COLUMNS = {
    "old_log_prob": torch.zeros(3, 4), "rewards": torch.ones(3), "token_rewards": torch.zeros(3, 4), "rollout_log_prob": torch.zeros(3, 4),
    "component_rewards": torch.zeros(3, 2), "token_ids": torch.zeros(3, 4, dtype=torch.long), "prompt_lengths": torch.tensor([1, 2, 3]),
    "group_ids": torch.tensor([4, 4, 2]),
}  # fmt: skip


@pytest.mark.parametrize("mask", [torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bool), torch.tensor([[1, 0, 1, 0]] * 3)])
@pytest.mark.parametrize("masked_rewards", ["error", "drop", "to-sequence"])
def test_the_border_is_one_wait_for_the_device(monkeypatch, mask, masked_rewards):
    with Waits(monkeypatch) as waits:
        Batch.from_padded(mask, masked_rewards=masked_rewards, **COLUMNS)
    assert waits.seen == ["tolist"]


def test_packed_lengths_from_the_host_cost_no_second_wait(monkeypatch):
    flat = {n: x.flatten() if x.shape[1:] == (4,) else x for n, x in COLUMNS.items()}
    with Waits(monkeypatch) as waits:
        Batch.from_packed([4, 4, 4], **flat)
    # The second is of the lengths, which lie on the host here, as the list that they were made of did.
    assert waits.seen == ["tolist", "tolist"]


def test_nothing_waits_after_the_border(monkeypatch):
    batch = Batch.from_padded(torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]), **COLUMNS)
    with Waits(monkeypatch) as waits:
        part = batch.take([2, 0])
        part.unpack(part.pack(torch.ones(2, 4)))
        part.pack(torch.ones(2, 9), shift=True)
        part.column("rewards", Level.TOKEN)
        s = part.sequences
        s.group_std(s.sum(part["old_log_prob"]))
        s.reverse_scan(part["old_log_prob"], 0.9)
        s.reverse_scan(part["old_log_prob"], part["old_log_prob"])
        s.cumsum(s.next(part["old_log_prob"], s.max(part["old_log_prob"])))
        s.moments(part["rewards"])
    assert waits.seen == []
    with Waits(monkeypatch) as waits:
        batch.select(batch["old_log_prob"] == 0)
    assert set(waits.seen) == {"nonzero.default", "tolist"}


def test_the_watch_sees_what_it_must(monkeypatch):
    x = torch.tensor([1.0, 0.0])
    with Waits(monkeypatch) as waits:
        x.nonzero()
        x[x > 0]
        x[0].item()
        bool(x[0])
        torch.repeat_interleave(x, torch.tensor([1, 2]))
    text = " ".join(waits.seen)
    assert all(re.search(name, text) for name in ("nonzero", "index.Tensor", "item", "__bool__", "repeat_interleave"))

"""The left shift by one: log-probs at position t speak of token t + 1. Both user documents' loops are the yardstick."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lossary.batch import Batch, left_shift_packed, left_shift_padded, token_log_probs
from lossary.registry import ColumnError

few = settings(max_examples=40, deadline=None)


def slice_response_from_unpad_output(values, response_lens, sequence_offsets):
    """``_slice_response_from_unpad_output`` as the user document prints it."""
    response_list, max_response_len = [], max(response_lens, default=0)
    for resp_len, seq_offset in zip(response_lens, sequence_offsets, strict=True):
        pad_size = max_response_len - resp_len
        response_list.append(F.pad(values[seq_offset - resp_len - 1 : seq_offset - 1], (0, pad_size)))
    return torch.stack(response_list, dim=0)


PAIRS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=5)


@few
@given(PAIRS)
def test_packed_against_the_documents_loop(pairs):
    prompts, responses = zip(*pairs, strict=True)
    whole = [p + r for p, r in pairs]
    values = torch.arange(1.0, sum(whole) + 1)
    ends = torch.tensor(whole).cumsum(0).tolist()
    padded = slice_response_from_unpad_output(values, responses, ends)
    want = [v for row, r in zip(padded.tolist(), responses, strict=True) for v in row[:r]]
    assert left_shift_packed(values, torch.tensor(whole), torch.tensor(responses)).tolist() == want
    # The same by a mask over the loss that is rolled left by one, as sft_loss does it.
    mask = torch.cat([torch.arange(w) >= p for w, p in zip(whole, prompts, strict=True)])
    assert values[torch.roll(mask, -1)].tolist() == want
    batch = Batch.from_packed(whole, response_mask=mask)
    assert batch.pack(values, shift=True).tolist() == want
    nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *ends]))
    from_nested = Batch.from_nested(torch.nested.nested_tensor_from_jagged(mask, torch.tensor([0, *ends])))
    assert from_nested.pack(nested, shift=True).tolist() == want


@few
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))
def test_padded_against_an_obvious_loop(rows, prompt, width, seed):
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(rows, prompt + width, 2, generator=generator)
    mask = torch.rand(rows, width, generator=generator) < 0.7
    want = torch.stack([torch.stack([output[b, prompt + t - 1] for t in range(width)]) for b in range(rows)])
    assert left_shift_padded(output, width).equal(want)
    batch = Batch.from_padded(mask)
    assert batch.pack(output, shift=True).equal(want[mask])
    assert batch.pack(output[:, :, 0], shift=True).tolist() == [
        output[b, prompt + t - 1, 0].item() for b in range(rows) for t in range(width) if mask[b, t]
    ]


def test_holes_in_a_packed_response_are_shifted_one_by_one():
    mask = torch.tensor([0, 1, 0, 1, 0, 0, 1])
    batch = Batch.from_packed([4, 3], response_mask=mask)
    assert batch.pack(torch.arange(7.0), shift=True).tolist() == [0.0, 2.0, 5.0]
    part = batch.take([1, 0])
    assert part.pack(torch.arange(7.0), shift=True).tolist() == [1.0, 3.0, 5.0]


def test_an_empty_row_at_the_end_hinders_no_shift():
    batch = Batch.from_packed([0, 3, 0], response_mask=torch.tensor([0, 1, 1]))
    assert batch.layout.shiftable
    assert batch.pack(torch.arange(3.0), shift=True).tolist() == [0.0, 1.0]
    assert not Batch.from_packed([0, 3, 0, 1], response_mask=torch.tensor([0, 1, 1, 1])).layout.shiftable


def test_the_shift_is_differentiable():
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: left_shift_packed(v, torch.tensor([4, 3]), torch.tensor([2, 1])), [x])
    y = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: left_shift_padded(v, 2), [y])


def test_shapes_that_do_not_add_up():
    with pytest.raises(ColumnError, match="the model's output has 3 positions: too few to speak of 3 response tokens"):
        left_shift_padded(torch.zeros(2, 3), 3)
    with pytest.raises(ColumnError, match=r"the model's output has the shape \[3\]; expected \[sequences, positions"):
        left_shift_padded(torch.zeros(3), 2)
    with pytest.raises(ColumnError, match="the model's output has 6 positions, the sequences 7"):
        left_shift_packed(torch.zeros(6), torch.tensor([4, 3]), torch.tensor([2, 1]))
    with pytest.raises(ColumnError, match="1 sequences have no token before their response"):
        left_shift_packed(torch.zeros(7), torch.tensor([4, 3]), torch.tensor([2, 3]))
    with pytest.raises(ColumnError, match=r"there are \[2\] sequence lengths and \[1\] response lengths"):
        left_shift_packed(torch.zeros(7), torch.tensor([4, 3]), torch.tensor([2]))
    with pytest.raises(ColumnError, match="too few to speak of 3 response tokens"):
        Batch.from_padded(torch.ones(2, 3)).pack(torch.zeros(2, 3), shift=True)


def test_sequences_without_any_position_are_no_fault():
    assert left_shift_packed(torch.arange(3.0), torch.tensor([0, 3, 0]), torch.tensor([0, 1, 0])).tolist() == [1.0]


# ── log-probabilities of tokens ──────────────────────────────────────────────────────────────────────────────────────


def test_logp_O1_the_samplers_temperature_counts():
    out = token_log_probs(torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64), torch.tensor([0]), temperature=0.5)
    assert out.item() == pytest.approx(-0.1429316285, abs=1e-9)


def test_logp_O2_shapes_must_belong_together():
    with pytest.raises(ColumnError) as caught:
        token_log_probs(torch.zeros(1, 6, 5), torch.zeros(1, 4, dtype=torch.long))
    assert str(caught.value) == "shape of the logits [1, 6, 5] and of the token ids [1, 4] do not belong together."


def test_logp_O5_logits_at_t_speak_of_token_t_plus_one():
    logits = torch.tensor([[[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0], [1.0, 1, 1]]], dtype=torch.float64)
    ids = torch.tensor([[1, 0, 1, 2]])
    out = token_log_probs(left_shift_padded(logits, 3), ids[:, 1:])
    assert out[0].tolist() == pytest.approx([-0.239544766222] * 3, abs=1e-9)
    batch = Batch.from_packed([4], response_mask=torch.tensor([0, 1, 1, 1]), token_ids=ids[0])
    packed = token_log_probs(batch.pack(logits[0], shift=True), batch["token_ids"])
    assert packed.tolist() == out[0].tolist()


def test_num_O1_halves_are_widened_before_the_softmax():
    logits = torch.tensor([12.5, 3.25, -1.75, 0.5, 7.0, 7.0625, 2.125, -4.0], dtype=torch.bfloat16)
    out = token_log_probs(logits.expand(8, 8), torch.arange(8, dtype=torch.int32))
    want = [
        -0.00853476663277,
        -9.25853476663,
        -14.2585347666,
        -12.0085347666,
        -5.50853476663,
        -5.44603476663,
        -10.3835347666,
        -16.5085347666,
    ]
    assert out.dtype == torch.float32
    assert out.tolist() == pytest.approx(want, abs=1e-5)


@few
@given(st.integers(0, 2**31), st.floats(0.1, 5.0))
def test_log_probs_against_log_softmax(seed, temperature):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64) * 10
    ids = torch.randint(0, 7, (2, 3), generator=generator)
    want = (logits / temperature).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    assert torch.allclose(token_log_probs(logits, ids, temperature=temperature), want, atol=1e-9)


def test_log_probs_are_differentiable():
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: token_log_probs(x, torch.tensor([0, 3, 1]), temperature=0.7), [logits])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_greedy_sampling_has_no_log_probabilities(temperature):
    with pytest.raises(ColumnError, match=f"the temperature is {temperature}; log-probabilities need one above 0"):
        token_log_probs(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), temperature=temperature)

"""Who samples: the contract, the processed distribution, staleness, and conversations with a tool."""

import math
import random

import pytest
import torch
from rollout_contract import RolloutContract

from lossary.models import GPT, Chars
from lossary.tasks import calculator
from lossary.trainer.data import from_rollouts
from lossary.trainer.rollout import Rollout, SamplingParams, TorchBackend, processed
from lossary.trainer.staleness import Snapshots
from lossary.trainer.turns import converse

CHARS = Chars()


class TestTorch(RolloutContract):
    prompts = [[1, 5, 6], [1, 7]]  # noqa: RUF012
    sampling = SamplingParams(5, temperature=0.8, top_k=9, top_p=0.9)

    def backend(self):
        model = GPT(CHARS.vocab_size, d_model=16, layers=1, heads=2)
        return TorchBackend(model, pad_id=0, eos_id=2), list(model.state_dict().items())


class Engine:
    """A stand-in for an inference server: draws ids from a stream of its own."""

    version = 0

    def update_weights(self, named_tensors, version):
        list(named_tensors)
        self.version = version

    def generate(self, prompts, n, sampling, seed):
        stream, found = random.Random(seed), []
        for prompt in (p for p in prompts for _ in range(n)):
            ids = [stream.randrange(3, 9) for _ in range(sampling.max_new_tokens - 1)] + [2]
            found.append(Rollout(prompt, ids, [-math.log(6)] * len(ids), "stop", self.version))
        return found


class TestEngine(RolloutContract):
    prompts = [[1, 5, 6], [1, 7]]  # noqa: RUF012
    sampling = SamplingParams(4)

    def backend(self):
        return Engine(), [("w", torch.zeros(1))]


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    got = processed(p.log(), SamplingParams(1, top_p=0.7)).exp()
    assert torch.allclose(got, torch.tensor([[0.625, 0.375, 0, 0]]))


def test_top_k_is_taken_after_the_temperature_and_sums_to_one():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    got = processed(p.log(), SamplingParams(1, temperature=0.5, top_k=2)).exp()
    assert torch.allclose(got, torch.tensor([[0.25, 0.09, 0, 0]]) / 0.34)


def test_the_likeliest_token_always_stays():
    assert processed(torch.randn(3, 8), SamplingParams(1, top_p=1e-6)).exp().max(-1).values.tolist() == [1, 1, 1]


@pytest.mark.parametrize("how", [{"top_p": 0}, {"top_p": 1.1}, {"top_k": 0}])
def test_sampling_out_of_bounds_is_refused(how):
    with pytest.raises(ValueError, match="top_p="):
        SamplingParams(1, **how)


def test_the_sampler_is_as_many_updates_behind_as_was_said():
    policy, snapshots, seen = torch.nn.Linear(1, 1, bias=False), Snapshots(2), []
    for step in range(5):
        torch.nn.init.constant_(policy.weight, step)
        if step == 3:  # resumed: nothing is lost
            versions, saved, snapshots = snapshots.versions, snapshots.tensors(), Snapshots(2)
            snapshots.allot(versions, policy.state_dict())
            for name, room in snapshots.tensors().items():
                room.copy_(saved[name])
        weights, version = snapshots.at(policy.state_dict(), step)
        seen.append((dict(weights)["weight"].item(), version))
    assert seen == [(0, 0), (0, 0), (0, 0), (1, 1), (2, 2)]


class Script:
    """Says what is written down for it, and notes what it heard."""

    def __init__(self, *lines):
        self.lines, self.heard = list(lines), []

    def generate(self, prompts, n, sampling, seed):
        self.heard.append(prompts)
        texts = [self.lines.pop(0) for _ in range(len(prompts) * n)]
        ids = [[*CHARS.encode(x), CHARS.eos_id] for x in texts]
        return [Rollout(p, x, [-1.0] * len(x), "stop", 0) for p, x in zip(prompts, ids, strict=True)]


def spoken(*lines, room=20):
    task = calculator()
    item = task.train_item(0)
    said = [x.format(q=item.prompt[:-1]) for x in lines]
    script = Script(*said)
    prompt = CHARS.prompt(item.prompt)
    rollouts, texts = converse(script, CHARS, task, [item], [prompt], 1, SamplingParams(room), 0)
    return task, item, script, rollouts[0], texts[0]


def test_what_the_tool_wrote_is_read_and_carries_no_loss():
    task, item, script, r, text = spoken("{q}=", "1")
    call = [*CHARS.encode(item.prompt[:-1] + "="), CHARS.eos_id]
    result = CHARS.encode(item.answer + ">")
    assert script.heard[1] == [[*r.prompt_ids, *call, *result]]
    assert r.loss_mask == [True] * len(call) + [False] * len(result) + [True, True]
    assert text == "1"
    assert task.reward(item, item.answer) == 1
    inputs, batch = from_rollouts([r], [1.0], 1, CHARS.pad_id)
    assert batch["token_ids"].tolist() == call + CHARS.encode("1") + [CHARS.eos_id]
    assert torch.isfinite(batch["rollout_log_prob"]).all()
    assert inputs.width == len(call) + len(result) + 2


def test_an_answer_without_a_call_is_one_turn():
    _, _, script, r, text = spoken("12")
    assert (len(script.heard), r.loss_mask, text) == (1, None, "12")


def test_a_call_without_room_for_its_result_is_cut_off():
    assert spoken("{q}=", room=8)[3].finish_reason == "length"

"""The trainer's parts: tasks with a held-out set, characters, the small GPT and who samples from it."""

import random

import pytest
import torch

from lossary import catalog
from lossary.models import GPT, Chars, UnknownCharacter
from lossary.tasks import Item, add_numbers, sort_letters, spell_backward
from lossary.trainer.evaluation import accuracy
from lossary.trainer.randomness import states, take_up
from lossary.trainer.ranks import Group
from lossary.trainer.rollout import Rollout, SamplingParams, TorchBackend, left_pad

TASKS = {"add-numbers": add_numbers, "sort-letters": sort_letters, "spell-backward": spell_backward}
CHARS = Chars()


def gpt(**how):
    return GPT(CHARS.vocab_size, d_model=16, layers=2, heads=2, **how)


def backend(model=None):
    return TorchBackend(model or gpt(), pad_id=CHARS.pad_id, eos_id=CHARS.eos_id)


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_task_of_the_catalog_is_looked_at_here():
    assert {c.name for c in catalog() if c.kind.name == "task"} == set(TASKS) | {
        "calculator",
        "jsonl",
        "reasoning-gym",
    }  # those: test_tasks, test_rollouts


@pytest.mark.parametrize("name", TASKS)
def test_what_is_held_out_is_never_trained_on(name):
    task = TASKS[name]()
    held_out = task.eval_items(300)
    assert len({i.prompt for i in held_out}) == len(held_out) == 300
    asked = [task.train_item(i) for i in range(2000)]
    assert not {i.prompt for i in asked} & {i.prompt for i in held_out}
    if name != "add-numbers":  # many sums have one answer; a word or a sorted row of letters is its own
        assert not {i.answer for i in asked} & {i.answer for i in held_out}


def test_a_sum_is_held_out_both_ways_round():
    task = add_numbers(digits=1)
    held_out, asked = (
        {frozenset(i.prompt[:-1].split("+")) for i in items} for items in (task.eval_items(50), map(task.train_item, range(500)))
    )
    assert held_out
    assert not held_out & asked


@pytest.mark.parametrize("name", TASKS)
def test_items_follow_from_seed_and_place_alone(name):
    task, again, other = TASKS[name](seed=1), TASKS[name](seed=1), TASKS[name](seed=2)
    random.seed(0)
    first = [task.train_item(i) for i in range(20)]
    assert first == [again.train_item(i) for i in reversed(range(20))][::-1]
    assert first != [other.train_item(i) for i in range(20)]
    assert task.eval_items(20) == other.eval_items(20) == task.eval_items(40)[:20]


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_right_and_fit(name):
    task = TASKS[name]()
    for item in [task.train_item(i) for i in range(200)]:
        prompt = item.prompt.strip()
        right = {
            "add-numbers": lambda p: str(sum(map(int, p[:-1].split("+")))), "sort-letters": lambda p: "".join(sorted(p[:-1])),
            "spell-backward": lambda p: p[:-1][::-1],
        }[name](prompt)  # fmt: skip
        assert item.answer == right
        assert len(item.answer) < task.max_new_tokens  # the end of sequence has room
        assert CHARS.decode(CHARS.encode(item.prompt + item.answer)) == item.prompt + item.answer
        assert [task.reward(item, c) for c in (item.answer, item.answer + "a", item.answer[:-1], "")] == [1.0, 0.0, 0.0, 0.0]


def test_a_small_task_gives_all_that_it_has():
    assert 0 < len(add_numbers(digits=1).eval_items(1000)) < 100


def test_every_length_of_word_is_as_likely():
    lengths = [len(spell_backward(min_letters=3, max_letters=6).train_item(i).answer) for i in range(1000)]
    assert all(200 < lengths.count(n) < 300 for n in (3, 4, 5, 6))


# ── characters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_characters_are_numbered_for_good():
    assert (CHARS.pad_id, CHARS.bos_id, CHARS.eos_id, CHARS.encode("az09 ")) == (0, 1, 2, [3, 28, 29, 38, 39])
    assert CHARS.vocab_size == 3 + len(CHARS.alphabet)
    with pytest.raises(UnknownCharacter, match="'ä' in 'bär'"):
        CHARS.encode("bär")


def test_text_ends_at_the_end_and_hides_no_special():
    assert CHARS.decode([3, 4, CHARS.eos_id, 5]) == "ab"
    assert CHARS.decode([3, CHARS.pad_id, CHARS.bos_id]) == "a<pad><bos>"


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prompts_are_padded_on_the_left():
    ids, mask = left_pad([[5], [6, 7, 8], []], 0)
    assert ids.tolist() == [[0, 0, 5], [6, 7, 8], [0, 0, 0]]
    assert mask.int().tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 0]]


def test_padding_on_either_side_changes_nothing():
    model = gpt()
    ids, mask = torch.tensor([[1, 5, 6, 7]]), torch.ones(1, 4)
    plain = model(ids, mask)
    left = model(torch.tensor([[9, 9, 1, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1, 1]]))[:, 2:]
    right = model(torch.tensor([[1, 5, 6, 7, 9]]), torch.tensor([[1, 1, 1, 1, 0]]))[:, :4]
    torch.testing.assert_close(left, plain, rtol=0, atol=1e-5)
    torch.testing.assert_close(right, plain, rtol=0, atol=1e-5)
    assert model(ids, torch.zeros(1, 4)).isfinite().all()


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="33 columns do not fit a context of 32"):
        gpt()(torch.zeros(1, 33, dtype=torch.long), torch.ones(1, 33))


def test_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    one = gpt(seed=3)
    torch.manual_seed(2)
    same, other = gpt(seed=3), gpt(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    tied = gpt(tied=True)
    assert tied.lm_head.weight is tied.embedding.weight


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_what_is_sampled_is_told_with_its_log_prob(temperature):
    model, prompts = gpt(), [[1, 5, 6], [1, 7, 8, 9, 10]]
    rollouts = backend(model).generate(prompts, 3, SamplingParams(5, temperature=temperature), seed=4)
    assert [r.prompt_ids for r in rollouts] == [p for p in prompts for _ in range(3)]
    for r in rollouts:
        ids = torch.tensor([r.prompt_ids + r.completion_ids])
        logits = model.lm_head(model(ids, torch.ones_like(ids)))[0, len(r.prompt_ids) - 1 : -1] / temperature
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(r.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(r.log_probs), wanted, rtol=0, atol=1e-4)
        assert r.finish_reason == ("stop" if r.completion_ids[-1] == CHARS.eos_id else "length")
        assert CHARS.eos_id not in r.completion_ids[:-1]


def test_samples_follow_from_the_seed():
    b, sampling = backend(), SamplingParams(6)
    first = b.generate([[1, 5]], 4, sampling, seed=1)
    torch.manual_seed(9)
    assert b.generate([[1, 5]], 4, sampling, seed=1) == first
    assert b.generate([[1, 5]], 4, sampling, seed=2) != first
    assert len({tuple(r.completion_ids) for r in first}) > 1


def test_greedy_answers_are_all_the_same_and_certain():
    rollouts = backend().generate([[1, 5]], 3, SamplingParams(4, greedy=True), seed=1)
    assert rollouts[0] == rollouts[1] == rollouts[2]
    assert set(rollouts[0].log_probs) == {0.0}


def test_weights_are_copied_with_their_version():
    model = gpt()
    b, sampling = backend(model), SamplingParams(4)
    before = b.generate([[1, 5]], 2, sampling, seed=1)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    assert b.generate([[1, 5]], 2, sampling, seed=1) == before
    b.update_weights(model.state_dict().items(), 7)
    after = b.generate([[1, 5]], 2, sampling, seed=1)
    assert after != before
    assert {r.policy_version for r in after} == {7}
    with pytest.raises(RuntimeError, match=r"lm_head\.weight"):
        b.update_weights([(n, x) for n, x in model.state_dict().items() if n != "lm_head.weight"], 8)


@pytest.mark.parametrize(
    ("how", "say"), [({"max_new_tokens": 0}, "at least one token"), ({"max_new_tokens": 1, "temperature": 0}, "say greedy=True")]
)
def test_sampling_that_cannot_be_is_refused(how, say):
    with pytest.raises(ValueError, match=say):
        SamplingParams(**how)


def test_accuracy_is_the_share_of_right_greedy_answers():
    class Oracle:
        """Answers every other question."""

        def __init__(self, items):
            self.items, self.sampling = items, None

        def generate(self, prompts, n, sampling, seed):
            self.sampling = sampling
            said = [item.answer if i % 2 else "no" for i, item in enumerate(self.items)]
            return [Rollout(p, [*CHARS.encode(s), CHARS.eos_id], [0.0], "stop", 0) for p, s in zip(prompts, said, strict=True)]

    task = sort_letters()
    oracle = Oracle(task.eval_items(10))
    assert accuracy(oracle, task, CHARS, 10, 64) == 0.5
    assert oracle.sampling.greedy
    assert isinstance(task.eval_items(1)[0], Item)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_every_rank_takes_up_a_generator_of_its_own_row(rank):
    group, rows = Group(), []
    for seed in range(3):
        torch.manual_seed(seed)
        rows.append((states(group), torch.rand(3).tolist()))
    group.rank = rank
    take_up({name: torch.cat([row[name] for row, _ in rows]) for name in rows[0][0]}, group)
    assert torch.rand(3).tolist() == rows[rank % 3][1]

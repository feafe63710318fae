"""Tasks from files and generators: what is asked, what is held out, and what is said of a file that is wrong."""

import json

import pytest

from lossary.tasks import Item, jsonl, reasoning_gym


def written(path, lines):
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return str(path)


def sums(n, begin=0):
    return [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(begin, begin + n)]


def test_a_file_is_asked_line_by_line_and_a_part_of_it_held_out(tmp_path):
    task = jsonl(path=written(tmp_path / "a.jsonl", sums(40)))
    asked, kept = {task.train_item(i).prompt for i in range(500)}, {i.prompt for i in task.eval_items(99)}
    assert len(asked | kept) == 40
    assert not asked & kept
    assert [task.train_item(i) for i in range(9)] == [task.train_item(i) for i in range(9)]


@pytest.mark.parametrize(("reward", "completion", "worth"), [
    ("exact", " 8 ", 1), ("exact", "It is 8", 0), ("contains", "It is 8", 1), ("last-number", "4+4 is 8.", 1), ("last-number", "none", 0),
])  # fmt: skip
def test_rewards_by_name(tmp_path, reward, completion, worth):
    task = jsonl(path=written(tmp_path / "a.jsonl", sums(40)), reward=reward)
    item = Item("7+1=", "8")
    assert task.reward(item, completion) == worth


@pytest.mark.parametrize(("lines", "said"), [
    ([*sums(2), "{"], r":3:\d+: no JSON"), ([*sums(1), "3"], ":2: expected an object"), ([{"promt": "a", "answer": "b"}], ":1: has no 'prompt' Did you mean 'promt'"),
    ([{"prompt": ["a"], "answer": "b"}], ":1: 'prompt' is list"), ([], "has no lines"), (sums(1), "too few"),
    ([*sums(1), {"prompt": "0+1=", "answer": "7"}], ":2: the question .* was answered otherwise"),
])  # fmt: skip
def test_a_wrong_file_is_told_by_its_line(tmp_path, lines, said):
    with pytest.raises(ValueError, match=said):
        jsonl(path=written(tmp_path / "a.jsonl", lines))


def test_held_out_lines_must_not_be_trained_on(tmp_path):
    with pytest.raises(ValueError, match="share 1 questions"):
        jsonl(path=written(tmp_path / "a.jsonl", sums(9)), held_out=written(tmp_path / "b.jsonl", sums(9, begin=8)))


def test_an_unknown_reward_names_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'last-number'"):
        jsonl(path=written(tmp_path / "a.jsonl", sums(40)), reward="last_numbr")


def test_a_generator_holds_out_what_it_never_trains_on():
    pytest.importorskip("reasoning_gym", reason="pip install 'lossary[tasks]'")
    task = reasoning_gym(name="chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, answer="last-integer")
    held = task.eval_items(20)
    assert len({i.prompt for i in held}) == len(held) > 5
    assert not {i.prompt for i in held} & {task.train_item(i).prompt for i in range(300)}
    assert [task.reward(i, f"It is {i.answer}.") for i in held] == [1.0] * len(held)
    with pytest.raises(ValueError, match="Did you mean 'chain_sum'"):
        reasoning_gym(name="chain_sums")


@pytest.mark.parametrize(("name", "say"), [("os:system", "belongs to Python itself"), ("nowhere_at_all:f", "cannot be imported")])
def test_a_reward_by_import_path_is_no_way_around_what_a_recipe_may_name(tmp_path, name, say):
    (tmp_path / "q.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    with pytest.raises(ValueError, match=say):
        jsonl(path=str(tmp_path / "q.jsonl"), reward=name)

"""The judge errs as often as it says, always in the same way, and fills the column that the objectives read."""

import pytest

from lossary_doubt import doubtful_judge


def test_it_says_how_often_it_looks():
    judge = doubtful_judge(noise=0.5)
    trusts = {len(i.answer): judge.columns["trust"](i, "") for i in judge.eval_items(200)}
    assert trusts == {3: 0.75, 4: pytest.approx(2 / 3), 5: pytest.approx(0.5833, abs=1e-4), 6: 0.5}


def test_it_errs_as_often_as_it_says():
    judge = doubtful_judge(noise=1.0, min_letters=6, max_letters=6)
    items = [judge.train_item(i) for i in range(400)]
    right = sum(judge.reward(i, i.answer) for i in items) / len(items)
    assert 0.4 < right < 0.6
    assert [judge.reward(i, i.answer) for i in items] == [judge.reward(i, i.answer) for i in items]


def test_without_noise_it_is_honest():
    judge = doubtful_judge(noise=0.0)
    items = judge.eval_items(50)
    assert all(judge.reward(i, i.answer) == 1 and judge.reward(i, "x") == 0 for i in items)
    assert {judge.columns["trust"](i, "x") for i in items} == {1.0}

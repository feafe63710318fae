"""The alarm rings once, for a reward that rises while the accuracy falls, and for nothing else."""

import logging

import lossary
import pytest

from lossary_doubt import Alarm


def events(*pairs):
    return [{"event": "step", "step": i, "reward": r, "eval/accuracy": a} for i, (r, a) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("pairs", "rings"),
    [
        ([(0.2, 0.5), (0.4, 0.6), (0.8, 0.3), (0.9, 0.1)], 1),
        ([(0.2, 0.5), (0.4, 0.6), (0.8, 0.7)], 0),
        ([(0.2, 0.5), (0.1, 0.2)], 0),
        ([(0.2, 0.5), (0.9, 0.48)], 0),
        ([(0.2, 0.5), (0.9, None)], 0),
        ([(None, 0.5), (0.9, 0.1)], 0),
    ],
)
def test_it_rings(pairs, rings, caplog):
    alarm = Alarm()
    for event in events(*pairs):
        alarm.hear({k: v for k, v in event.items() if v is not None})
    assert len(caplog.messages) == rings


def test_another_run_begins_at_step_0(caplog):
    alarm = Alarm()
    for event in events((0.2, 0.5), (0.9, 0.1)) * 2:
        alarm.hear(event)
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("step 1: the reward rose from 0.200 to 0.900 while")


def test_lossary_tells_it_of_events(caplog):
    with caplog.at_level(logging.WARNING):
        for event in events((0.2, 0.5), (0.9, 0.1)):
            lossary.catalog().announce(event)
    assert len(caplog.messages) == 1

"""The kit against components that are wrong: the right check sees each fault, and sees nothing in the component without it."""

import re
from dataclasses import replace

import pytest
from mutants.planted import MUTANTS, Mutant, component

from lossary.conformance import Broken, NotExamined, checks_for


def checks(of, old="", new=""):
    return {str(c): replace(c, shrink=False) for c in checks_for(component(of, old, new))}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_fault_is_seen_by_the_check_that_it_belongs_to(mutant: Mutant):
    check = checks(mutant.of, mutant.old, mutant.new)[mutant.check]
    with pytest.raises(Broken) as caught:
        check()
    assert not isinstance(caught.value, NotExamined)
    text = str(caught.value)
    file, _, function = mutant.of.partition(".")
    assert re.match(rf"\w+ '{function.replace('_', '-')}' \({file}\.py:\d+\) breaks '{mutant.check}'\n", text)
    assert all(f"\n  {word} " in text for word in ("promised", "expected", "found", "usual cause"))


@pytest.mark.parametrize("of", sorted({m.of for m in MUTANTS}))
def test_without_the_fault_every_check_passes(of):
    for check in checks(of).values():
        check()


def test_there_are_many_and_every_check_has_caught_one():
    assert len(MUTANTS) >= 30
    assert len({(m.of, m.old, m.new, m.check) for m in MUTANTS}) == len(MUTANTS)
    seen = {m.check for m in MUTANTS}
    asked = {name for of in {m.of for m in MUTANTS} for name in checks(of)}
    assert asked - seen == {"signature"}  # a column that nobody declared: test_conformance.py

"""What lossary asks of every component, asked of ours."""

import pytest
from lossary.conformance import checks_for

from lossary_doubt import TRUST, doubt_clip, rollback, trusted_baseline, trusted_mean

CHECKS = [
    pytest.param(check, id=f"{made.__name__}-{check}")
    for made in (doubt_clip, rollback, trusted_baseline, trusted_mean)
    for check in checks_for(made, columns=[TRUST])
]


@pytest.mark.parametrize("check", CHECKS)
def test_conforms(check):
    check()

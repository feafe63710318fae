"""Which function reads a policy record: by its mode where the mode says it all, else by its framework."""

from golden import policy_ratio, policy_weights
from golden.policy_plans import PLANS, Plan
from golden.records import Record, Unmapped

MODES = {**policy_ratio.MODES, **policy_weights.MODES}


def plan_of(r: Record) -> Plan:
    read = MODES.get(r["mode"], PLANS.get(r["framework"]))
    if read is None:
        raise Unmapped(r)
    return read(r)

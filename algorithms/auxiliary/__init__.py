"""Further losses of the actor, beside the policy loss."""

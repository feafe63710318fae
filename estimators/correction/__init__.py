"""Corrections against the mismatch between the policy that sampled and the one that is trained, one short file each."""

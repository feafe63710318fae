"""Weights and selections against a mismatch between who sampled and who is trained."""

"""Weights and selections of tokens, against a mismatch or for a purpose: one file per correction."""

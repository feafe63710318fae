"""Estimates of KL(policy || reference) from the log-probabilities of sampled tokens."""

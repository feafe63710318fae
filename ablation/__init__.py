"""Ablations: one recipe varied along some paths, every variant trained with every seed, and what may be said of the difference."""

"""How much better than expected a token or a sequence was."""

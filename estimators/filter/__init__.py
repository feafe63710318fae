"""Which sequences stay."""

"""What is done to a reward before anyone compares it."""

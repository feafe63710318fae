"""What trains the critic: one file per value loss."""

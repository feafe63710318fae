"""What trains the actor: one file per policy loss."""

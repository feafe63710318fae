"""Questions to ask of a batch, of a loss and of a run: input checks, localisation, dump and replay, forensics."""

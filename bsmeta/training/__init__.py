"""The one training loop and what it stands on: processes, optimizer, checkpoints, run folder."""

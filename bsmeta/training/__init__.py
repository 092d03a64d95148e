"""The training loop and what it is built on: processes, optimizer, checkpoints, run folder."""

"""The training loop and its foundations: processes, optimizer, checkpoints, run folder."""

"""Checkpoints, and the files in them: shards of tensors, random states, the trainer's state."""

"""Makes a transformers model faster and smaller in memory, without changing what it computes.

Used by the tasks, on the model itself, before any engine wraps it.
"""

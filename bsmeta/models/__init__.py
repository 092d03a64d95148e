"""How a transformers model is made to run fast and within memory; what it computes stays the same.

Used by the tasks, on the model itself, before any engine wraps it.
"""

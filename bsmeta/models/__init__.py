"""Loads the weights of models, and makes transformers models faster and smaller in memory.

Used by the tasks, on the model itself, before any engine wraps it.
"""

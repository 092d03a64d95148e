"""Evaluation: what metadata does to a model, in bits per byte over identical text bytes."""

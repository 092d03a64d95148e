"""Evaluates language models by bits per byte, with and without metadata."""

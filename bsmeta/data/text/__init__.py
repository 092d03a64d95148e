"""Turns text into tokens: the tokenizer and its backends, encoding with masks, and chunks."""

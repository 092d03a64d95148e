"""Spelling errors: detection per word or text, and correction, on artificially misspelt text."""

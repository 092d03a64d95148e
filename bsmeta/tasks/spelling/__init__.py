"""Spelling errors: detection per word or text, and correction, on artificially misspelled text."""

"""Parses HTML: character set, text with its tags, JSON-LD; makes pages inert for the report."""

"""Texts of a table classified by a label: CSV -> SQLite -> chunks -> model."""

"""Parses pages: markup, character sets, JSON-LD; the columns that only need the page."""

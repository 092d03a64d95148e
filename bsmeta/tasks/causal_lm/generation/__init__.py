"""Generates text under metadata, and infers the metadata of a text (`generate.py`)."""

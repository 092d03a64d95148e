"""Generates text from metadata, and infers metadata from text, with a trained model."""

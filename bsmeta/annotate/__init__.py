"""Converts raw pages to shards of text with metadata, which training reads directly."""

"""Language modeling on text with metadata."""

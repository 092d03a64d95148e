"""Language modelling on text with metadata."""

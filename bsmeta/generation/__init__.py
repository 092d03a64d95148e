"""Text under given metadata, and metadata from given text, with a trained model."""

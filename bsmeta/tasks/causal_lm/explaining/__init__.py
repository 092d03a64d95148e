"""Shows documents as training sees them (`explain.py`)."""

"""The processes of a run: how they start, communicate, fail together, and share files."""

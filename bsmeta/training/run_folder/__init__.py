"""The folder of a run: lock, status, logs, and where its files are kept."""

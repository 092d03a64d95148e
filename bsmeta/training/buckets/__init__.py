"""Buckets that can hold a run: rules that all stores share, and a client for each store."""

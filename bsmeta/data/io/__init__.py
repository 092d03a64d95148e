"""Reads bytes and lines of shards: local and remote files, compression, access points."""

"""Reads pages from WARC files, lines of JSON, Parquet and shards."""

"""Lists input files, and reads pages from them: WARC, JSON lines and Parquet."""

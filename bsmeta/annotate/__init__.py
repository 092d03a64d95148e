"""Converts raw pages to shards of text with metadata, which training reads directly.

`inputs` reads pages, `html` parses them, the annotators (listed in `plan`) make the columns, `pool`
runs them in processes, `shard` writes the rows, and `duplicates` finds pages to leave out.
"""

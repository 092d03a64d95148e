"""From shards to micro-batches.

`io` reads the lines of shards, `text` encodes documents, `stream` yields the endless, deterministic
training stream for language modeling, and `table` the rows of a finite table in epochs. `loader`
runs loader processes, and `batch` defines what a stream yields.
"""

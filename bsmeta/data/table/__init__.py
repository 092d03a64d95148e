"""Examples with random access: a store of rows, the order of their steps, and the stream of a rank.

For tasks whose examples are rows of a table, as `bsmeta.data.stream` is for an endless corpus.
"""

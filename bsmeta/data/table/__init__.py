"""Examples with random access: a store of rows, their order in steps, and the stream of a rank.

For tasks whose examples are rows of a table; `bsmeta.data.stream` is for an endless corpus.
"""

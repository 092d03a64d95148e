"""Reads examples with random access: a store of rows, their order in steps, and a rank's stream.

For tasks whose examples are rows of a table; `bsmeta.data.stream` is for an endless corpus.
"""

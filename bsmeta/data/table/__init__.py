"""Reads examples with random access: a store of rows, their order in steps, and a rank's stream.

Tasks use this for examples that are rows of a table; `bsmeta.data.stream` is for endless corpora.
"""

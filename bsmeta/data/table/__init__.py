"""Reads tables: their rows, stores of rows with random access, and the steps of an epoch.

Tasks use this package if their examples are rows of a table; `bsmeta.data.stream` is for endless
corpora.
"""

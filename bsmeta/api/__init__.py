"""The Python interface: `bsmeta.open_run`, `load`, `render`, `stream`, and their results.

It may import every other part of the package except the programs, some of which use it.
`bsmeta/__init__.py` imports a module of this package when one of its names is first used.
"""

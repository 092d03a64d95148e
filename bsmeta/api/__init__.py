"""The Python interface: what `bsmeta.open_run`, `load`, `render` and `stream` return.

Above everything but the programs, some of which are built on it. `bsmeta/__init__.py` imports a
module of this package when one of its names is first used.
"""

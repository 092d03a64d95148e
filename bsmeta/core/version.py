"""The version of the package, which `bsmeta.__version__` returns."""

__version__ = "0.1.0"

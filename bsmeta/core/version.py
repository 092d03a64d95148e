"""The version of the package, exported as `bsmeta.__version__`."""

__version__ = "0.1.0"

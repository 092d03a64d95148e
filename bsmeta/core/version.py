"""The version of the package, which is also `bsmeta.__version__`."""

VERSION = "0.1.0"

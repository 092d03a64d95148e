"""bsmeta: language models trained on text together with its metadata.

An entry point run as a script (`python bsmeta/train.py`) has this folder first on `sys.path`, so
that `bsmeta/evaluate.py` would shadow the `evaluate` library and `bsmeta/config` anything called
`config`. Every entry point imports this package before anything else; the folder is removed from
the path only here.

MKL is set to give a matrix product the same bits wherever its operands lie in memory. On some
processors it does not do so by default, and two equal runs on one machine would differ. It reads
the variable at its first call.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.getcwd()) != _HERE]

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.1.0"

"""Runs a program of the package under the umask of the environment variable UMASK (octal)."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    os.umask(int(os.environ["UMASK"], 8))
    program = sys.argv.pop(1)
    sys.argv[0] = program
    runpy.run_path(program, run_name="__main__")

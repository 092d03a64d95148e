"""Runs a module under two defaults of Python 3.14, with an older Python.

python -m tests.python_3_14 MODULE ARGUMENT...

argparse formats each help text when its option is added (`_check_help` of its 3.14), and processes
are started by a server (`forkserver`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import runpy
import sys
from typing import Any

add_argument = argparse.ArgumentParser.add_argument


def expand_help(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    if action.help:
        try:
            assert "%" not in action.help or parser._get_formatter()._expand_help(action)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError("badly formed help string") from error


def add_checked_argument(
    parser: argparse.ArgumentParser, *names: Any, **options: Any
) -> argparse.Action:
    action = add_argument(parser, *names, **options)
    getattr(parser, "_check_help", expand_help.__get__(parser))(action)
    return action


def main() -> None:
    # As in 3.14, the check is a method, which our own class may replace.
    if sys.version_info < (3, 14):
        argparse._ActionsContainer._check_help = expand_help  # type: ignore[attr-defined]
        argparse.ArgumentParser.add_argument = add_checked_argument  # type: ignore[method-assign]
        multiprocessing.set_start_method("forkserver")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

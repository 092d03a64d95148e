"""A program that prints a secret from its environment; its first argument names the way."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable

EARLY = logging.StreamHandler()  # of a library that was imported before the program began
logging.getLogger("early").addHandler(EARLY)

from bsmeta.core.process import run_and_report  # noqa: E402

SECRET = os.environ["DB_PASS"]


def fail() -> None:
    """Raises an error that nothing catches."""
    raise RuntimeError(f"401 for {SECRET}")


def print_by_thread() -> None:
    """Ends a thread with an error."""
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def print_by_child() -> None:
    """Ends a forked process with an error."""
    process = multiprocessing.get_context("fork").Process(target=fail)
    process.start()
    process.join()


def print_after_the_end() -> None:
    """Raises an error while an object is deleted, which the interpreter reports."""

    class Last:
        def __del__(self) -> None:
            fail()

    Last()


def print_through_a_recorder() -> None:
    """Replaces `write` of standard error, as a tracker does, and records its input."""
    kept: list[str] = []
    write = sys.stderr.write

    def record(text: str) -> int:
        kept.append(text)
        return write(text)

    sys.stderr.write = record  # type: ignore[method-assign]
    print(f"first {SECRET}", file=sys.stderr)
    sys.stderr.writelines([f"second {SECRET}\n"])
    print("kept:", *map(repr, kept))


WAYS: dict[str, Callable[[], object]] = {
    "error": fail,
    "thread": print_by_thread,
    "child": print_by_child,
    "deletion": print_after_the_end,
    "warning": lambda: warnings.warn(f"with {SECRET}", stacklevel=1),
    "early log": lambda: logging.getLogger("early").error("with %s", SECRET),
    "last log": lambda: logging.getLogger("none").error("with %s", SECRET),
    "output": lambda: print(f"with {SECRET}, with ghp_{'a1' * 18}"),
    "errors": lambda: print(f"with {SECRET}, with ghp_{'a1' * 18}", file=sys.stderr),
    "bytes": lambda: sys.stdout.buffer.write(f"with {SECRET}".encode()),
    "recorder": print_through_a_recorder,
}

if __name__ == "__main__":
    code = run_and_report(lambda: WAYS[sys.argv[1]]() and None)
    if sys.argv[1] == "error":
        fail()  # also outside of what reports errors, as the last error of the interpreter
    sys.exit(code)

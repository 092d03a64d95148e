"""Time limits of the start, which end a process with the stacks of its threads."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any


def limit_time(seconds: float, activity: str) -> AbstractContextManager[None]:
    """Context that ends the process, with all stacks, if the block takes longer than `seconds`.

    It covers the start, before there is a `Watchdog`: Gloo may wait forever while two processes
    connect, regardless of its timeout (seen once with torch 2.13 on a busy machine, on both sides).
    """

    def give_up() -> None:
        try:
            print_stacks(
                f"{activity} took more than {seconds:g} s (distributed_timeout_s); start the run "
                "again. The stacks of this process:"
            )
        finally:
            os._exit(1)

    return call_after(seconds, give_up)


@contextmanager
def call_after(seconds: float, action: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Context that calls `action` in a thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, action, arguments)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_stacks(message: str) -> None:
    """Prints a message and the stacks of all threads, unless standard error is closed."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()

"""How tests wait: for an event, however late a busy machine brings it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

# Only what hangs takes so long: the programs that tests start take seconds at rest, and minutes on
# a machine that has ten times more to do. The limit of a whole test is in pyproject.toml.
STUCK_S = 1800
POLL_S = 0.01


class Process(Protocol):
    """The interface of a process for `wait_until`."""

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""

    def communicate(self) -> Any:
        """Returns the output, at the end."""


def wait_until(reached: Callable[[], bool], *processes: Process) -> None:
    """Waits for an event; fails if one of the processes that bring it about ends before."""
    limit = time.monotonic() + STUCK_S
    while not reached():
        for process in processes:
            assert process.poll() is None or reached(), process.communicate()
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(POLL_S)

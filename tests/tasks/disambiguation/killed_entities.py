"""`entities.py`, but it kills itself before its KILL_AT-th change of a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kill_before_call(number: int) -> None:
    """Makes this process kill itself before a call that changes what is on the disk."""
    calls = 0

    def count_calls(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return counted

    os.fsync = count_calls(os.fsync)
    Path.replace = count_calls(Path.replace)  # type: ignore[method-assign]
    Path.unlink = count_calls(Path.unlink)  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta import entities
    from bsmeta.config.entry_point import run_entry_point
    from bsmeta.config.programs.entity_table import EntitiesConfig

    kill_before_call(int(os.environ["KILL_AT"]))
    run_entry_point(entities.main, EntitiesConfig, "entities")

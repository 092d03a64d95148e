"""Exit codes, and the file from which launch scripts read the code of the first failure."""

from __future__ import annotations

import os
from pathlib import Path

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# SIGTERM asks a job to end; 75 (EX_TEMPFAIL of sysexits.h) asks a scheduler to requeue it.
EXIT_PREEMPTED = 75
EXIT_NO_READER = 141  # the code that a shell reports for a program ended by SIGPIPE


def note_exit_code(code: int) -> None:
    """Writes the exit code of a failure to the file of the launch scripts, if there is one.

    A launcher itself always exits with 1. Only the first failure is written: it makes the launcher
    terminate the other processes.
    """
    path = os.environ.get("BSMETA_EXIT_CODE_FILE")
    if path is not None and code != 0:
        with Path(path).open("a+") as file:
            if file.tell() == 0:
                file.write(f"{code}\n")

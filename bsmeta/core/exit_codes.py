"""Exit codes, and the file through which launch scripts learn the code of the first failure."""

from __future__ import annotations

import os
from pathlib import Path

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# SIGTERM asks a job to end; 75 (EX_TEMPFAIL of sysexits.h) asks a scheduler to requeue it.
EXIT_PREEMPTED = 75
EXIT_NO_READER = 141  # the code that a shell reports for a program ended by SIGPIPE


def note_exit_code(code: int) -> None:
    """Writes the exit code of a failure for the launch scripts, as launchers always exit with 1.

    Only the first failure counts: it makes the launcher terminate the other processes.
    """
    file = os.environ.get("BSMETA_EXIT_CODE_FILE")
    if file is not None and code != 0:
        with Path(file).open("a+") as stream:
            if stream.tell() == 0:
                stream.write(f"{code}\n")

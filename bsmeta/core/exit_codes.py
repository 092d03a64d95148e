"""Exit codes, and the file in which launch scripts read the first failure's."""

from __future__ import annotations

import os
from pathlib import Path

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# SIGTERM asks a job to end; 75 (EX_TEMPFAIL of sysexits.h) asks a scheduler to requeue it.
EXIT_PREEMPTED = 75
EXIT_NO_READER = 141  # as a shell reports a program that SIGPIPE has ended


def note_exit_code(code: int) -> None:
    """Writes the exit code of a failure for the launch scripts, because launchers turn each into 1.

    Only the first failure counts: it makes the launcher terminate the other processes.
    """
    file = os.environ.get("BSMETA_EXIT_CODE_FILE")
    if file is not None and code != 0:
        with Path(file).open("a+") as stream:
            if stream.tell() == 0:
                stream.write(f"{code}\n")

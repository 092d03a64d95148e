"""How the processes of a launch end: their errors are reported, and become exit codes.

All processes of a launch run the same checks and find the same errors; a launcher terminates the
others as soon as one of them exits. So the first process of each machine reports, and the others of
that machine wait until the launcher terminates them; `rendezvous` passes the error on to the other
machines.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import yaml

from bsmeta.core.errors import CheckpointError, ConfigurationError, UserError, missing_extra
from bsmeta.core.exit_codes import (
    EXIT_FAILURE,
    EXIT_NO_READER,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    note_exit_code,
)
from bsmeta.core.files import full_disk_error, long_name_error
from bsmeta.core.rank import is_reporter, rank
from bsmeta.core.rendezvous import announce, is_connected
from bsmeta.core.secrets import redact
from bsmeta.core.signals import restore_signals
from bsmeta.core.terminal import screened_output

# How long the others wait for the report of a machine's first process: import times differ on a
# busy machine, but once the processes are connected, all see an error at the same time.
WAIT_S = 60.0
WAIT_CONNECTED_S = 10.0


def wait_for_reporter() -> None:
    """Waits until the launcher terminates this process; returns if the reporter exits too late."""
    if threading.current_thread() is threading.main_thread():
        restore_signals()  # no longer a request to save and stop
    time.sleep(WAIT_CONNECTED_S if is_connected() else WAIT_S)


@screened_output()
def exit_code(action: Callable[[], int | None]) -> int:
    """Runs `action`, reports its error if it raises one, and returns the exit code.

    If the reader of the output has ended, as `head` does, there is nothing to report. No secret is
    printed from now on.
    """
    try:
        code = action() or 0
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            # What is still buffered goes there when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_NO_READER
        return report(error)


def _has_no_reader() -> bool:
    """Whether standard output is a pipe that nothing reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def report(error: BaseException) -> int:
    """Prints an error on standard error, and returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    error = missing_extra(error) or error
    if not isinstance(error, UserError):
        error = full_disk_error(error) or long_name_error(error) or error
    if isinstance(error, yaml.YAMLError):  # also tags that would construct Python objects
        error = ConfigurationError(f"a YAML file cannot be read: {error}")
    if isinstance(error, ConfigurationError):
        if not is_reporter():  # every process of this machine has found the same error
            wait_for_reporter()
        message = f"configuration error: {error}"
    elif isinstance(error, (UserError, CheckpointError)):
        # The error may be of one process only.
        which = f"[rank {rank()}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        message = f"{which}error: {error}"
    else:
        message = "".join(traceback.format_exception(error))
    print(redact(message), file=sys.stderr, flush=True)
    announce(error)
    return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE


def stoppable(action: Callable[[], object], where: str = "") -> int:
    """Runs work that SIGTERM ends as Ctrl-C does; returns the exit code.

    Args:
        where: What the same call continues, for the message.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        action()
    except KeyboardInterrupt:
        print(f"stopped; the same call continues{where}", file=sys.stderr)
        return EXIT_PREEMPTED
    return 0


def leave(code: int) -> NoReturn:
    """Exits the process; under a launcher, without Python's own shutdown.

    Gloo's threads may still be releasing tensors when the interpreter shuts down, and then abort
    the process (measured with torch 2.13: 3 of 10 runs that had done all their work; see pytorch
    pull request 179291). Everything is on disk by now.
    """
    note_exit_code(code)
    if "WORLD_SIZE" in os.environ:  # started by a launcher, so there is a process group
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

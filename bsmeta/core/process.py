"""Ends the processes of a launch: reports their errors and returns exit codes.

All processes of a launch run the same checks and find the same errors, and a launcher terminates
the others as soon as one exits. So the first process of each machine reports an error, while the
other processes of that machine wait for their termination. `rendezvous` passes the error on to the
other machines.
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

from bsmeta.core.errors import CheckpointError, ConfigurationError, UserError, explain_missing_extra
from bsmeta.core.exit_codes import (
    EXIT_FAILURE,
    EXIT_NO_READER,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    note_exit_code,
)
from bsmeta.core.files import explain_full_disk, explain_long_name
from bsmeta.core.rank import is_reporter, read_rank
from bsmeta.core.rendezvous import announce_error, is_connected
from bsmeta.core.secrets import redact
from bsmeta.core.signals import restore_signals
from bsmeta.core.terminal import screen_output

REPORTER_WAIT_S = 60.0
"""Seconds that the other processes wait for the report of a machine's first process: on a busy
machine, import times differ."""

CONNECTED_REPORTER_WAIT_S = 10.0
"""The same once the processes are connected and see an error at the same time."""


def wait_for_termination() -> None:
    """Waits until the launcher terminates this process; returns if that takes too long."""
    if threading.current_thread() is threading.main_thread():
        restore_signals()  # a signal is no longer a request to save and stop
    time.sleep(CONNECTED_REPORTER_WAIT_S if is_connected() else REPORTER_WAIT_S)


@screen_output()
def exit_code(action: Callable[[], int | None]) -> int:
    """Runs `action`, reports its error if it raises one, and returns the exit code.

    A reader of the output that ended, as `head` does, is no error to report. From the call on, the
    process prints no secrets.
    """
    try:
        code = action() or 0
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            # The interpreter flushes the remaining buffer when it ends: let that go nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_NO_READER
        return report_error(error)


def _has_no_reader() -> bool:
    """Whether standard output is a pipe that nothing reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def report_error(error: BaseException) -> int:
    """Prints an error on standard error, announces it to other machines, and returns the exit code.

    Every process of a machine finds the same configuration error, so only one of them prints it.
    """
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE

    error = _find_user_error(error)
    if isinstance(error, ConfigurationError) and not is_reporter():
        wait_for_termination()

    print(redact(_format_error(error)), file=sys.stderr, flush=True)
    announce_error(error)
    return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE


def _find_user_error(error: BaseException) -> BaseException:
    """Returns the `UserError` that explains an error, or the error itself if there is none."""
    error = explain_missing_extra(error) or error
    if not isinstance(error, UserError):
        error = explain_full_disk(error) or explain_long_name(error) or error
    if isinstance(error, yaml.YAMLError):  # also raised for tags that construct Python objects
        error = ConfigurationError(f"a YAML file cannot be read: {error}")
    return error


def _format_error(error: BaseException) -> str:
    """Returns the message of an error; a traceback if neither a user nor a checkpoint causes it."""
    if isinstance(error, ConfigurationError):
        return f"configuration error: {error}"

    if isinstance(error, (UserError, CheckpointError)):
        # Such an error may concern one process only, so the message names its rank.
        rank_label = f"[rank {read_rank()}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        return f"{rank_label}error: {error}"

    return "".join(traceback.format_exception(error))


def run_stoppable(action: Callable[[], object], *, continues: str = "") -> int:
    """Runs work that SIGTERM ends like Ctrl-C; returns the exit code.

    Args:
        continues: The work that the same call continues, for the message; begins with a space.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        action()
    except KeyboardInterrupt:
        print(f"stopped; the same call continues {continues}".rstrip(), file=sys.stderr)
        return EXIT_PREEMPTED
    return 0


def exit_process(code: int) -> NoReturn:
    """Exits the process; under a launcher, without Python's own shutdown.

    Gloo's threads may still be releasing tensors when the interpreter shuts down, and then abort
    the process (measured with torch 2.13: 3 of 10 runs after they had done all their work; see
    pytorch pull request 179291). All results are on disk at this point.
    """
    note_exit_code(code)
    if "WORLD_SIZE" in os.environ:  # started by a launcher, so there is a process group
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

"""Ends the processes of a launch: reports their errors and returns exit codes.

All processes of a launch run the same checks and find the same errors, and as soon as one exits, a
launcher terminates the others. So the first process of each machine reports an error, while the
other processes of that machine wait to be terminated. `rendezvous` passes the error on to the other
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

from bsmeta.core.errors import CheckpointError, ConfigurationError, UserError, explain_missing_extra
from bsmeta.core.exit_codes import (
    EXIT_FAILURE,
    EXIT_NO_READER,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    note_exit_code,
)
from bsmeta.core.files import (
    explain_deleted_folder,
    explain_full_disk,
    explain_link_loop,
    explain_long_name,
)
from bsmeta.core.rank import is_reporter, read_rank
from bsmeta.core.rendezvous import announce_error, is_connected
from bsmeta.core.secrets import redact
from bsmeta.core.signals import restore_signals
from bsmeta.core.terminal import screen_output

REPORTER_WAIT_S = 60.0
"""Seconds that the other processes wait until the first one of their machine has reported; on a
busy machine, they reach an error at very different times."""

CONNECTED_REPORTER_WAIT_S = 10.0
"""The same for processes that are connected, which find an error at nearly the same time."""


def wait_for_termination() -> None:
    """Waits for the launcher to terminate this process; returns if that takes too long."""
    if threading.current_thread() is threading.main_thread():
        restore_signals()  # from now on, a signal ends the process at once
    time.sleep(CONNECTED_REPORTER_WAIT_S if is_connected() else REPORTER_WAIT_S)


@screen_output()
def run_and_report(action: Callable[[], int | None]) -> int:
    """Runs an action, reports the error if it raises one, and returns the exit code.

    That the reader of the output has ended, as `head` does, is not reported as an error. From this
    call on, the process prints no secrets.

    Args:
        action: Returns the exit code; None: 0.
    """
    try:
        code = action() or 0
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
        return code
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            # The interpreter flushes the rest of the buffer when it ends; discard that.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_NO_READER
        return report_error(error)


def _has_no_reader() -> bool:
    """Whether standard output is a pipe that nothing reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def report_error(error: BaseException) -> int:
    """Prints an error, announces it to other machines, and returns the exit code.

    Only one process of a machine prints a configuration error, because all find the same.
    """
    if isinstance(error, SystemExit):
        return _report_exit(error)

    error = _find_user_error(error)
    if isinstance(error, ConfigurationError) and not is_reporter():
        wait_for_termination()

    print(redact(_format_error(error)), file=sys.stderr, flush=True)
    announce_error(error)
    return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE


def _report_exit(request: SystemExit) -> int:
    """Prints the message of `sys.exit`, if it has one, and returns the exit code."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code
    print(redact(str(request.code)), file=sys.stderr, flush=True)
    return EXIT_FAILURE


def _find_user_error(error: BaseException) -> BaseException:
    """Returns the `UserError` that explains an error; the error itself if there is none."""
    error = explain_missing_extra(error) or error
    if not isinstance(error, UserError):
        error = (
            explain_full_disk(error)
            or explain_long_name(error)
            or explain_link_loop(error)
            or explain_deleted_folder(error)
            or error
        )
    if isinstance(error, yaml.YAMLError):  # also raised for tags that construct Python objects
        error = ConfigurationError(f"a YAML file cannot be read: {error}")
    return error


def _format_error(error: BaseException) -> str:
    """Formats an error: a message for a user or about a checkpoint, or else the traceback."""
    if isinstance(error, ConfigurationError):
        return f"configuration error: {error}"

    if isinstance(error, (UserError, CheckpointError)):
        # Such an error may concern a single process, so the message names its rank.
        rank_label = f"[rank {read_rank()}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        return f"{rank_label}error: {error}"

    return "".join(traceback.format_exception(error))


def run_stoppable(action: Callable[[], object], *, continuation: str = "") -> int:
    """Runs an action that SIGTERM ends as Ctrl-C does, and returns the exit code.

    Args:
        continuation: The words that follow "the same call continues" in the message.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        action()
    except KeyboardInterrupt:
        print(f"stopped; the same call continues {continuation}".rstrip(), file=sys.stderr)
        return EXIT_PREEMPTED
    return 0


def exit_process(code: int) -> NoReturn:
    """Exits the process; under a launcher, without the shutdown of the interpreter.

    During that shutdown, Gloo's threads may still be releasing tensors, and then abort the process
    (with torch 2.13, 3 of 10 runs after all their work; see pytorch pull request 179291). All
    results are on disk before this call.
    """
    note_exit_code(code)
    if "WORLD_SIZE" in os.environ:  # started by a launcher, so there is a process group
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

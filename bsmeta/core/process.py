"""How the processes of a launch end: signals, errors and exit codes, and which process reports.

All processes of a launch run the same checks and find the same errors; a launcher terminates the
others as soon as one of them exits. So the first process of each machine reports, and the others of
that machine wait until the launcher terminates them. A machine that refuses to start writes its
reason to the launcher's store, where the other machines, which would otherwise wait for it in vain,
read it (`meet`).

Signals ask a run to end; the death of its launcher counts as one. Before the first step there is
nothing to save: a signal ends the process at once, with a status. Afterwards it is recorded, and
all ranks act on it together after a step. If a rank is waiting for data, perhaps for minutes, the
signal ends that wait.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import yaml

from bsmeta.core.errors import (
    CheckpointError,
    ConfigurationError,
    TrainingError,
    UserError,
    missing_extra,
)
from bsmeta.core.files import full_disk_error, long_name_error
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import ignore_write_errors, screened_output

EXIT_FAILURE = 1
EXIT_USER_ERROR = 2
# SIGTERM asks a job to end; 75 (EX_TEMPFAIL of sysexits.h) asks a scheduler to requeue it.
EXIT_PREEMPTED = 75
EXIT_NO_READER = 141  # as a shell reports a program that SIGPIPE has ended

# How long the others wait for the report of a machine's first process: import times differ on a
# busy machine, but once the processes are connected, all see an error at the same time.
WAIT_S = 60.0
WAIT_CONNECTED_S = 10.0
CONNECT_S = 5.0
READ_S = 10.0
_POLL_S = 0.2
_CHECKED, _REFUSED, _READ = (f"bsmeta/start/{name}" for name in ("checked", "refused", "read"))

_LOOPBACK_FLAGS, _UP = Path("/sys/class/net/lo/flags"), 1  # IFF_UP of Linux's if.h

LAUNCHER_GONE = "the end of the launcher"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Stay ignored if they already are, as under nohup or in the background of a script.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_ALL_SIGNALS = (*_SIGNALS, *_FROM_TERMINAL)
_PR_SET_PDEATHSIG = 1  # of prctl(2)

_CHILDREN_ARE_PLAIN = threading.Event()


def rank() -> int:
    """The global rank of this process in the launch."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0  # other text is refused with the launch


@cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Logs a message, unless this process has logged it before."""
    logger.log(level, message)


def is_reporter() -> bool:
    """Whether this process reports errors that all processes of its machine find.

    Only torchrun and `accelerate launch` terminate the other processes of a machine; elsewhere
    every process reports.
    """
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    return not launched or os.environ.get("LOCAL_RANK", "0") == "0"


def checks_for_all() -> bool:
    """Whether this process checks what is the same for all processes of its launch.

    Only rank 0 where a launcher ends the others if it refuses; elsewhere every process.
    """
    return rank() == 0 or "TORCHELASTIC_RUN_ID" not in os.environ


def wait_for_reporter() -> None:
    """Waits until the launcher terminates this process; returns if the reporter exits too late."""
    if threading.current_thread() is threading.main_thread():
        _restore_signals()  # no longer a request to save and stop
    time.sleep(WAIT_CONNECTED_S if _is_connected() else WAIT_S)


def note_exit_code(code: int) -> None:
    """Writes the exit code of a failure for the launch scripts, because launchers turn each into 1.

    Only the first failure counts: it makes the launcher terminate the other processes.
    """
    file = os.environ.get("BSMETA_EXIT_CODE_FILE")
    if file is not None and code != 0:
        with Path(file).open("a+") as stream:
            if stream.tell() == 0:
                stream.write(f"{code}\n")


def listen_on_loopback() -> None:
    """Makes Gloo listen on the loopback interface if all processes are on this machine.

    Otherwise it listens at the address of the host name, where others may reach it. Whoever
    connects takes part: Gloo asks for no password, and objects that ranks exchange are pickles.
    GLOO_SOCKET_IFNAME names another interface.
    """
    size = os.environ.get("WORLD_SIZE")
    if size is None or os.environ.get("LOCAL_WORLD_SIZE") != size:
        return
    with suppress(OSError, ValueError):  # no Linux
        if int(_LOOPBACK_FLAGS.read_text(), 16) & _UP:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


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


def announce(error: BaseException) -> None:
    """Passes an error from before the start to the other machines, which wait in `meet`."""
    if not _has_several_machines() or _is_connected() or isinstance(error, RefusedElsewhere):
        return
    refusal = {
        "user": isinstance(error, UserError),
        "message": redact(f"{socket.gethostname()}: {error}"),
    }
    try:
        store = _connect(CONNECT_S)
        store.add(_READ, 1)
        store.set(_REFUSED, json.dumps(refusal))
        # Keep the store alive until all have read: it ends with the first machine's launcher.
        deadline = time.monotonic() + READ_S
        while store.add(_READ, 0) < _count("GROUP_WORLD_SIZE") and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except RuntimeError as unreachable:
        print(f"the other machines were not reached: {unreachable}", file=sys.stderr, flush=True)


class RefusedElsewhere(ConfigurationError):
    """Another machine of the launch has refused to start, and has reported why."""


def meet(timeout_s: float) -> None:
    """Blocks until the processes of all machines have passed their checks; all must call it.

    Raises:
        RefusedElsewhere: If a machine has refused the configuration.
        TrainingError: If a machine has failed otherwise, or does not connect in time.
    """
    if not _has_several_machines():
        return
    expected, deadline = _count("WORLD_SIZE"), time.monotonic() + timeout_s
    try:
        store = _connect(timeout_s)
        store.add(_CHECKED, 1)
        while (checked := store.add(_CHECKED, 0)) < expected:
            if store.check([_REFUSED]):
                if is_reporter():
                    store.add(_READ, 1)
                refusal = parse_json(store.get(_REFUSED))
                kind = RefusedElsewhere if refusal["user"] else TrainingError
                raise kind(f"another machine did not start: {refusal['message']}")
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"{checked} of {expected} processes were ready within {timeout_s:g} s "
                    "(distributed_timeout_s); the output of the other machines says more"
                )
            time.sleep(_POLL_S)
    except RuntimeError as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(
            f"the first machine ({os.environ['MASTER_ADDR']}) ended before the run began; its "
            f"output says why ({error})"
        ) from error


def _has_several_machines() -> bool:
    """Whether a launcher (torchrun's agent, which keeps a store) connects several machines."""
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agent_store and _count("GROUP_WORLD_SIZE") > 1


def _count(name: str) -> int:
    text = os.environ.get(name, "1")
    return int(text) if text.isdecimal() else 1


def _is_connected() -> bool:
    """Whether the process group exists, in which the watchdog passes errors on."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _connect(timeout_s: float) -> Any:
    """A connection to the store of the launcher on the first machine."""
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )


def hold_signals() -> None:
    """Blocks signals until the run knows its folder."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)


def release_signals() -> None:
    """Ends `hold_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL_SIGNALS)


def _restore_signals() -> None:
    for number in _ALL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    release_signals()


@contextmanager
def plain_children() -> Iterator[None]:
    """Processes that are forked inside handle signals as any program does, and end with this one.

    With the handling of a run, a pool could not end its workers: SIGTERM would be blocked in them,
    or reach the run itself through the pipe that they share with it.
    """
    _CHILDREN_ARE_PLAIN.set()
    try:
        yield
    finally:
        _CHILDREN_ARE_PLAIN.clear()


def _begin_child() -> None:
    if _CHILDREN_ARE_PLAIN.is_set():
        signal.set_wakeup_fd(-1)
        _restore_signals()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


os.register_at_fork(after_in_child=_begin_child)


class WaitEnded(BaseException):
    """A signal arrived while the run waited; not an `Exception`, or retries would catch it."""


class StopRequest:
    """Records the first signal that asks the run to end; further signals change nothing.

    Attributes:
        name: That signal, or `LAUNCHER_GONE`; None before any signal.
        leave: Called with that name, in a thread, when a signal ends the process before the first
            step: writes the status, and returns the exit code.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.leave: Callable[[str], int] | None = None
        self._is_starting = True
        self._is_waiting = False
        self._parent = 0

    def install(self, leave: Callable[[str], int], parent: int) -> None:
        """Starts to handle signals and the end of the launcher.

        Args:
            leave: See the class.
            parent: Process id of the parent when this process began.
        """
        self.leave = leave
        ignore_write_errors()
        # The main thread may be blocked in native code, waiting for other ranks, so a thread acts.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._receive, args=(reading,), daemon=True).start()
        for number in _SIGNALS:
            signal.signal(number, self._note)
        for number in _FROM_TERMINAL:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._watch_launcher(parent)
        release_signals()

    def begin(self) -> None:
        """Switches to only recording signals, because from now on there is something to save."""
        self._is_starting = False

    @contextmanager
    def ends_wait(self) -> Iterator[None]:
        """A context for a block that waits; a signal ends the wait.

        Raises:
            WaitEnded: If a signal has arrived.
        """
        try:
            self._is_waiting = True
            if self.name is not None:
                raise WaitEnded
            yield
        finally:
            self._is_waiting = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._record(number)
        if self._is_waiting:
            raise WaitEnded

    def _record(self, number: int) -> None:
        if self.name is None:
            self.name = self._name(number)

    def _name(self, number: int) -> str:
        if self._parent and os.getppid() != self._parent:
            return LAUNCHER_GONE
        return signal.Signals(number).name

    def _receive(self, numbers: int) -> None:
        while number := os.read(numbers, 1)[0]:
            if number not in _ALL_SIGNALS:
                continue  # of another handler, such as that of a DataLoader for SIGCHLD
            self._record(number)
            if self._is_starting and self.leave is not None:
                code = EXIT_FAILURE
                try:
                    code = self.leave(self._name(number))
                    note_exit_code(code)
                finally:
                    os._exit(code)

    def _watch_launcher(self, parent: int) -> None:
        """Makes the kernel send SIGTERM to this process when torchrun ends, however it is killed.

        Otherwise its processes would continue training without it, and keep the run folder locked.
        """
        self._parent = parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it has already ended
            os.kill(os.getpid(), signal.SIGTERM)

"""Handles the signals that ask a run to end; the death of its launcher counts as one.

Before the first step there is nothing to save: a signal ends the process at once, with a status.
Later a signal is only recorded, and all ranks act on it together after a step. If a rank is waiting
for data, perhaps for minutes, the signal ends that wait.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from bsmeta.core.exit_codes import EXIT_FAILURE, note_exit_code
from bsmeta.core.terminal import ignore_write_errors

LAUNCHER_GONE = "the end of the launcher"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Stay ignored if they already are, as under nohup or in the background of a script.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_ALL_SIGNALS = (*_SIGNALS, *_FROM_TERMINAL)
_PR_SET_PDEATHSIG = 1  # of prctl(2)

_MUST_RESET_CHILDREN = threading.Event()


def hold_signals() -> None:
    """Blocks signals until the run knows its folder."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)


def release_signals() -> None:
    """Ends `hold_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL_SIGNALS)


def restore_signals() -> None:
    """Restores the default handling of all signals, and releases held ones."""
    for number in _ALL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    release_signals()


@contextmanager
def reset_signals_of_children() -> Iterator[None]:
    """Makes processes forked in the block handle signals by default, and end with this process.

    If they inherited the handling of the run, a pool could not end its workers: they would block
    SIGTERM, or pass it to the run itself through the wakeup pipe that they share with it.
    """
    _MUST_RESET_CHILDREN.set()
    try:
        yield
    finally:
        _MUST_RESET_CHILDREN.clear()


def _reset_child() -> None:
    if _MUST_RESET_CHILDREN.is_set():
        signal.set_wakeup_fd(-1)
        restore_signals()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


os.register_at_fork(after_in_child=_reset_child)


class WaitEnded(BaseException):
    """A signal arrived while the run waited; no `Exception`, because retries would catch it."""


class StopRequest:
    """Records the first signal that asks the run to end; further signals change nothing.

    Attributes:
        name: The recorded signal, or `LAUNCHER_GONE`; None before any signal.
        leave: Called in a thread, with the name of a signal that arrives before the first step;
            writes the status and returns the exit code.
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
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._receive_signals, args=(read_end,), daemon=True).start()

        for number in _SIGNALS:
            signal.signal(number, self._handle)
        for number in _FROM_TERMINAL:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._watch_launcher(parent)
        release_signals()

    def begin(self) -> None:
        """Switches to recording signals, because from now on there is something to save."""
        self._is_starting = False

    @contextmanager
    def end_wait_on_signal(self) -> Iterator[None]:
        """Encloses a block that waits; a signal ends the wait.

        Raises:
            WaitEnded: If a signal arrives in the block, or has arrived before.
        """
        try:
            self._is_waiting = True
            if self.name is not None:
                raise WaitEnded
            yield
        finally:
            self._is_waiting = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal in the main thread, as soon as that runs Python code."""
        self._record_signal(number)
        if self._is_waiting:
            raise WaitEnded

    def _record_signal(self, number: int) -> None:
        if self.name is None:
            self.name = self._name_signal(number)

    def _name_signal(self, number: int) -> str:
        """Returns the name of a signal; `LAUNCHER_GONE` if this process has lost its parent."""
        if self._parent and os.getppid() != self._parent:
            return LAUNCHER_GONE
        return signal.Signals(number).name

    def _receive_signals(self, wakeup_pipe: int) -> None:
        """Receives signals in a thread; ends the process if the first step has not begun.

        Args:
            wakeup_pipe: File descriptor from which Python's signal numbers are read, a byte each.
        """
        while number := os.read(wakeup_pipe, 1)[0]:
            if number not in _ALL_SIGNALS:
                continue  # for another handler, such as a DataLoader's handler of SIGCHLD

            self._record_signal(number)
            if self._is_starting and self.leave is not None:
                code = EXIT_FAILURE
                try:
                    code = self.leave(self._name_signal(number))
                    note_exit_code(code)
                finally:
                    os._exit(code)

    def _watch_launcher(self, parent: int) -> None:
        """Makes the kernel send SIGTERM to this process when torchrun ends, however it is killed.

        Otherwise its processes would continue training without it, and keep the run folder locked.
        """
        self._parent = parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the launcher has already ended
            os.kill(os.getpid(), signal.SIGTERM)

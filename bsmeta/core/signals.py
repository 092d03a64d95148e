"""Handles the signals that ask a run to end; the death of its launcher counts as one.

Before the first step there is nothing to save, so a signal ends the process at once, after writing
its status. Later, a signal is only recorded, and all ranks act on it together after a step. If a
rank is waiting for data, which may take minutes, the signal ends that wait.
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
# These stay ignored if they already are, as under nohup or in the background of a script.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
_ALL_SIGNALS = (*_SIGNALS, *_TERMINAL_SIGNALS)
_PR_SET_PDEATHSIG = 1  # of prctl(2)

_MUST_RESET_CHILDREN = threading.Event()


def hold_signals() -> None:
    """Blocks the signals until `release_signals`, for the time before a run knows its folder."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)


def release_signals() -> None:
    """Unblocks the signals that `hold_signals` blocked; those that have arrived take effect."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL_SIGNALS)


def restore_signals() -> None:
    """Restores the default handling of the signals, and unblocks them."""
    for number in _ALL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    release_signals()


def kill_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, even if the parent is killed.

    Args:
        parent: The process id of the parent, which may have ended already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def reset_signals_of_children() -> Iterator[None]:
    """Makes processes that are forked in the block handle signals by default.

    If they inherited the handling of the run, a pool could not end its workers: they would block
    SIGTERM, or pass it to the run through the wakeup pipe that they share with it. The kernel kills
    these processes when this process ends.
    """
    _MUST_RESET_CHILDREN.set()
    try:
        yield
    finally:
        _MUST_RESET_CHILDREN.clear()


def _reset_child() -> None:
    """Resets the signals of a forked process, if it was forked in `reset_signals_of_children`."""
    if _MUST_RESET_CHILDREN.is_set():
        signal.set_wakeup_fd(-1)
        restore_signals()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


os.register_at_fork(after_in_child=_reset_child)


class WaitEnded(BaseException):
    """A signal has ended a wait; no `Exception`, because code that retries would catch it."""


class StopRequest:
    """Records the first signal that asks the run to end; further signals change nothing.

    Attributes:
        name: The name of the recorded signal, or `LAUNCHER_GONE`; None before any signal.
        leave: Writes the status and returns the exit code. Called in a thread, with the name of the
            signal, if one arrives before the first step.
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
            leave: See the attribute.
            parent: The process id of the parent when this process began.
        """
        self.leave = leave
        ignore_write_errors()

        # The main thread may be blocked in native code, waiting for other ranks, so another thread
        # receives the signals.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._receive_signals, args=(read_end,), daemon=True).start()

        for number in _SIGNALS:
            signal.signal(number, self._handle)
        for number in _TERMINAL_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._watch_launcher(parent)
        release_signals()

    def begin(self) -> None:
        """Only records signals from now on, because the run has something to save."""
        self._is_starting = False

    @contextmanager
    def end_wait_on_signal(self) -> Iterator[None]:
        """Makes a signal end the block, in which the run waits.

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
        """Handles a signal in the main thread, as soon as that thread runs Python code."""
        self._record_signal(number)
        if self._is_waiting:
            raise WaitEnded

    def _record_signal(self, number: int) -> None:
        """Records a signal if it is the first."""
        if self.name is None:
            self.name = self._name_signal(number)

    def _name_signal(self, number: int) -> str:
        """Returns the name of a signal; `LAUNCHER_GONE` if the parent of this process has ended."""
        if self._parent and os.getppid() != self._parent:
            return LAUNCHER_GONE
        return signal.Signals(number).name

    def _receive_signals(self, wakeup_pipe: int) -> None:
        """Receives signals in a thread; ends the process if the first step has not begun.

        Args:
            wakeup_pipe: The file descriptor to which Python writes the number of each signal, in
                one byte.
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
        """Makes the kernel send SIGTERM to this process when torchrun ends, even if it is killed.

        Otherwise its processes would continue to train without it, and keep the run folder locked.
        """
        self._parent = parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the launcher has already ended
            os.kill(os.getpid(), signal.SIGTERM)

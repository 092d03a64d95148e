"""Signals that ask a run to end: noted here, acted on by all ranks together after a step."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """Remembers the first such signal; further ones change nothing."""

    def __init__(self) -> None:
        self.name: str | None = None
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.name is None:
            self.name = signal.Signals(number).name

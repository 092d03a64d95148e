"""Programs under a pseudo-terminal, and what reaches it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.waiting import wait_until
from tests.warm import ask

# What rich sends: styles, the cursor hidden and shown, one line up, a line erased.
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)|\r")
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LARGE = {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"}


def run_in_terminal(
    arguments: Sequence[str], folder: Path = REPOSITORY, **environment: str
) -> tuple[int, str]:
    """Returns the exit code of `python ARGUMENTS`, and the output on its terminal."""
    reading, terminal = pty.openpty()
    settings = termios.tcgetattr(terminal)
    settings[1] &= ~termios.OPOST  # line ends arrive as they are written
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    request = {
        "command": [sys.executable, *arguments],
        "env": {**os.environ, **LARGE, **environment},
        "folder": str(folder),
    }
    pid = ask(request, terminal, terminal)["pid"]
    os.close(terminal)
    received = bytearray()
    with contextlib.suppress(OSError):  # of a terminal that no process has open
        while part := os.read(reading, 1 << 16):
            received += part
    os.close(reading)
    wait_until(lambda: ask({"pid": pid})["code"] is not None)
    return ask({"pid": pid})["code"], received.decode()


def find_sequences(received: str) -> list[str]:
    """Returns the control sequences in the output, except those of the project's styles."""
    return ACTING.findall(OWN.sub("", received))

"""Confines the communication between the processes of one machine to the loopback interface."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LOOPBACK_FLAGS = Path("/sys/class/net/lo/flags")
_INTERFACE_UP = 1  # IFF_UP of Linux's if.h


def listen_on_loopback() -> None:
    """Makes Gloo listen on the loopback interface if all processes are on this machine.

    By default, Gloo listens at the address of the host name, which other machines may reach. It
    accepts every connection without a password, and ranks exchange objects as pickles. A user can
    name another interface in GLOO_SOCKET_IFNAME.
    """
    world_size = os.environ.get("WORLD_SIZE")
    if world_size is None or os.environ.get("LOCAL_WORLD_SIZE") != world_size:
        return

    with suppress(OSError, ValueError):  # not on Linux
        if int(_LOOPBACK_FLAGS.read_text(), 16) & _INTERFACE_UP:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

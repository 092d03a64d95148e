"""The loopback interface, over which the processes of one machine talk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LOOPBACK_FLAGS, _UP = Path("/sys/class/net/lo/flags"), 1  # IFF_UP of Linux's if.h


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

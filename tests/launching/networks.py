"""Two "machines" on this one: two launchers on the loopback address, or in two network namespaces.

In namespaces each has an address of its own and reaches the other through a pair of virtual cards,
so that what is said about addresses is really used.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.launching.helpers import start


@dataclass(frozen=True)
class Network:
    """Where the two machines are.

    Attributes:
        hosts: Their addresses or names.
        prefixes: What starts a command on each.
        variables: The environment of each.
    """

    hosts: tuple[str, str]
    prefixes: tuple[list[str], list[str]] = ([], [])
    variables: tuple[dict[str, str], dict[str, str]] = field(default=({}, {}))

    def start(self, folder: Path, *arguments: str, **variables: str) -> list[subprocess.Popen[str]]:
        """Starts `several_machines.sh` for one and for two processes; machine 1 first, which waits.

        Returns:
            Machine 0 and machine 1.
        """
        file = folder / "machines.json"
        file.write_text(json.dumps(dict(zip(self.hosts, (1, 2), strict=True))))
        shared = {"BSMETA_MACHINES": str(file), "BSMETA_MASTER_PORT": free_port(), **variables}
        return [
            start(
                folder,
                "several_machines.sh",
                *arguments,
                prefix=self.prefixes[rank],
                **shared,
                **self.variables[rank],
            )
            for rank in (1, 0)
        ][::-1]


@contextmanager
def loopback() -> Iterator[Network]:
    """Two launchers that know by their rank who they are."""
    ranks = ({"BSMETA_NODE_RANK": "0"}, {"BSMETA_NODE_RANK": "1"})
    yield Network(("127.0.0.1", "localhost"), variables=ranks)


@contextmanager
def namespaces() -> Iterator[Network]:
    """Two launchers that know by their address who they are.

    Raises:
        PermissionError: If this user cannot make namespaces.
    """
    names = tuple(f"bsmeta{os.getpid()}{side}" for side in "ab")
    cards = tuple(f"bs{os.getpid() % 100_000}{side}" for side in "ab")
    hosts = ("10.203.77.1", "10.203.77.2")
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise PermissionError("network namespaces need root and the command ip")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", cards[0], "type", "veth", "peer", "name", cards[1])
        for name, card, host in zip(names, cards, hosts, strict=True):
            _ip("link", "set", card, "netns", name)
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", card)
            _ip("-n", name, "link", "set", card, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield Network(
            hosts,
            tuple(["ip", "netns", "exec", name] for name in names),  # type: ignore[arg-type]
            # Gloo takes the address of the host's name, which is the loopback address in both.
            tuple({"GLOO_SOCKET_IFNAME": card} for card in cards),  # type: ignore[arg-type]
        )
    finally:
        for name in names:
            with suppress(PermissionError):
                _ip("netns", "del", name)


def free_port() -> str:
    """A port that is free now, and that no connection is given as its own until it is used."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.SystemRandom().randrange(10_000, int(ephemeral[0]))
        with socket.socket() as connection, suppress(OSError):
            connection.bind(("127.0.0.1", port))
            return str(port)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

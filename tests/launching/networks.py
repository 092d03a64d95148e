"""Two "machines" on this one: two launchers on the loopback address, or in two network namespaces.

In namespaces, each has a host name and an address of its own and reaches the other through a pair
of virtual network cards, on which packets can be dropped.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.launching.helpers import start


@dataclass(frozen=True)
class Network:
    """The network of two machines.

    Attributes:
        hosts: Addresses or names of the machines.
        prefixes: Beginning of a command line on each machine.
        variables: Environment of each machine.
    """

    hosts: tuple[str, str]
    prefixes: tuple[list[str], list[str]] = ([], [])
    variables: tuple[dict[str, str], dict[str, str]] = field(default=({}, {}))

    def start(
        self, folder: Path, *arguments: str, processes: tuple[int, int] = (1, 2), **variables: str
    ) -> list[subprocess.Popen[str]]:
        """Starts `several_machines.sh` on both machines; machine 1 first, which waits.

        Returns:
            Machine 0 and machine 1.
        """
        file = folder / "machines.json"
        file.write_text(json.dumps(dict(zip(self.hosts, processes, strict=True))))
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
    """Yields a network of two launchers on this machine that are identified by their rank."""
    ranks = ({"BSMETA_NODE_RANK": "0"}, {"BSMETA_NODE_RANK": "1"})
    yield Network(("127.0.0.1", "localhost"), variables=ranks)


@dataclass(frozen=True)
class Namespaces(Network):
    """Two network namespaces, between which packets can be lost.

    Attributes:
        names: Names of the namespaces.
    """

    names: tuple[str, str] = ("", "")

    def lose(self, machine: int, percent: int) -> None:
        """Drops `percent` of the packets that a machine receives and sends from now on."""
        self._drop(machine, f"numgen random mod 100 < {percent}")

    def cut(self, machine: int) -> None:
        """Makes a machine silently unreachable from now on."""
        self._drop(machine, "")

    def _drop(self, machine: int, which: str) -> None:
        rules = "\n".join(
            f'chain {hook} {{ type filter hook {hook} priority 0; {card} != "lo" {which} counter'
            " drop; }"
            for hook, card in (("input", "iifname"), ("output", "oifname"))
        )
        self._nft(machine, f"table ip faults {{\n{rules}\n}}")

    def heal(self, machine: int) -> int:
        """Ends the loss of packets; returns how many were lost."""
        listed = json.loads(self._nft(machine, "list table ip faults"))
        rules = [entry["rule"] for entry in listed["nftables"] if "rule" in entry]
        counters = [part["counter"] for rule in rules for part in rule["expr"] if "counter" in part]
        self._nft(machine, "delete table ip faults")
        return sum(counter["packets"] for counter in counters)

    def give_up_after(self, machine: int, resends: int) -> None:
        """Sets how often TCP resends a packet before a connection breaks, on a machine."""
        setting = f"net.ipv4.tcp_retries2={resends}"
        _run("ip", "netns", "exec", self.names[machine], "sysctl", "-q", setting)

    def processes(self, machine: int) -> list[int]:
        """Returns the processes on a machine."""
        return _processes(self.names[machine])

    def vanish(self, machine: int) -> None:
        """Cuts a machine off and kills all its processes; its last messages are lost."""
        self.cut(machine)
        _kill(self.names[machine])

    def _nft(self, machine: int, command: str) -> str:
        return _run("ip", "netns", "exec", self.names[machine], "nft", "-j", command)


# Runs a command on a machine with a host name and a file of addresses of its own.
_AS_HOST = """
mount --bind "$0" /etc/hosts && echo "$1" >/proc/sys/kernel/hostname && shift && exec "$@"
"""


@contextmanager
def namespaces(*, drops_packets: bool = True) -> Iterator[Namespaces]:
    """Yields a network of two launchers that are identified by their host name.

    As on Debian, a machine finds its own name at 127.0.1.1, and the other's at its address.

    Args:
        drops_packets: Whether the test cuts machines off, for which nft is needed.

    Raises:
        PermissionError: If this user cannot make namespaces, or a command for them is missing.
    """
    names = tuple(f"bsmeta{os.getpid()}{side}" for side in "ab")
    hosts, addresses = ("gpu1", "gpu2"), ("10.203.77.1", "10.203.77.2")
    commands = ("ip", "unshare", *(["nft"] if drops_packets else []))
    missing = [name for name in commands if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise PermissionError(
            f"network namespaces need root and the commands {', '.join(commands)}; missing: "
            f"{', '.join(missing) or 'root'}"
        )
    with tempfile.TemporaryDirectory() as folder:
        prefixes = []
        try:
            for name in names:
                _run("ip", "netns", "add", name)
            link = ("link", "add", "eth0", "type", "veth", "peer", "name", "eth0")
            _run("ip", "-n", names[0], *link, "netns", names[1])
            for rank, name in enumerate(names):
                _run("ip", "-n", name, "addr", "add", f"{addresses[rank]}/24", "dev", "eth0")
                for card in ("lo", "eth0"):
                    _run("ip", "-n", name, "link", "set", card, "up")
                file = Path(folder) / hosts[rank]
                file.write_text(
                    f"127.0.0.1 localhost\n127.0.1.1 {hosts[rank]}\n"
                    f"{addresses[1 - rank]} {hosts[1 - rank]}\n"
                )
                command = ["unshare", "--uts", "sh", "-c", _AS_HOST, str(file), hosts[rank]]
                prefixes.append(["ip", "netns", "exec", name, *command])
                _run(*prefixes[rank], "true")
            yield Namespaces(hosts, (prefixes[0], prefixes[1]), names=(names[0], names[1]))
        finally:
            for name in names:
                with suppress(PermissionError):
                    _kill(name)
                    _run("ip", "netns", "del", name)


def free_port() -> str:
    """Returns a free port that the system assigns to no other connection until it is used."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.SystemRandom().randrange(10_000, int(ephemeral[0]))
        with socket.socket() as connection, suppress(OSError):
            connection.bind(("127.0.0.1", port))
            return str(port)


def _processes(name: str) -> list[int]:
    return [int(text) for text in _run("ip", "netns", "pids", name).split()]


def _kill(name: str) -> None:
    while running := _processes(name):
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

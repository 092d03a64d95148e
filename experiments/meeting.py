"""Checks that all machines of a run have the same settings, on each machine before its launcher.

    python meeting.py RANK MACHINES ADDRESS PORT SECONDS [WORLD_SIZE]

Launchers with different numbers of machines would wait for each other until a timeout. Therefore
machine 0 listens on the port that its launcher will use, and each other machine sends its settings.
Machine 0 answers when all have connected, or as soon as one differs. Exit codes: 0 if they agree, 2
if they differ or machine 0 does not listen, 1 if not all machines connect in time.

If they agree, each machine prints the network interface of its connection, or nothing if that was
a loopback address. Gloo needs it, because by default it listens on the address to which the host
name resolves, which on many machines is a loopback address or one of another network.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import NoReturn

import psutil

RETRY_S = 1.0
SHORTEST_S = 0.1  # a timeout of 0 would mean non-blocking
LONGEST_LINE = 10_000
HELLO_S = 5.0  # timeout for the line of a machine, since other clients that connect may send none


@dataclass(frozen=True)
class Machine:
    """The settings of one machine."""

    rank: int
    machines: int
    world_size: str  # "" if not given


def main() -> None:
    """Compare settings with the other machines; exit with a message and a code on a problem."""
    rank, machines, address, port, seconds, *rest = sys.argv[1:]
    me = Machine(int(rank), int(machines), rest[0] if rest else "")
    deadline = time.monotonic() + int(seconds)
    where = f"{address}:{port}"
    late = (
        f"{machines} machines must meet at {where} within {seconds} s (BSMETA_START_TIMEOUT); is "
        "each started, with the same address, port and number of machines, and a number "
        "(BSMETA_NODE_RANK) of its own?"
    )
    if me.rank == 0:
        own = receive(me, int(port), deadline, late)
    else:
        own = ask(me, (address, int(port)), deadline, late, seconds)
    print(interface_of(own), end="")


def interface_of(own: list[str]) -> str:
    """The interface with the first of these addresses that is not a loopback one; "" if none."""
    addresses = [ip_address(address.partition("%")[0]) for address in own]
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    wanted = next((str(address) for address in plain if not address.is_loopback), None)
    for name, interface in psutil.net_if_addrs().items():
        if any(held.address.partition("%")[0] == wanted for held in interface):
            return name
    return ""


def receive(me: Machine, port: int, deadline: float, late: str) -> list[str]:
    """On machine 0: wait for the other machines, compare their settings, and answer all.

    Returns:
        The addresses of this machine that the others connected to.
    """
    others: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        server = stack.enter_context(listen(port))
        while len(others) < me.machines - 1:
            server.settimeout(max(SHORTEST_S, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                here = ", ".join(map(str, sorted([0, *others])))
                leave(1, f"{late} Of the numbers 0 to {me.machines - 1}, there are {here}")
            stack.enter_context(connection)
            other = hello(connection)
            if other is None:
                continue
            problem = difference(me, other, others)
            if problem is not None:
                for waiting in [*others.values(), connection]:
                    answer(waiting, problem)
                leave(2, problem)
            others[other.rank] = connection
        server.close()  # the launcher needs this port now
        for waiting in others.values():
            answer(waiting, "")
        return [str(connection.getsockname()[0]) for connection in others.values()]


def listen(port: int) -> socket.socket:
    """Open a server socket on all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def hello(connection: socket.socket) -> Machine | None:
    """Receive the settings of a machine; None from any other client that connects."""
    connection.settimeout(HELLO_S)
    try:
        with connection.makefile("rb") as stream:
            return Machine(**json.loads(stream.readline(LONGEST_LINE)))
    except (OSError, ValueError, TypeError):
        return None


def difference(me: Machine, other: Machine, others: dict[int, socket.socket]) -> str | None:
    """The error message if a machine's settings conflict with machine 0's; None if they agree."""
    if other.machines != me.machines:
        return (
            f"machine 0 was given {me.machines} machines, machine {other.rank} of "
            f"{other.machines}; expected the same BSMETA_MACHINES (or BSMETA_NODES) on each"
        )
    if "" not in (me.world_size, other.world_size) and other.world_size != me.world_size:
        return (
            f"machine 0 was given {me.world_size} processes in all, machine {other.rank} of "
            f"{other.world_size}; expected the same BSMETA_MACHINES (or BSMETA_WORLD_SIZE) on each"
        )
    if other.rank in others:
        return (
            f"two machines have the number {other.rank}; expected a BSMETA_NODE_RANK of its own "
            f"for each, from 0 to {me.machines - 1}"
        )
    return None


def answer(connection: socket.socket, problem: str) -> None:
    """Send the error message to a machine; an empty message if there is no problem."""
    with suppress(OSError):  # the machine's process may have ended meanwhile
        connection.sendall(f"{json.dumps(problem)}\n".encode())


def leave(code: int, message: str) -> NoReturn:
    """Print a message and exit."""
    print(f"several_machines.sh: {message}", file=sys.stderr)
    sys.exit(code)


def ask(me: Machine, where: tuple[str, int], deadline: float, late: str, seconds: str) -> list[str]:
    """On any other machine: send the settings to machine 0, and wait for its answer.

    Returns:
        The address of this machine from which it connected.
    """
    connected = False
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(where, timeout=max(SHORTEST_S, left)) as connection:
                connected = True
                own = str(connection.getsockname()[0])
                connection.sendall(f"{json.dumps(asdict(me))}\n".encode())
                with connection.makefile("rb") as stream:
                    problem = json.loads(stream.readline(LONGEST_LINE))
            if problem:
                leave(2, problem)
            return [own]
        except (OSError, ValueError):  # machine 0 is not listening yet, or another program answered
            time.sleep(RETRY_S)
    if connected:
        leave(1, late)
    leave(
        2,
        f"nobody answers at {where[0]}:{where[1]} after {seconds} s (BSMETA_START_TIMEOUT). "
        "Expected the address of machine 0 (BSMETA_MASTER_ADDR), on which the run was started, too",
    )


if __name__ == "__main__":
    main()

"""The machines of a run agree on what they start: `python meeting.py RANK MACHINES ADDRESS PORT
SECONDS [WORLD_SIZE]`, on each of them before its launcher.

Launchers that were given different numbers of machines would wait for each other until a timeout.
So machine 0 listens at the port that its launcher will use, each other machine says what it was
told, and all are answered once they have come, or as soon as one differs. Ends with 0 where they
agree, 2 where they do not or where nobody listens, 1 where not all come in time.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import NoReturn

RETRY_S = 1.0
SHORTEST_S = 0.1  # a timeout of 0 would mean not to wait at all
LONGEST_LINE = 10_000
HELLO_S = 5.0  # for the one line of a machine; whoever else connects says none


@dataclass(frozen=True)
class Machine:
    """What one machine was told."""

    rank: int
    machines: int
    world_size: str  # "" where it was not told


def main() -> None:
    """Meets the other machines, or ends with a message and its code."""
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
        receive(me, int(port), deadline, late)
    else:
        ask(me, (address, int(port)), deadline, late, seconds)


def receive(me: Machine, port: int, deadline: float, late: str) -> None:
    """Machine 0: waits for the others, compares, and answers all of them."""
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
        server.close()  # the others wait for the launcher at this port from here on
        for waiting in others.values():
            answer(waiting, "")


def listen(port: int) -> socket.socket:
    """A server at all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def hello(connection: socket.socket) -> Machine | None:
    """What a machine says of itself; None of anybody else who tries the port."""
    connection.settimeout(HELLO_S)
    try:
        with connection.makefile("rb") as stream:
            return Machine(**json.loads(stream.readline(LONGEST_LINE)))
    except (OSError, ValueError, TypeError):
        return None


def difference(me: Machine, other: Machine, others: dict[int, socket.socket]) -> str | None:
    """In what a machine was told something else than machine 0."""
    if other.machines != me.machines:
        return (
            f"machine 0 was told of {me.machines} machines, machine {other.rank} of "
            f"{other.machines}; expected the same BSMETA_MACHINES (or BSMETA_NODES) on each"
        )
    if "" not in (me.world_size, other.world_size) and other.world_size != me.world_size:
        return (
            f"machine 0 was told of {me.world_size} processes in all, machine {other.rank} of "
            f"{other.world_size}; expected the same BSMETA_MACHINES (or BSMETA_WORLD_SIZE) on each"
        )
    if other.rank in others:
        return (
            f"two machines have the number {other.rank}; expected a BSMETA_NODE_RANK of its own "
            f"for each, from 0 to {me.machines - 1}"
        )
    return None


def answer(connection: socket.socket, problem: str) -> None:
    """Sends a machine what is wrong; an empty line where nothing is."""
    with suppress(OSError):  # one that has ended meanwhile
        connection.sendall(f"{json.dumps(problem)}\n".encode())


def ask(me: Machine, where: tuple[str, int], deadline: float, late: str, seconds: str) -> None:
    """Any other machine: says what it was told, and waits for the answer of machine 0."""
    connected = False
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(where, timeout=max(SHORTEST_S, left)) as connection:
                connected = True
                connection.sendall(f"{json.dumps(asdict(me))}\n".encode())
                with connection.makefile("rb") as stream:
                    problem = json.loads(stream.readline(LONGEST_LINE))
            if problem:
                leave(2, problem)
            return
        except (OSError, ValueError):  # not there yet, or not machine 0 that answers
            time.sleep(RETRY_S)
    if connected:
        leave(1, late)
    leave(
        2,
        f"nobody answers at {where[0]}:{where[1]} after {seconds} s (BSMETA_START_TIMEOUT). "
        "Expected the address of machine 0 (BSMETA_MASTER_ADDR), on which the run was started, too",
    )


def leave(code: int, message: str) -> NoReturn:
    """Ends with a message."""
    print(f"several_machines.sh: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

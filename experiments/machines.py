"""Which machine of a run this one is: `python machines.py machines.json [RANK]`.

The file says how many processes each machine starts, `{"first.host": 1, "10.0.0.2": 3}`; the first
one is the master. Prints the rank of this machine, its processes, the number of machines, the
master, and the processes of all machines; `several_machines.sh` reads them.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import psutil


def read(path: Path) -> dict[str, int]:
    """The processes of each host, in the order of the file.

    Raises:
        ValueError: If the file does not say so.
    """
    try:
        hosts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(hosts, dict) or not hosts:
        raise ValueError(f'{path}: expected {{"host": processes, ...}}, found {hosts!r}')
    for host, processes in hosts.items():
        if type(processes) is not int or processes < 1:
            raise ValueError(f"{path}: {host}: found {processes!r}, expected a positive number")
    return hosts


def is_here(host: str) -> bool:
    """Whether a name or address is this machine's."""
    mine = {one.address for card in psutil.net_if_addrs().values() for one in card}
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except socket.gaierror:
        return False
    return bool(found & mine)


def rank_of(hosts: dict[str, int], stated: str) -> int:
    """The place of this machine among the hosts, as stated, or by its names and addresses.

    Raises:
        ValueError: If it is not one of them, or could be several.
    """
    names = list(hosts)
    if stated:
        if not stated.isdecimal() or int(stated) >= len(names):
            raise ValueError(f"BSMETA_NODE_RANK={stated}: expected 0 to {len(names) - 1}")
        return int(stated)
    here = [rank for rank, name in enumerate(names) if is_here(name)]
    if len(here) != 1:
        which = "none of" if not here else "more than one of"
        raise ValueError(
            f"this machine ({socket.gethostname()}) is {which} {', '.join(names)}; say which with "
            "BSMETA_NODE_RANK (0 is the first)"
        )
    return here[0]


def main() -> None:
    """Prints the place of this machine; ends with code 2 where it has none."""
    path = Path(sys.argv[1])
    try:
        hosts = read(path)
        rank = rank_of(hosts, sys.argv[2] if len(sys.argv) > 2 else "")
    except ValueError as error:
        print(f"BSMETA_MACHINES: {error}", file=sys.stderr)
        sys.exit(2)
    processes = list(hosts.values())
    print(rank, processes[rank], len(hosts), next(iter(hosts)), sum(processes))


if __name__ == "__main__":
    main()

"""Finds the rank of this machine in a run: `python machines.py machines.json [RANK]`.

The file has the number of processes on each machine, `{"first.host": 1, "10.0.0.2": 3}`; the first
machine is the master. Prints the rank of this machine, its number of processes, the number of
machines, the master, and the total number of processes; `several_machines.sh` reads them.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path


def read(path: Path) -> dict[str, int]:
    """The number of processes on each host, in the order of the file.

    Raises:
        ValueError: The file cannot be read or is invalid.
    """
    try:
        hosts = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(hosts, dict) or not hosts:
        raise ValueError(f'{path}: expected {{"host": processes, ...}}, found {hosts!r}')
    for host, processes in hosts.items():
        if type(processes) is not int or processes < 1:
            raise ValueError(f"{path}: {host}: found {processes!r}, expected a positive number")
    return hosts


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object, and reject repeated keys, of which the last would silently win."""
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} more than once; expected each host once")
    return dict(pairs)


def is_here(host: str) -> bool:
    """Whether a host name or address belongs to this machine.

    It does if a socket can be bound to it. The addresses of the interfaces would not include
    127.0.1.1, to which Debian maps a machine's own name.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family) as held:
            held.bind(address)
    except OSError:
        return False
    return True


def rank_of(hosts: dict[str, int], stated: str) -> int:
    """The rank of this machine among the hosts, as stated, or from its names and addresses.

    Raises:
        ValueError: It is not one of the hosts, or matches several.
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
            "BSMETA_NODE_RANK (0 is the first). A machine that the file leaves out comes after "
            f"those in it (BSMETA_NODE_RANK={len(names)}), with one process a GPU"
        )
    return here[0]


def with_left_out(hosts: dict[str, int], stated: str) -> dict[str, int]:
    """The hosts, plus this machine if it is not in the file and its stated rank is the next.

    Raises:
        ValueError: This machine has no GPU, so its number of processes is unknown.
    """
    if stated != str(len(hosts)) or any(map(is_here, hosts)):
        return hosts
    gpus = count_gpus()
    if gpus == 0:
        raise ValueError(
            f"BSMETA_NODE_RANK={stated}: the file leaves this machine ({socket.gethostname()}) "
            "out, and there is no GPU to count its processes by; add it to the file"
        )
    return {**hosts, socket.gethostname(): gpus}


def count_gpus() -> int:
    """Number of GPUs that this machine's processes may use."""
    import torch

    return torch.cuda.device_count()


def main() -> None:
    """Print the rank of this machine and the sizes of the run; exit with code 2 on an error."""
    path = Path(sys.argv[1])
    try:
        stated = sys.argv[2] if len(sys.argv) > 2 else ""
        hosts = with_left_out(read(path), stated)
        rank = rank_of(hosts, stated)
    except ValueError as error:
        print(f"BSMETA_MACHINES: {error}", file=sys.stderr)
        sys.exit(2)
    processes = list(hosts.values())
    print(rank, processes[rank], len(hosts), next(iter(hosts)), sum(processes))


if __name__ == "__main__":
    main()

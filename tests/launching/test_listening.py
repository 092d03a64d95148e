"""Where the processes of a run listen: on one machine, only it can reach the ranks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from tests.launching.helpers import SMALL, end, start
from tests.launching.test_machines import wait_for_step

LISTENING = "0A"

# Runs a command on a machine whose name leads to the address that others know, as on a cluster.
ON_A_CLUSTER = """
ip link set lo up && ip link add eth0 type veth peer name eth1 &&
    ip addr add 10.203.77.1/24 dev eth0 && ip link set eth0 up && ip link set eth1 up &&
    mount --bind "$0" /etc/hosts && echo gpu1 >/proc/sys/kernel/hostname && exec "$@"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> list[str]:
    """The beginning of a command line on that machine."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.203.77.1 gpu1\n")
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", ON_A_CLUSTER, str(hosts)]
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing or subprocess.run([*command, "true"], check=False).returncode != 0:
        pytest.skip("a network of its own needs root, ip and unshare")
    return command


def children(process: int) -> list[int]:
    """Returns a process and all its descendants."""
    processes = [process]
    for parent in processes:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                processes += map(int, (task / "children").read_text().split())
    return processes


def listening_addresses(process: int) -> set[str]:
    """Returns the addresses at which a process accepts connections."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(descriptor))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENING and f"socket:[{rest[5]}]" in sockets:
                addresses.add(address(local.partition(":")[0]))
    return addresses


def address(text: str) -> str:
    """Parses an address of the system's table: words of 32 bits in this machine's byte order."""
    words = [bytes.fromhex(text[begin : begin + 8])[::-1] for begin in range(0, len(text), 8)]
    packed = b"".join(words)
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))


@pytest.mark.slow
@pytest.mark.parametrize("launch_file", ["cpu.yaml", "cpu_zero2.yaml", "cpu_fsdp2.yaml"])
def test_the_ranks_of_one_machine_listen_on_the_loopback_address(
    cluster: list[str], tmp_path: Path, launch_file: str
) -> None:
    """The launcher itself does not, for any address; see docs/launching.md."""
    process = start(
        tmp_path, "train.sh", *SMALL, "max_train_steps=1000", "out_dir=run", prefix=cluster,
        BSMETA_CONFIG="demo", BSMETA_LAUNCH_FILE=launch_file,
    )  # fmt: skip
    try:
        wait_for_step(tmp_path / "run", [process], 1)
        by_program: dict[bool, set[str]] = {True: set(), False: set()}
        for pid in children(process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"bsmeta.train" in command:
                by_program[b"launch" in command] |= listening_addresses(pid)
    finally:
        process.send_signal(signal.SIGTERM)
        end(process)
    assert by_program == {False: {"127.0.0.1"}, True: {"::"}}

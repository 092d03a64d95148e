"""No call waits for a store whose host stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psutil
import pytest
from torch.distributed import TCPStore

from bsmeta.training.ranks.shared_store import SharedStore
from tests.waiting import wait_until

HOST = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOST], text=True, **pipes)
    yield process
    process.kill()
    process.communicate()


def test_a_call_does_not_wait_for_a_stuck_host(host: subprocess.Popen[str]) -> None:
    assert host.stdout is not None
    port = int(host.stdout.readline())
    connection = TCPStore("127.0.0.1", port, timeout=timedelta(days=1), wait_for_workers=False)
    connection.set("key", "value")
    patient, hasty = SharedStore(connection.clone()), SharedStore(connection, answer_timeout_s=1)

    def answers() -> bool:
        with suppress(RuntimeError):
            return hasty.call(lambda store: store.get("key")) == b"value"
        return False

    wait_until(answers, host)
    host.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(host.pid).status() == psutil.STATUS_STOPPED)
    with pytest.raises(RuntimeError, match="the host of the store has not answered for 1 s"):
        hasty.call(lambda store: store.get("key"))
    with pytest.raises(RuntimeError, match="the host of the store does not answer"):
        hasty.call(lambda store: store.get("key"))
    host.send_signal(signal.SIGCONT)
    wait_until(answers, host)
    host.kill()
    with pytest.raises(RuntimeError):
        patient.call(lambda store: store.get("key"))

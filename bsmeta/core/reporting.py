"""Decides which process of a launch reports an error, and passes it on to the other machines.

All processes of a launch run the same checks and find the same errors; a launcher terminates the
others as soon as one of them exits. So the first process of each machine reports, and the others of
that machine wait until the launcher terminates them. A machine that refuses to start writes its
reason to the launcher's store, where the other machines, which would otherwise wait for it in vain,
read it (`meet`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from bsmeta.core.errors import ConfigurationError, TrainingError, UserError

# How long the others wait for the report of a machine's first process: import times differ on a
# busy machine, but once the processes are connected, all see an error at the same time.
WAIT_S = 60.0
WAIT_CONNECTED_S = 10.0
CONNECT_S = 5.0
READ_S = 10.0
_POLL_S = 0.2
_CHECKED, _REFUSED, _READ = (f"bsmeta/start/{name}" for name in ("checked", "refused", "read"))


def rank() -> int:
    """The global rank of this process in the launch."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0  # other text is refused with the launch


@cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Logs a message, unless this process has logged it before."""
    logger.log(level, message)


def is_reporter() -> bool:
    """Whether this process reports errors that all processes of its machine find.

    Only torchrun and `accelerate launch` terminate the other processes of a machine; elsewhere
    every process reports.
    """
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    return not launched or os.environ.get("LOCAL_RANK", "0") == "0"


def checks_for_all() -> bool:
    """Whether this process checks what is the same for all processes of its launch.

    Only rank 0 where a launcher ends the others if it refuses; elsewhere every process.
    """
    return rank() == 0 or "TORCHELASTIC_RUN_ID" not in os.environ


def wait_for_reporter() -> None:
    """Waits until the launcher terminates this process; returns if the reporter exits too late."""
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        for number in numbers:  # no longer a request to save and stop
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    time.sleep(WAIT_CONNECTED_S if _is_connected() else WAIT_S)


def note_exit_code(code: int) -> None:
    """Writes the exit code of a failure for the launch scripts, because launchers turn each into 1.

    Only the first failure counts: it makes the launcher terminate the other processes.
    """
    file = os.environ.get("BSMETA_EXIT_CODE_FILE")
    if file is not None and code != 0:
        with Path(file).open("a+") as stream:
            if stream.tell() == 0:
                stream.write(f"{code}\n")


def announce(error: BaseException) -> None:
    """Passes an error from before the start to the other machines, which wait in `meet`."""
    if not _has_several_machines() or _is_connected() or isinstance(error, RefusedElsewhere):
        return
    refusal = {"user": isinstance(error, UserError), "message": f"{socket.gethostname()}: {error}"}
    try:
        store = _connect(CONNECT_S)
        store.add(_READ, 1)
        store.set(_REFUSED, json.dumps(refusal))
        # Keep the store alive until all have read: it ends with the first machine's launcher.
        deadline = time.monotonic() + READ_S
        while store.add(_READ, 0) < _count("GROUP_WORLD_SIZE") and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except RuntimeError as unreachable:
        print(f"the other machines were not reached: {unreachable}", file=sys.stderr, flush=True)


class RefusedElsewhere(ConfigurationError):
    """Another machine of the launch has refused to start, and has reported why."""


def meet(timeout_s: float) -> None:
    """Blocks until the processes of all machines have passed their checks; all must call it.

    Raises:
        RefusedElsewhere: If a machine has refused the configuration.
        TrainingError: If a machine has failed otherwise, or does not connect in time.
    """
    if not _has_several_machines():
        return
    expected, deadline = _count("WORLD_SIZE"), time.monotonic() + timeout_s
    try:
        store = _connect(timeout_s)
        store.add(_CHECKED, 1)
        while (checked := store.add(_CHECKED, 0)) < expected:
            if store.check([_REFUSED]):
                if is_reporter():
                    store.add(_READ, 1)
                refusal = json.loads(store.get(_REFUSED))
                kind = RefusedElsewhere if refusal["user"] else TrainingError
                raise kind(f"another machine did not start: {refusal['message']}")
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"{checked} of {expected} processes were ready within {timeout_s:g} s "
                    "(distributed_timeout_s); the output of the other machines says more"
                )
            time.sleep(_POLL_S)
    except RuntimeError as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(
            f"the first machine ({os.environ['MASTER_ADDR']}) ended before the run began; its "
            f"output says why ({error})"
        ) from error


def _has_several_machines() -> bool:
    """Whether a launcher (torchrun's agent, which keeps a store) connects several machines."""
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agent_store and _count("GROUP_WORLD_SIZE") > 1


def _count(name: str) -> int:
    text = os.environ.get(name, "1")
    return int(text) if text.isdecimal() else 1


def _is_connected() -> bool:
    """Whether the process group exists, in which the watchdog passes errors on."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _connect(timeout_s: float) -> Any:
    """A connection to the store of the launcher on the first machine."""
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )

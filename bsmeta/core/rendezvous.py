"""Synchronizes all machines before a run begins; if one refuses to start, all others end.

The machine that refuses writes its reason to the launcher's store. The other machines, which would
otherwise wait in vain, read the reason there (`meet_other_machines`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any, NoReturn

from bsmeta.core.errors import ConfigurationError, TrainingError, UserError
from bsmeta.core.parsing import parse_json
from bsmeta.core.rank import is_reporter
from bsmeta.core.secrets import redact

CONNECT_TIMEOUT_S = 5.0
"""Time to connect to the store in order to announce an error."""

READ_TIMEOUT_S = 10.0
"""Time that the machine with the error waits until all others have read it."""

_POLL_INTERVAL_S = 0.2

# Keys of the store.
_CHECKED_KEY = "bsmeta/start/checked"  # number of processes that have passed their checks
_REFUSAL_KEY = "bsmeta/start/refused"  # the refusal, as JSON
_READ_COUNT_KEY = "bsmeta/start/read"  # number of machines that have read the refusal


def announce_error(error: BaseException) -> None:
    """Announces an error to the other machines, which wait in `meet_other_machines`.

    Does nothing once the processes are connected, and for errors of other machines.
    """
    if not _has_several_machines() or is_connected() or isinstance(error, RefusedElsewhere):
        return

    refusal = {
        "user": isinstance(error, UserError),
        "message": redact(f"{socket.gethostname()}: {error}"),
    }
    try:
        store = _connect_to_store(CONNECT_TIMEOUT_S)
        store.add(_READ_COUNT_KEY, 1)
        store.set(_REFUSAL_KEY, json.dumps(refusal))

        # The store ends with the first machine's launcher, so wait until all machines have read.
        num_machines = _read_count("GROUP_WORLD_SIZE")
        deadline = time.monotonic() + READ_TIMEOUT_S
        while store.add(_READ_COUNT_KEY, 0) < num_machines and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
    except RuntimeError as unreachable:
        print(f"the other machines were not reached: {unreachable}", file=sys.stderr, flush=True)


class RefusedElsewhere(ConfigurationError):
    """Another machine of the launch has refused to start; the message has its reason."""


def meet_other_machines(timeout_s: float) -> None:
    """Blocks until the processes of all machines have passed their checks; all must call it.

    Args:
        timeout_s: The longest time to wait, in seconds.

    Raises:
        RefusedElsewhere: If a machine has refused the configuration.
        TrainingError: If a machine has failed otherwise, or does not connect in time.
    """
    if not _has_several_machines():
        return

    deadline = time.monotonic() + timeout_s
    try:
        store = _connect_to_store(timeout_s)
        store.add(_CHECKED_KEY, 1)
        _wait_for_checks(store, deadline, timeout_s)
    except RuntimeError as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(
            f"the first machine ({os.environ['MASTER_ADDR']}) ended before the run began; its "
            f"output says why ({error})"
        ) from error


def _wait_for_checks(store: Any, deadline: float, timeout_s: float) -> None:
    """Waits until all processes have passed their checks.

    Args:
        deadline: In seconds on the monotonic clock.
        timeout_s: The configured timeout, for the message.

    Raises:
        RefusedElsewhere, TrainingError: See `meet_other_machines`.
    """
    num_processes = _read_count("WORLD_SIZE")

    # Adding zero reads the counter.
    while (num_checked := store.add(_CHECKED_KEY, 0)) < num_processes:
        if store.check([_REFUSAL_KEY]):
            _raise_refusal(store)
        if time.monotonic() > deadline:
            raise TrainingError(
                f"{num_checked} of {num_processes} processes were ready within {timeout_s:g} s "
                "(distributed_timeout_s); the output of the other machines says more"
            )
        time.sleep(_POLL_INTERVAL_S)


def _raise_refusal(store: Any) -> NoReturn:
    """Raises the error that another machine has announced, and counts this machine as informed."""
    if is_reporter():
        store.add(_READ_COUNT_KEY, 1)
    refusal = parse_json(store.get(_REFUSAL_KEY))
    error_class = RefusedElsewhere if refusal["user"] else TrainingError
    raise error_class(f"another machine did not start: {refusal['message']}")


def _has_several_machines() -> bool:
    """Whether the launch has several machines, which share the store of torchrun's agent."""
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return has_store and _read_count("GROUP_WORLD_SIZE") > 1


def _read_count(name: str) -> int:
    """Returns the number in an environment variable; 1 if it is unset or malformed."""
    text = os.environ.get(name, "1")
    return int(text) if text.isdecimal() else 1


def is_connected() -> bool:
    """Whether the process group exists; from then on, the watchdog announces errors."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _connect_to_store(timeout_s: float) -> Any:
    """Connects to the store of the launcher on the first machine.

    Raises:
        RuntimeError: If the store is not reached in time.
    """
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )

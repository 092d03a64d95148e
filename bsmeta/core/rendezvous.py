"""The meeting of all machines before a run begins, and the refusal of one that ends the others.

A machine that refuses to start writes its reason to the launcher's store, where the other machines,
which would otherwise wait for it in vain, read it (`meet`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

from bsmeta.core.errors import ConfigurationError, TrainingError, UserError
from bsmeta.core.parsing import parse_json
from bsmeta.core.rank import is_reporter
from bsmeta.core.secrets import redact

CONNECT_S = 5.0
READ_S = 10.0
_POLL_S = 0.2
_CHECKED, _REFUSED, _READ = (f"bsmeta/start/{name}" for name in ("checked", "refused", "read"))


def announce(error: BaseException) -> None:
    """Passes an error from before the start to the other machines, which wait in `meet`."""
    if not _has_several_machines() or is_connected() or isinstance(error, RefusedElsewhere):
        return
    refusal = {
        "user": isinstance(error, UserError),
        "message": redact(f"{socket.gethostname()}: {error}"),
    }
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
                refusal = parse_json(store.get(_REFUSED))
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


def is_connected() -> bool:
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

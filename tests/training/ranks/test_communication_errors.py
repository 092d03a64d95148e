"""Failures of NCCL: their causes, and their distinction from lost ranks."""

from __future__ import annotations

import pytest
from torch import distributed

from bsmeta.training.ranks.communication_errors import find_nccl_fault, is_connection_error
from tests.training.ranks.nccl_messages import DRIVER, NCCL

REMOTE = NCCL.format("system error") + (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer"
)
SHARED_MEMORY = NCCL.format("system error") + (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
    "error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-a1b2 (size "
    "9637888), error: No space left on device (28)"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (DRIVER, "a driver that is too old"),
        (SHARED_MEMORY, "too little shared memory (docker run --shm-size=1g)"),
        (REMOTE, None),
    ],
)
def test_a_lost_rank_is_not_reported_as_a_failure_of_this_rank(
    text: str, cause: str | None
) -> None:
    error = distributed.DistBackendError(text)
    fault = find_nccl_fault(error)
    assert is_connection_error(error) == (cause is None)
    assert (fault is None) == (cause is None)
    if fault is not None:
        assert f"The usual cause is {cause}" in str(fault)
        assert text.splitlines()[-1] in str(fault)
        assert not is_connection_error(fault)
        assert find_nccl_fault(fault) is None

"""Errors of the communication between ranks: faults of this rank, or the loss of another one.

NCCL errors that this rank has caused are explained. Other errors mean that another rank, or the
network to it, is gone; the watchdog determines which. Torch prints the names of `ncclResult_t`:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

import torch.distributed as dist

from bsmeta.core.errors import TrainingError

_CAUSES = {
    "ncclUnhandledCudaError": (
        "a driver that is too old for this build of torch, a GPU that has failed, or one without "
        "free memory; nvidia-smi and dmesg say more"
    ),
    "ncclInvalidUsage": (
        "two processes on one GPU: compare CUDA_VISIBLE_DEVICES and the number of processes with "
        "the GPUs of the machine"
    ),
    "ncclInvalidArgument": "versions of torch and NCCL that do not belong together",
    "ncclInternalError": "an error of the driver or of a GPU; nvidia-smi and dmesg say more",
}
_CONNECTION_ERROR_MARKS = (
    "gloo",
    "NCCL",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "TCPStore",
)
_SHARED_MEMORY = "/dev/shm"
_NO_SHARED_MEMORY = "too little shared memory (docker run --shm-size=1g)"


class NcclError(TrainingError):
    """An NCCL failure that this rank has caused itself, not the loss of another rank."""


def find_nccl_fault(error: BaseException) -> NcclError | None:
    """Returns the error to report for an NCCL failure on this rank; None for any other error."""
    text = str(error)
    if isinstance(error, NcclError) or "NCCL" not in text:
        return None

    name = next((name for name in _CAUSES if name in text), None)
    if _SHARED_MEMORY in text:
        name = name or "ncclSystemError"
        cause = _NO_SHARED_MEMORY
    elif name is not None:
        cause = _CAUSES[name]
    else:
        return None

    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return NcclError(
        f"NCCL failed on this rank: {name} ({lines[-1]}). The usual cause is {cause}. "
        "NCCL_DEBUG=INFO in the environment makes NCCL log what it does"
    )


def is_connection_error(error: Exception) -> bool:
    """Whether the error means that another rank could not be reached, not that this one failed."""
    if isinstance(error, NcclError) or find_nccl_fault(error) is not None:
        return False
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(
        mark in str(error) for mark in _CONNECTION_ERROR_MARKS
    )

"""Messages of NCCL, as torch raises them."""

from __future__ import annotations

NCCL = "NCCL error in: NCCLUtils.cpp:94, unhandled {}, NCCL version 2.29.3\n"
DRIVER = NCCL.format("cuda error") + (
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"
)

"""`deterministic`: kernels that repeat a step bit for bit on a GPU.

On a CPU, the kernels of a training step always do. On a GPU, those that are chosen by default for
the backward pass of attention and for some sums over indices add in the order in which their
threads finish (https://docs.pytorch.org/docs/stable/notes/randomness.html).
"""

from __future__ import annotations

import os

import torch

_MISSING = "does not have a deterministic implementation"
_WORKSPACES = (":4096:8", ":16:8")
"""The values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS repeats its results: the faster first."""


def use_deterministic_kernels() -> None:
    """Makes torch, cuBLAS and FlashAttention repeat their results; call it before CUDA starts.

    An operation without such a kernel then raises an error (`lacks_deterministic_kernel`). A mere
    warning would not do: the flash and memory-efficient kernels of
    `scaled_dot_product_attention` have a deterministic backward pass, but torch uses it only where
    everything else would be refused (`warn_only=False`). That of cuDNN has none, so that torch
    would not choose it; it is also turned off by name, whatever later versions of torch choose.
    """
    # cuBLAS reads it when it starts.
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _WORKSPACES:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = _WORKSPACES[0]
    # transformers reads it at each call, and passes it to the flash-attn package.
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Also keeps torch.compile from choosing kernels by how fast they happen to be.
    torch.use_deterministic_algorithms(True)
    # Otherwise every new tensor would be filled with NaN first, which finds reads of memory that
    # nothing has written. It changes no result, and costs a pass over the memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def lacks_deterministic_kernel(error: BaseException) -> bool:
    """Whether the error is that of an operation without a deterministic kernel."""
    return isinstance(error, RuntimeError) and _MISSING in str(error)

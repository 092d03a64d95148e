"""`deterministic`: kernels that repeat a step bit for bit on a GPU.

On a CPU, a training step is always deterministic. On a GPU, the default kernels for the backward
pass of attention and for some sums over indices add in the order in which their threads finish
(https://docs.pytorch.org/docs/stable/notes/randomness.html).
"""

from __future__ import annotations

import os

import torch

_MISSING_KERNEL_MARK = "does not have a deterministic implementation"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
"""Values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS repeats its results, the faster first."""


def use_deterministic_kernels() -> None:
    """Makes torch, cuBLAS and FlashAttention repeat their results; call it before CUDA starts.

    An operation without such a kernel then raises an error (`lacks_deterministic_kernel`). A
    warning would not suffice: the flash and memory-efficient kernels of
    `scaled_dot_product_attention` have a deterministic backward pass, but torch uses it only if it
    refuses everything else (`warn_only=False`). The kernel of cuDNN has none, so torch does not
    choose it; it is also disabled explicitly, in case a later version of torch does.
    """
    # cuBLAS reads it when it starts.
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _REPEATABLE_WORKSPACES:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = _REPEATABLE_WORKSPACES[0]

    # transformers reads it at each call, and passes it to the flash-attn package.
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    torch.backends.cuda.enable_cudnn_sdp(False)

    # Also keeps torch.compile from choosing kernels by measuring their speed.
    torch.use_deterministic_algorithms(True)

    # Otherwise every new tensor would first be filled with NaN, to detect reads of uninitialized
    # memory. This changes no result, and costs a pass over the memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def lacks_deterministic_kernel(error: BaseException) -> bool:
    """Whether the error was raised by an operation without a deterministic kernel."""
    return isinstance(error, RuntimeError) and _MISSING_KERNEL_MARK in str(error)

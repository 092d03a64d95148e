"""Emulates which tensors CUDA saves for the backward pass, on a machine without CUDA.

The estimate runs a forward pass on tensors without values. They are tensors of the CPU, because
those of "cuda" need a build of torch with CUDA. Under autocast, operations on the CPU save fewer
bytes: on CUDA, powers, norms, softmax and others compute in float32 (Micikevicius et al. 2018; the
lists are macros of torch's ATen/autocast_mode.h). GPT-2's activation `gelu_new`, which has a power,
then saves most of its values in float32, too. While the estimate counts, these operations follow
CUDA's rule here. Two kernels differ as well: CUDA's dropout saves a mask of one byte per value, and
its attention with dropout or a mask does not save the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import Library

FLOAT32_OPERATIONS = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "dist", "pdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
"""ATen operations that autocast computes in float32 on CUDA, but not on a CPU."""

FLOAT32_RESULT_OPERATIONS = (
    "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
"""ATen operations with input in half precision and a result in float32 on CUDA."""


@contextmanager
def follow_cuda_rules() -> Iterator[None]:
    """Context in which operations on the CPU save the same tensors for the backward pass as CUDA.

    It affects the whole process. Results differ from CUDA, so use it only on tensors without
    values.
    """
    library = Library("aten", "IMPL")
    try:
        for name in FLOAT32_OPERATIONS:
            library.impl(name, _wrap_in_float32(_find_operation(name)), "AutocastCPU")
        for name in FLOAT32_RESULT_OPERATIONS:
            library.impl(name, _wrap_to_float32(_find_operation(name)), "AutocastCPU")
        library.impl("dropout", _apply_dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attend_fused, "AutogradCPU")
        yield
    finally:
        library._destroy()


def _find_operation(name: str) -> Any:
    """Returns an ATen operation, such as `softmax.int`."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _wrap_in_float32(operation: Any) -> Callable[..., Any]:
    """Wraps an operation to compute on float32 copies of its half-precision arguments."""

    def compute(*arguments: Any, **keywords: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            wide_arguments = [_widen_argument(value) for value in arguments]
            wide_keywords = {name: _widen_argument(value) for name, value in keywords.items()}
            return operation(*wide_arguments, **wide_keywords)

    return compute


def _widen_argument(value: Any) -> Any:
    """Converts a half-precision tensor to float32; returns any other value unchanged."""
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_narrow else value


def _wrap_to_float32(operation: Any) -> Callable[..., Any]:
    """Wraps an operation to return float32, unless its caller passes another type."""
    names = [argument.name for argument in operation._schema.arguments]

    def compute(*arguments: Any, **keywords: Any) -> Any:
        arguments_by_name = dict(zip(names, arguments, strict=False)) | keywords
        if arguments_by_name.get("dtype") is None:
            arguments_by_name["dtype"] = torch.float32
        values = arguments_by_name.pop(names[0])
        with torch.autocast("cpu", enabled=False):
            return operation(values, **arguments_by_name)

    return compute


def _apply_dropout(values: torch.Tensor, probability: float, is_training: bool) -> torch.Tensor:
    """Applies CUDA's dropout kernel, which saves a mask."""
    if not probability or not is_training:
        return values
    return torch.native_dropout(values, probability, is_training)[0]


def _attend_fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **keywords: Any,
) -> torch.Tensor:
    """Stands in for CUDA's fused attention: saves the same tensors, but computes other values."""
    if attn_mask is not None:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    attention = torch.ops.aten.scaled_dot_product_attention.default
    # A fused kernel saves the state of its random numbers, not a mask of the dropped values, so
    # dropout saves nothing.
    dropout = 0.0
    return attention.decompose(query, key, value, attn_mask, dropout, is_causal, **keywords)

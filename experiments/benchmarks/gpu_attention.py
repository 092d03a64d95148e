"""Which kernel computes attention on this GPU, whether it repeats exactly, and its time.

    python experiments/benchmarks/gpu_attention.py

prints one JSON object, for GPT-2 XL's shape with 8 x 1,024 tokens in bf16: forward and backward
pass of `scaled_dot_product_attention` with a mask of packed documents and causal alone, of torch's
attention on documents of varying length, and the first call with a new length, for which cuDNN
builds a plan.
"""

from __future__ import annotations

import inspect
import json
import time
from typing import Any

import torch
from gpu_kernels import milliseconds
from torch.nn.functional import scaled_dot_product_attention

ROWS, HEADS, LENGTH, WIDTH = 8, 25, 1024, 64
KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
REPEATS = 20
NEW_LENGTHS = (960, 896, 832)

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(length: int = LENGTH) -> Inputs:
    """Random query, key and value, bf16 [rows, heads, length, width]."""
    sizes = (3, ROWS, HEADS, length, WIDTH)
    query, key, value = torch.randn(sizes, device="cuda", dtype=torch.bfloat16).unbind()
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def documents() -> torch.Tensor:
    """Numbers of the documents of about 250 tokens that are packed into rows."""
    return (torch.rand(ROWS, LENGTH, device="cuda") < 0.004).cumsum(1)


def mask_of(numbers: torch.Tensor) -> torch.Tensor:
    """Causal attention within each document, bool [rows, 1, length, length]."""
    causal = torch.ones(LENGTH, LENGTH, device="cuda", dtype=torch.bool).tril()
    return ((numbers[:, :, None] == numbers[:, None]) & causal)[:, None]


def repeat(tensors: Inputs, mask: torch.Tensor | None) -> dict[str, Any]:
    """Counts how many of equal backward passes differ, and measures one forward and backward."""
    slope = torch.randn_like(tensors[0])

    def gradients() -> tuple[torch.Tensor, ...]:
        output = scaled_dot_product_attention(*tensors, mask, is_causal=mask is None)
        return torch.autograd.grad(output, tensors, slope)

    first = gradients()
    differ = sum(not all(map(torch.equal, first, gradients())) for _ in range(REPEATS))
    return {"differ": differ, "of": REPEATS, "ms": milliseconds(gradients)}


def varying(tensors: Inputs, numbers: torch.Tensor, mask: torch.Tensor) -> Any:
    """Torch's attention with the borders of documents, beside the mask that says the same."""
    from torch.nn.attention.varlen import varlen_attn

    def flatten(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.detach().transpose(1, 2).reshape(ROWS * LENGTH, HEADS, WIDTH)
        return whole.requires_grad_()

    flat = tuple(map(flatten, tensors))
    first = torch.ones(ROWS, 1, device="cuda", dtype=torch.bool)
    starts = torch.cat([first, numbers.diff(dim=1) > 0], 1).flatten().nonzero().flatten()
    borders = torch.cat([starts, starts.new_tensor([ROWS * LENGTH])]).int()
    has_window = "window_size" in inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if has_window else {"is_causal": True}

    attention: Any = varlen_attn  # whose arguments differ between versions

    def attend() -> torch.Tensor:
        output: torch.Tensor = attention(*flat, borders, borders, LENGTH, LENGTH, **causal)
        return output

    output = attend()
    expected = scaled_dot_product_attention(*tensors, mask).transpose(1, 2).reshape(output.shape)
    slope = torch.ones_like(output)
    return {
        "largest_difference": (output - expected).abs().max().item(),
        "ms": milliseconds(lambda: torch.autograd.grad(attend(), flat, slope)),
    }


def new_length_ms(length: int) -> float:
    """Milliseconds of the first call with a length."""
    tensors = inputs(length)
    mask = torch.ones(ROWS, 1, length, length, device="cuda", dtype=torch.bool).tril()
    torch.cuda.synchronize()
    began = time.perf_counter()
    scaled_dot_product_attention(*tensors, mask).sum().backward()
    torch.cuda.synchronize()
    return round((time.perf_counter() - began) * 1e3, 1)


def main() -> None:
    """Measures, and prints the result."""
    tensors, numbers = inputs(), documents()
    mask = mask_of(numbers)
    result: dict[str, Any] = {
        "kernel": {
            "mask": KERNELS[torch._fused_sdp_choice(*tensors, mask)],
            "causal": KERNELS[torch._fused_sdp_choice(*tensors, is_causal=True)],
        }
    }
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        name = "deterministic" if deterministic else "default"
        result[name] = {"mask": repeat(tensors, mask), "causal": repeat(tensors, None)}
    torch.use_deterministic_algorithms(False)
    try:
        result["varlen"] = varying(tensors, numbers, mask)
    except (ImportError, RuntimeError, TypeError) as error:  # the rest is worth knowing without it
        result["varlen"] = {"missing": f"{type(error).__name__}: {error}".splitlines()[0]}
    result["new_length_ms"] = {str(length): new_length_ms(length) for length in NEW_LENGTHS}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

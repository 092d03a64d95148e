"""Small questions about this GPU's kernels: skipped steps, activation, vocabulary, copies.

    python experiments/benchmarks/gpu_kernels.py

prints one JSON object: whether a fused AdamW that is told of a value that is not finite leaves
weights and counter as they are; milliseconds of GPT-2 XL's activation in a layer (forward and
backward, 8 x 1,024 tokens), of the three products of a chunk of the loss by vocabulary, and of a
copy of one GiB to pageable and to pinned memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu

TOKENS, WIDTH, INNER = 8192, 1600, 6400
CHUNK = 1335
"""Rows of a chunk of the loss: 2**26 logits of 50,257 tokens."""


def milliseconds(action: Callable[[], Any], repeats: int = 10) -> float:
    """The mean time of an action on the device, after one to warm up."""
    action()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        action()
    torch.cuda.synchronize()
    return round((time.perf_counter() - began) / repeats * 1e3, 3)


def skipped_step() -> dict[str, Any]:
    """One step of AdamW, and one that `found_inf` makes it skip."""
    weights = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer: Any = torch.optim.AdamW([weights], lr=1e-2, fused=True)
    weights.grad = torch.ones_like(weights)
    optimizer.found_inf = torch.zeros((), device="cuda")
    optimizer.step()
    before = weights.detach().clone()
    weights.grad = torch.full_like(weights, float("nan"))
    optimizer.found_inf = torch.ones((), device="cuda")
    optimizer.step()
    return {
        "weights_are_equal": torch.equal(weights, before),
        "steps": optimizer.state[weights]["step"].item(),
    }


def activation() -> dict[str, Any]:
    """Transformers' `gelu_new` beside the same function in one kernel."""
    from transformers.activations import NewGELUActivation

    values = torch.randn(TOKENS, INNER, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    slope = torch.randn_like(values)
    unfused = NewGELUActivation()

    def fused(inputs: torch.Tensor) -> torch.Tensor:
        return gelu(inputs, approximate="tanh")

    wide = torch.linspace(-8, 8, 4096, device="cuda")
    result: dict[str, Any] = {
        "largest_difference": (unfused(wide) - fused(wide)).abs().max().item()
    }
    for name, function in (("gelu_new", unfused), ("fused", fused)):
        for casts in (True, False):
            with torch.autocast("cuda", torch.bfloat16, enabled=casts):

                def both(function: Callable[..., torch.Tensor] = function) -> Any:
                    return torch.autograd.grad(function(values).bfloat16(), values, slope)

                result[f"{name}, autocast {casts}, ms"] = milliseconds(both)
    return result


def products_ms(vocabulary: int) -> float:
    """The products of a chunk of the loss: logits, and the gradients of states and weights."""
    states = torch.randn(CHUNK, WIDTH, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(vocabulary, WIDTH, device="cuda", dtype=torch.bfloat16)
    logits = states @ weights.T
    return milliseconds(lambda: (states @ weights.T, logits @ weights, logits.T @ states))


def copy_ms(pinned: bool) -> float:
    """A copy of one GiB from the device to main memory."""
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.zeros(2**30, dtype=torch.uint8, pin_memory=pinned)
    return milliseconds(lambda: target.copy_(source), 5)


def main() -> None:
    """Measures, and prints the result."""
    result = {
        "skipped_step": skipped_step(),
        "activation": activation(),
        "products_ms": {str(size): products_ms(size) for size in (50257, 50304)},
        "copy_of_a_gib_ms": {"pageable": copy_ms(False), "pinned": copy_ms(True)},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

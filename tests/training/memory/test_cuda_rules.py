"""The rules of CUDA's autocast on a machine without CUDA, against those that torch declares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from bsmeta.training.memory.cuda_rules import (
    FLOAT32_OPERATIONS,
    FLOAT32_RESULT_OPERATIONS,
    follow_cuda_rules,
)

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def declared(macro: str) -> set[str]:
    """Returns the operations of a list of torch for which autocast on a CPU has no rule."""
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", HEADER.read_text())
    assert body is not None
    names = {
        ".".join(filter(None, parts)) for parts in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
    }
    assert names
    return {
        name
        for name in names
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU")
    }


def test_the_lists_equal_the_lists_of_torch() -> None:
    assert set(FLOAT32_OPERATIONS) == declared("AT_FORALL_FP32")
    assert set(FLOAT32_RESULT_OPERATIONS) == declared("AT_FORALL_FP32_SET_OPT_DTYPE")


HALF = torch.full((2, 4), 0.5, dtype=torch.bfloat16)
OPERATIONS = {
    "pow": lambda: HALF**3,
    "torch.pow": lambda: torch.pow(HALF, exponent=3.0),
    "rsqrt": lambda: torch.rsqrt(HALF),
    "layer_norm": lambda: functional.layer_norm(HALF, (4,)),
    "rms_norm": lambda: functional.rms_norm(HALF, (4,)),
    "softmax": lambda: HALF.softmax(-1),
    "log_softmax": lambda: functional.log_softmax(HALF, dim=-1),
    "sum": HALF.sum,
    "sum of a dimension": lambda: HALF.sum(-1, keepdim=True),
    "cross_entropy": lambda: functional.cross_entropy(HALF, torch.zeros(2, dtype=torch.long)),
    "norm": lambda: torch.linalg.vector_norm(HALF),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_in_float32_as_long_as_the_rules_hold(name: str) -> None:
    operation = OPERATIONS[name]
    plain = operation()
    with torch.autocast("cpu", torch.bfloat16):
        before = operation().dtype
        with follow_cuda_rules():
            result = operation()
        after = operation().dtype
    assert result.dtype == torch.float32
    assert before == after
    with follow_cuda_rules():  # nothing changes without autocast
        assert torch.equal(operation(), plain)
    torch.testing.assert_close(result, plain.float(), rtol=0.01, atol=0.01)


def test_a_type_named_by_the_caller_is_kept() -> None:
    with torch.autocast("cpu", torch.bfloat16), follow_cuda_rules():
        assert HALF.sum(dtype=torch.float64).dtype == torch.float64
        assert HALF.softmax(-1, dtype=torch.bfloat16).dtype == torch.bfloat16


def kept_bytes(compute: object, *inputs: torch.Tensor) -> int:
    """Returns the bytes that an operation keeps for the backward pass, besides its inputs."""
    input_storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in input_storages:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert callable(compute)
        result = compute(*inputs)
    assert result is not None
    return sum(kept.values())


def test_dropout_keeps_one_byte_per_value() -> None:
    values = torch.ones(8, 16, requires_grad=True)

    def drop(values: torch.Tensor) -> torch.Tensor:
        return functional.dropout(values, 0.5)

    assert kept_bytes(drop, values) == 8 * 16 * 4
    with follow_cuda_rules():
        assert kept_bytes(drop, values) == 8 * 16
        assert torch.equal(functional.dropout(values, 0.5, training=False), values)


def test_attention_with_dropout_keeps_no_scores() -> None:
    query = torch.ones(2, 3, 16, 8, requires_grad=True)

    def attend(query: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            query, query, query, dropout_p=0.5, is_causal=True
        )

    scores = 2 * 3 * 16 * 16 * 4
    assert kept_bytes(attend, query) > scores
    with follow_cuda_rules():
        output, log_sums = 2 * 3 * 16 * 8 * 4, 2 * 3 * 16 * 4
        assert kept_bytes(attend, query) == output + log_sums

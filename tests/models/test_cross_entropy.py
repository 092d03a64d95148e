"""Chunked cross-entropy against torch's: losses, gradients, memory, and inside real models."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig

from bsmeta.core.errors import ConfigurationError
from bsmeta.models.cross_entropy import (
    IGNORED_TARGET,
    ChunkedLoss,
    compute_chunk_rows,
    compute_chunked_cross_entropy,
)

SMALL = {"vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 2}
SHAPES = {
    "llama": LlamaConfig(**LLAMA),
    "tied llama": LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=96, n_embd=16, n_layer=2, n_head=2, n_positions=32),
}


@pytest.fixture
def problem() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(0, 50, (23,), generator=generator)
    targets[[0, 5, 22]] = IGNORED_TARGET
    return {
        "hidden": torch.randn(23, 8, generator=generator).requires_grad_(),
        "weight": torch.randn(50, 8, generator=generator).requires_grad_(),
        "bias": torch.randn(50, generator=generator).requires_grad_(),
        "targets": targets,
    }


def compute_plain(problem: dict[str, torch.Tensor], bias: torch.Tensor | None) -> torch.Tensor:
    logits = functional.linear(problem["hidden"], problem["weight"], bias).float()
    return functional.cross_entropy(logits, problem["targets"], reduction="none")


@pytest.mark.parametrize("rows", [1, 7, 23, 100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_losses_and_gradients_equal_those_of_torch(
    problem: dict[str, torch.Tensor], rows: int, with_bias: bool
) -> None:
    bias = problem["bias"] if with_bias else None
    leaves = [problem["hidden"], problem["weight"], *([bias] if bias is not None else [])]
    expected = compute_plain(problem, bias)
    wanted = torch.autograd.grad(expected.sum() * 0.3, leaves)
    chunked_losses = compute_chunked_cross_entropy(
        problem["hidden"], problem["weight"], bias, problem["targets"], rows
    )
    torch.testing.assert_close(chunked_losses[:-1], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(chunked_losses[-1], expected.sum(), rtol=1e-5, atol=0)
    assert chunked_losses[[0, 5, 22]].tolist() == [0.0, 0.0, 0.0]
    for one, other in zip(
        torch.autograd.grad(chunked_losses[-1] * 0.3, leaves), wanted, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_under_autocast_products_are_in_bf16_and_sums_in_float32(
    problem: dict[str, torch.Tensor],
) -> None:
    leaves = [problem["hidden"], problem["weight"]]
    with torch.autocast("cpu", torch.bfloat16):
        expected = compute_plain(problem, None)
        chunked_losses = compute_chunked_cross_entropy(*leaves, None, problem["targets"], 7)
    assert chunked_losses.dtype == torch.float32
    torch.testing.assert_close(chunked_losses[:-1], expected, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected.sum(), leaves)
    for one, other in zip(torch.autograd.grad(chunked_losses[-1], leaves), wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_without_gradients_no_graph_is_built(problem: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        chunked_losses = compute_chunked_cross_entropy(
            problem["hidden"], problem["weight"], None, problem["targets"], 7
        )
    assert chunked_losses.grad_fn is None
    torch.testing.assert_close(
        chunked_losses[:-1], compute_plain(problem, None).detach(), rtol=1e-5, atol=1e-6
    )


class LargestLogits(TorchDispatchMode):
    """Records the largest number of floats in live tensors with a dimension of V entries."""

    def __init__(self, vocabulary: int, but: set[tuple[int, ...]]) -> None:
        super().__init__()
        self._vocabulary, self._but = vocabulary, but
        self._alive: dict[int, int] = {}
        self.largest = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self._note(result)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if self._vocabulary not in tensor.shape or tuple(tensor.shape) in self._but:
            return
        if key not in self._alive:
            self._alive[key] = tensor.numel()
            weakref.finalize(storage, self._alive.pop, key, None)
        self.largest = max(self.largest, sum(self._alive.values()))


def measure_largest_logits(
    loss: Any, hidden: torch.Tensor, weight: torch.Tensor, width: int
) -> int:
    """Returns the largest number of live logits of `width` classes, without weight and gradient."""
    size = weight.shape[1]
    with LargestLogits(width, {(width, size), (size, width)}) as largest:
        loss(hidden, weight).backward()
    return largest.largest


@pytest.mark.parametrize(("classes", "padded"), [(1024, 1024), (1000, 1024)])
def test_the_logits_of_the_whole_batch_are_never_kept(classes: int, padded: int) -> None:
    hidden = torch.randn(512, 16, requires_grad=True)
    weight = torch.randn(classes, 16, requires_grad=True)
    targets = torch.randint(0, classes, (512,))

    def chunked(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return compute_chunked_cross_entropy(h, w, None, targets, 32)[-1]

    def whole(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(h @ w.t(), targets, reduction="sum")

    assert measure_largest_logits(whole, hidden, weight, classes) >= 512 * classes
    largest = measure_largest_logits(chunked, hidden, weight, padded)
    assert 32 * padded <= largest <= 4 * 32 * padded


@pytest.mark.parametrize("name", SHAPES)
def test_computing_losses_does_not_change_the_model(name: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(SHAPES[name]).eval()
    names = list(model.state_dict())
    ids = torch.randint(0, 96, (2, 12))
    targets = functional.pad(ids[:, 1:], (0, 1), value=IGNORED_TARGET)
    targets[0, 3] = IGNORED_TARGET
    logits = model(input_ids=ids, use_cache=False).logits
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    expected.sum().backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    assert ChunkedLoss.can_wrap(model)
    chunked = ChunkedLoss(model, 5 * 96)
    assert (chunked.exceeds_limit(5), chunked.exceeds_limit(6)) == (False, True)
    total, losses = chunked(model, targets, input_ids=ids, use_cache=False)
    total.backward()
    torch.testing.assert_close(losses.flatten(), expected.detach(), rtol=1e-5, atol=1e-6)
    for parameter, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[parameter], rtol=1e-5, atol=1e-6)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, logits)


def test_a_model_that_changes_its_logits_afterwards_is_refused() -> None:
    shape = Gemma2Config(**LLAMA, head_dim=8, final_logit_softcapping=1.0)
    model = AutoModelForCausalLM.from_config(shape, attn_implementation="eager")
    ids = torch.randint(0, 96, (1, 8))
    with pytest.raises(ConfigurationError, match="Gemma2ForCausalLM scales or cuts its logits"):
        ChunkedLoss(model, 96)(model, ids, input_ids=ids, use_cache=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_padding_the_classes_for_alignment_does_not_change_the_results(
    problem: dict[str, torch.Tensor], dtype: torch.dtype, with_bias: bool
) -> None:
    """Hidden states and weight are integers, with exact products and sums in every dtype."""
    hidden = problem["hidden"].detach().round().to(dtype).requires_grad_()
    weight = problem["weight"].detach().round().to(dtype).requires_grad_()
    bias = problem["bias"].detach().round().to(dtype).requires_grad_() if with_bias else None
    leaves = [hidden, weight, *([bias] if bias is not None else [])]
    logits = functional.linear(
        hidden.float(), weight.float(), None if bias is None else bias.float()
    )
    expected = functional.cross_entropy(logits, problem["targets"], reduction="none")
    wanted = torch.autograd.grad(expected.sum(), leaves)

    with ProductWidths() as products:
        losses = compute_chunked_cross_entropy(hidden, weight, bias, problem["targets"], 7)

    assert products.widths == {64}
    torch.testing.assert_close(losses[:-1], expected, rtol=1e-6, atol=1e-6)
    tolerance = 1e-6 if dtype == torch.float64 else 2e-2  # of gradients in that dtype
    for gradient, reference in zip(torch.autograd.grad(losses[-1], leaves), wanted, strict=True):
        assert gradient.shape == reference.shape
        torch.testing.assert_close(gradient, reference, rtol=tolerance, atol=tolerance)


class ProductWidths(TorchDispatchMode):
    """Records the number of classes of each matmul: the dimension that is neither 8 nor rows."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            sizes = {size for tensor in args if tensor.ndim == 2 for size in tensor.shape}
            self.widths |= {size for size in sizes if size > 23}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("logits", "classes", "rows"),
    [
        (2**26, 50_257, 1280),  # 1,335 of 50,257 classes; 1,334 of the padded 50,304
        (2**26, 4096, 16_384),
        (2**19, 4096, 128),
        (2**19 - 1, 4096, 127),
        (10, 4096, 1),
    ],
)
def test_the_rows_of_a_chunk_fill_tiles_and_keep_the_limit(
    logits: int, classes: int, rows: int
) -> None:
    assert compute_chunk_rows(logits, classes) == rows


def test_an_output_layer_of_another_class_is_unchanged() -> None:
    assert not ChunkedLoss.can_wrap(nn.Linear(2, 2))

"""Attention: documents packed together against each alone, kernels, borders, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
)
from transformers.utils import is_flash_attn_2_available

from bsmeta.core.errors import ConfigurationError
from bsmeta.models import attention
from bsmeta.models.layers import list_layers
from tests.models.architectures import ARCHITECTURES, make_shape

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
LLAMA = LlamaConfig(**SMALL)
MISTRAL = MistralConfig(**SMALL, sliding_window=16)
GPT2 = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=256, attn_pdrop=0.0)
SCALED = GPT2Config(
    vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=256, attn_pdrop=0.0,
    scale_attn_by_inverse_layer_idx=True,
)  # fmt: skip
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 0, 1, 2, 3, 4]])


def run(model: nn.Module, ids: torch.Tensor, positions: torch.Tensor, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, use_cache=False, **more).logits


def build(shape: Any, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(shape, attn_implementation=implementation).eval()


def check_packed_equals_alone(model: nn.Module, implementation: str) -> None:
    """Compares two rows of two documents each with each document alone."""
    parts = [torch.randint(0, 96, (2, n)) for n in (70, 58)]
    positions = torch.cat([torch.arange(70), torch.arange(58)]).expand(2, -1)
    arguments = attention.build_attention_arguments(
        implementation, positions, attention.compute_borders(positions)
    )
    packed = run(model, torch.cat(parts, 1), positions, **arguments)
    alone = [run(model, part, torch.arange(part.shape[1]).expand(2, -1)) for part in parts]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "implementation"),
    [
        (LLAMA, "eager"),
        (GPT2, "eager"),
        (LLAMA, "sdpa"),
        (GPT2, "sdpa"),
        (LLAMA, "varlen"),
        (GPT2, "varlen"),
        (MISTRAL, "varlen"),
        pytest.param(LLAMA, "flex_attention", marks=pytest.mark.slow),  # compiles
    ],
)
def test_packed_documents_do_not_see_each_other(shape: Any, implementation: str) -> None:
    check_packed_equals_alone(build(shape, implementation), implementation)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_flash_attn_2_available()),
    reason="flash attention needs a GPU and the package flash-attn",
)
@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_packed_documents_do_not_see_each_other_in_flash_attention(shape: Any) -> None:
    model = build(shape, attention.FLASH).to("cuda", torch.bfloat16)
    ids, positions = torch.randint(0, 96, (2, 128)).cuda(), torch.arange(64).repeat(2, 2).cuda()
    arguments = attention.build_attention_arguments(
        attention.FLASH, positions, attention.compute_borders(positions)
    )
    packed = run(model, ids, positions, **arguments)
    second = run(model, ids[:, 64:].contiguous(), positions[:, :64])
    torch.testing.assert_close(packed[:, 64:], second, rtol=2e-2, atol=2e-2)


def test_the_borders_of_documents_follow_from_the_positions() -> None:
    borders = attention.compute_borders(POSITIONS)
    assert borders.dtype == torch.int32
    assert borders.tolist() == [0, 5, 8, 10, 11, 16]


def compute_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, **_: Any
) -> torch.Tensor:
    """Computes flash-attn's function of the same name, document by document."""
    out = []
    for begin, end in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True):
        one = (x[begin:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        done = functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)
        out.append(done.squeeze(0).transpose(0, 1))
    return torch.cat(out)


def test_flash_attention_receives_the_borders_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the code of transformers, with flash-attn's function computed by hand."""
    from transformers import modeling_flash_attention_utils as flash

    seen: list[dict[str, Any]] = []

    def varlen(*tensors: torch.Tensor, **named: Any) -> torch.Tensor:
        seen.append(named)
        return compute_varlen(*tensors, **named)

    def taken(*_: Any, **__: Any) -> Any:
        return (None, varlen, None, None, None), (process, process)

    def process(**named: Any) -> dict[str, Any]:
        return {"max_seqlen_q": named["max_seqlen_q"], "max_seqlen_k": named["max_seqlen_k"]}

    monkeypatch.setattr(flash, "lazy_import_flash_attention", taken)
    model = build(LLAMA, "sdpa")
    ids = torch.randint(0, 96, (2, 8))
    expected = run(model, ids, POSITIONS)
    model.config._attn_implementation = attention.FLASH
    arguments = attention.build_attention_arguments(
        attention.FLASH, POSITIONS, attention.compute_borders(POSITIONS)
    )
    flash_outputs = run(model, ids, POSITIONS, **arguments)
    torch.testing.assert_close(flash_outputs, expected, rtol=1e-4, atol=1e-5)
    assert [call["max_seqlen_q"] for call in seen] == [8, 8]  # a layer each; a bound


def test_the_mask_separates_packed_documents() -> None:
    mask = attention.build_packed_mask(torch.tensor([[1, 1, 2]]))
    assert mask.tolist() == [[[[True, False, False], [True, True, False], [False, False, True]]]]


def test_sdpa_computes_the_same_with_our_mask_and_the_mask_of_transformers() -> None:
    """On a GPU, our mask is built without synchronizing with the device."""
    model, ids = build(GPT2, "sdpa"), torch.randint(0, 96, (2, 8))
    mask = attention.build_packed_mask((POSITIONS == 0).cumsum(1))
    masked_outputs = run(model, ids, POSITIONS, attention_mask=mask)
    torch.testing.assert_close(masked_outputs, run(model, ids, POSITIONS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [LLAMA, GPT2, MISTRAL], ids=["llama", "gpt2", "mistral"])
def test_losses_and_gradients_are_equal_with_borders_and_with_a_mask(shape: Any) -> None:
    ids = torch.randint(0, 96, (2, 128))
    positions = torch.cat([torch.arange(50), torch.arange(30), torch.arange(48)]).expand(2, -1)
    results = []
    for implementation in ("sdpa", attention.VARLEN):
        model = build(shape, implementation)
        borders = attention.compute_borders(positions)
        arguments = attention.build_attention_arguments(implementation, positions, borders)
        inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        logits = model(**inputs, **arguments).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        results.append((loss, [weight.grad for weight in model.parameters()]))
    (expected, wanted), (loss, gradients) = results
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients, wanted, rtol=1e-5, atol=1e-6)


# OPT's own mask does not separate packed documents.
SEPARATING = [architecture for architecture in ARCHITECTURES if architecture.name != "opt"]


@pytest.mark.parametrize("name", [architecture.name for architecture in SEPARATING])
def test_every_supported_architecture_computes_the_same(name: str) -> None:
    """Packed documents and whole rows, compared with eager attention."""
    shape = make_shape(name)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    if attention.find_obstacle_to_custom_attention(kind, shape) is not None:
        with pytest.raises(ConfigurationError, match="attn_implementation=varlen: "):
            choose("varlen", shape)
        return
    eager, varlen, causal = (
        build(make_shape(name), implementation)
        for implementation in ("eager", attention.VARLEN, attention.CAUSAL)
    )
    ids = torch.randint(0, 4096, (2, 64))
    packed = torch.cat([torch.arange(40), torch.arange(24)]).expand(2, -1)
    whole = torch.arange(64).expand(2, -1)
    borders = attention.compute_borders(packed)
    arguments = attention.build_attention_arguments(attention.VARLEN, packed, borders)
    of_packed, of_whole = run(eager, ids, packed), run(eager, ids, whole)
    torch.testing.assert_close(run(varlen, ids, packed, **arguments), of_packed,
                               rtol=1e-5, atol=1e-6)  # fmt: skip
    torch.testing.assert_close(run(causal, ids, whole), of_whole, rtol=1e-5, atol=1e-6)


def attend_naively(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, borders: torch.Tensor,
    scale: float, window: int | None,
) -> torch.Tensor:  # fmt: skip
    """Computes attention token by token, within document and window."""
    outputs = torch.empty_like(query)
    limits = borders.tolist()
    groups = query.shape[1] // key.shape[1]
    for begin, end in pairwise(limits):
        for token in range(begin, end):
            first = begin if window is None else max(begin, token - window + 1)
            for head in range(query.shape[1]):
                keys = key[first : token + 1, head // groups]
                weights = (keys @ query[token, head] * scale).softmax(0)
                outputs[token, head] = weights @ value[first : token + 1, head // groups]
    return outputs


def kernel_of_torch_2_10(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor, max_q: int, max_k: int, is_causal: bool = False,
    return_aux: Any = None,
) -> torch.Tensor:  # fmt: skip
    assert is_causal
    assert query.shape == key.shape
    return attend_naively(query, key, value, cu_seq_q, query.shape[-1] ** -0.5, None)


def kernel_of_torch_2_11(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor, max_q: int, max_k: int, *, return_aux: Any = None,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:  # fmt: skip
    assert query.shape == key.shape
    assert scale is not None
    left, right = window_size
    assert right == 0
    return attend_naively(query, key, value, cu_seq_q, scale, None if left < 0 else left + 1)


def kernel_of_torch_2_13(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None, max_q: int, max_k: int, *, return_aux: Any = None,
    scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    seqused_k: Any = None, block_table: Any = None, num_splits: int | None = None,
) -> torch.Tensor:  # fmt: skip
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert scale is not None
    left, right = window_size
    assert right == 0
    return attend_naively(query, key, value, cu_seq_q, scale, None if left < 0 else left + 1)


KERNELS = [kernel_of_torch_2_10, kernel_of_torch_2_11, kernel_of_torch_2_13]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [LLAMA, SCALED, MISTRAL], ids=["llama", "scaled", "mistral"])
def test_the_kernel_is_called_with_the_signature_of_its_torch_version(
    kernel: Callable[..., torch.Tensor], shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through transformers, as on a GPU, with the kernel computed by hand."""
    ids = torch.randint(0, 96, (2, 24))
    positions = torch.cat([torch.arange(20), torch.arange(4)]).expand(2, -1)
    expected = run(build(shape, "eager"), ids, positions)
    model = build(shape, attention.VARLEN)
    borders = attention.compute_borders(positions)
    calls: list[tuple[int, ...]] = []
    called = attention.VarlenKernel(kernel)

    def record(*arguments: Any) -> torch.Tensor:
        calls.append(tuple(arguments[0].shape))
        return called(*arguments)

    takes = called.takes_window
    monkeypatch.setattr(attention, "TORCH_KERNEL", record)
    monkeypatch.setattr(
        attention, "has_varlen_kernel", lambda query, window: window is None or takes
    )

    arguments = attention.build_attention_arguments(attention.VARLEN, positions, borders)
    logits = run(model, ids, positions, **arguments)

    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    without_window = kernel is kernel_of_torch_2_10 and shape is MISTRAL
    assert calls == ([] if without_window else [(48, 2, 16)] * 2)


@pytest.mark.parametrize("groups", [1, 4])
def test_the_installed_torch_accepts_the_arguments(groups: int) -> None:
    """On fake tensors, for which torch checks arguments and shapes, also of the backward pass."""
    with FakeTensorMode():
        query = torch.empty(48, 4, 16, dtype=torch.bfloat16, requires_grad=True)
        key, value = (
            torch.empty(48, groups, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
        )
        borders = torch.empty(5, dtype=torch.int32)
        kernel = attention.VarlenKernel(varlen_attn)
        for window in (None, 8):
            output = kernel(query, key, value, borders, 24, 0.25, window)
            assert output.shape == query.shape
            gradients = torch.autograd.grad(output.float().sum(), (query, key, value))
            assert [tensor.shape for tensor in gradients] == [query.shape, key.shape, value.shape]


def test_float32_and_cpus_use_sdpa_with_a_mask() -> None:
    assert not attention.has_varlen_kernel(torch.empty(1, 1, 8, 8, dtype=torch.bfloat16), None)
    assert not attention.has_varlen_kernel(torch.empty(1, 1, 8, 8), None)


def test_borders_are_padded_to_a_number_common_to_batches() -> None:
    borders = torch.tensor([0, 5, 8, 10, 11, 64], dtype=torch.int32)
    padded = attention.pad_borders(borders, 128)
    assert padded.dtype == torch.int32
    assert padded.tolist() == [0, 5, 8, 10, 11, 64, 64, 64, 64]  # 128 / 16 + 1
    assert attention.pad_borders(borders, 64).tolist() == [0, 5, 8, 10, 11, 64, *[64] * 4]  # 2 x 5
    assert attention.pad_borders(borders, 32).tolist() == [0, 5, 8, 10, 11, 64]  # 2 x 3


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3))
def test_every_token_has_the_number_of_its_document(rows: list[list[int]]) -> None:
    """Also with empty documents at the end."""
    length = max(map(sum, rows))
    lengths = [[*row, length - sum(row)] for row in rows]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    borders = attention.pad_borders(attention.compute_borders(positions), 1000)
    numbers = attention.number_documents(borders, len(rows), length)
    expected = (positions.flatten() == 0).cumsum(0).view(len(rows), length)
    assert torch.equal(numbers, expected)


@pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_compiled_layers_see_one_shape_for_any_number_of_documents(shape: Any) -> None:
    model, plain = build(shape, attention.VARLEN), build(shape, "eager")
    counter = CompileCounter()
    torch.compiler.reset()
    try:
        for layer in list_layers(model):
            layer.compile(dynamic=False, backend=counter)
        graphs = []
        for cut in (40, 70, 100):
            ids = torch.randint(0, 96, (2, 128))
            positions = torch.cat([torch.arange(cut), torch.arange(128 - cut)]).expand(2, -1)
            if cut == 100:
                positions = torch.arange(128).expand(2, -1)  # one document
            borders = attention.pad_borders(attention.compute_borders(positions), 256)
            arguments = attention.build_attention_arguments(attention.VARLEN, positions, borders)
            compiled = run(model, ids, positions, **arguments)
            torch.testing.assert_close(compiled, run(plain, ids, positions), rtol=1e-4, atol=1e-5)
            graphs.append(counter.frame_count)
    finally:
        torch.compiler.reset()
    assert graphs[0] > 0
    assert graphs == graphs[:1] * 3


def test_the_kernel_is_one_operation_of_the_compiled_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traced as on a GPU, by fake tensors; the graph is not run."""
    targets: list[str] = []

    def refuse(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        raise NotImplementedError

    monkeypatch.setattr(attention, "has_varlen_kernel", lambda query, window: True)
    query, key = torch.empty(2, 2, 16, 8), torch.empty(2, 1, 16, 8)
    borders = torch.tensor([0, 9, 16, 32, 32], dtype=torch.int32)

    def attend() -> torch.Tensor:
        return attention.attend_causally(
            nn.Identity(), query, key, key, None, cu_seq_lens_q=borders, max_length_q=16
        )[0]

    torch.compiler.reset()
    try:
        with pytest.raises(BackendCompilerFailed):
            torch.compile(attend, backend=refuse, fullgraph=True, dynamic=False)()
    finally:
        torch.compiler.reset()
    assert sum("varlen_attn" in target for target in targets) == 1


@pytest.mark.parametrize("implementation", [attention.VARLEN, attention.CAUSAL])
@pytest.mark.parametrize("shape", [LLAMA, GPT2, MISTRAL], ids=["llama", "gpt2", "mistral"])
def test_whole_rows_need_no_mask(
    shape: Any, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined documents, and documents followed by padding with separate positions."""
    ids = torch.randint(0, 96, (2, 64))
    joined = torch.arange(64).expand(2, -1)
    padded = torch.cat([torch.arange(40), torch.arange(24)]).expand(2, -1)
    expected = run(build(shape, "eager"), ids, joined)
    masks: list[Any] = []
    sdpa = functional.scaled_dot_product_attention

    def record(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        masks.append((options["attn_mask"] is None, options["is_causal"]))
        return sdpa(*tensors, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", record)
    model = build(shape, implementation)
    for positions, length in ((joined, 64), (padded, 40)):
        arguments = attention.build_attention_arguments(implementation, positions, None)
        assert arguments == {}
        logits = run(model, ids, positions)
        torch.testing.assert_close(logits[:, :length], expected[:, :length], rtol=1e-4, atol=1e-5)
    if shape is not MISTRAL:  # whose window needs a mask
        assert masks == [(True, True)] * 4


def test_a_bidirectional_model_stays_bidirectional() -> None:
    """The check of causality then refuses it."""
    small = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
    shape = BertConfig(**small, attention_probs_dropout_prob=0.0)
    ids, positions = torch.randint(0, 96, (2, 16)), torch.arange(16).expand(2, -1)
    borders = attention.compute_borders(positions)
    arguments = attention.build_attention_arguments(attention.VARLEN, positions, borders)
    logits = run(build(shape, attention.VARLEN), ids, positions, **arguments)
    expected = run(build(shape, "eager"), ids, positions)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def choose(wanted: str, shape: Any, **circumstances: bool) -> str | None:
    defaults = {"half_precision": True, "compiled": False, "whole_rows": False, **circumstances}
    return attention.choose_attention(wanted, shape, **defaults).name


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the GPU and the packages that the choice sees."""

    def have(*packages: str, capability: tuple[int, int] = (9, 0)) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        monkeypatch.setattr(
            attention, "is_flash_attn_2_available", lambda: "flash-attn" in packages
        )
        monkeypatch.setattr(
            attention, "is_flash_attn_3_available", lambda: "flash-attn-3" in packages
        )

    return have


def test_without_a_gpu_transformers_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = attention.choose_attention(
        "auto", LLAMA, half_precision=True, compiled=False, whole_rows=False
    )
    assert choice == attention.Choice(None, "there is no GPU")


def test_auto_chooses_the_fastest_available_implementation(gpu: Callable[..., None]) -> None:
    gpu()
    assert choose("auto", LLAMA) == "varlen"
    assert choose("auto", LLAMA, compiled=True) == "varlen"
    assert choose("auto", LLAMA, half_precision=False) is None
    assert choose("auto", LLAMA, whole_rows=True) == "causal_sdpa"
    assert choose("auto", LLAMA, half_precision=False, whole_rows=True) == "causal_sdpa"
    gpu(capability=(7, 5))
    assert choose("auto", LLAMA) is None
    gpu("flash-attn")
    assert choose("auto", LLAMA) == "flash_attention_2"
    assert choose("auto", LLAMA, compiled=True) == "varlen"
    assert choose("auto", LLAMA, half_precision=False) is None
    gpu("flash-attn", "flash-attn-3")
    assert choose("auto", LLAMA) == "flash_attention_3"
    gpu("flash-attn", "flash-attn-3", capability=(8, 0))
    assert choose("auto", LLAMA) == "flash_attention_2"


DROPOUT = "the model has dropout in its attention"
OBSTACLES = [
    (GPT2Config(), DROPOUT),
    (LlamaConfig(**SMALL, attention_dropout=0.1), DROPOUT),
    (Gemma2Config(**SMALL, head_dim=16), "gemma2 caps the logits of its attention"),
    (GptOssConfig(), "gpt_oss needs kernels with attention sinks or blocks"),
    (BloomConfig(), "transformers' class for bloom supports no other attention"),
    (
        LlamaConfig(**SMALL, head_dim=260),
        "torch's flash attention has no kernel for the heads of llama",
    ),
]


@pytest.mark.parametrize(("shape", "reason"), OBSTACLES)
def test_a_model_unsupported_by_the_kernel_keeps_sdpa(
    shape: Any, reason: str, gpu: Callable[..., None]
) -> None:
    gpu()
    for whole_rows in (False, True):
        choice = attention.choose_attention(
            "auto", shape, half_precision=True, compiled=False, whole_rows=whole_rows
        )
        assert choice == attention.Choice(None, reason)
    with pytest.raises(ConfigurationError, match="attn_implementation=varlen: ") as caught:
        choose("varlen", shape)
    assert reason in str(caught.value)


def test_dropout_is_left_to_flash_attention_2(gpu: Callable[..., None]) -> None:
    gpu("flash-attn", "flash-attn-3")
    assert choose("auto", GPT2Config()) == "flash_attention_2"


@pytest.mark.parametrize("packages", [(), ("flash-attn",), ("flash-attn", "flash-attn-3")])
def test_no_kernel_of_the_hub_replaces_flash_attention(
    packages: tuple[str, ...], gpu: Callable[..., None]
) -> None:
    """transformers has a list of such kernels for GPT-OSS, and would load the first."""
    gpu(*packages)
    assert choose("auto", GptOssConfig()) is None
    with pytest.raises(ConfigurationError, match="cannot run it for a model of type gpt_oss"):
        choose("flash_attention_2", GptOssConfig())


def test_a_named_implementation_is_used(gpu: Callable[..., None]) -> None:
    assert choose("eager", LLAMA) == "eager"
    assert choose("varlen", LLAMA) == "varlen"
    assert choose("sdpa", LLAMA, whole_rows=True) == "sdpa"  # on a CPU
    gpu()
    assert choose("sdpa", LLAMA) == "sdpa"
    assert choose("sdpa", LLAMA, whole_rows=True) == "causal_sdpa"
    expected = "expected one of auto, eager, varlen, flash_attention_2, sdpa"
    with pytest.raises(ConfigurationError, match=expected):
        choose("flex_attention", GPT2)

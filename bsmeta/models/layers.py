"""Changes to the layers of a model: attention, recomputation, compilation, Liger's kernels, LoRA.

Documents packed into one sequence restart their positions. From these, transformers builds the mask
for eager attention and sdpa; flash attention must be given the documents' borders, because with
more than one sequence in a batch it ignores positions (`_is_packed_sequence` in transformers 5.23):
documents would silently attend to each other. `check_isolation` tests for that.

Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) are added by peft, and merged for export:
the weight W of an adapted layer stays as it is, and the layer computes with W + s·B·A, where only A
(rank × inputs) and B (outputs × rank, 0 at first) are trained, and s is alpha / rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import is_flash_attn_2_available

from bsmeta.config.causal_lm import LoraKeys
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import opaque_work

FLASH, FLEX, SDPA = "flash_attention_2", "flex_attention", "sdpa"

_SUPPORT = {FLASH: "_supports_flash_attn", FLEX: "_supports_flex_attn", SDPA: "_supports_sdpa"}
"""The attributes of a transformers model class that declare which attention it supports."""

BORDERS = "document_borders"
"""Name of the tensor with the documents' borders in a micro-batch, under flash attention."""

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ADAPTER = "default"

ALL_LINEAR = "all-linear"  # peft's name for all linear layers but the output layer


def choose_attention(wanted: str, shape: Any, *, half: bool, compiled: bool) -> str | None:
    """Chooses the attention implementation; None: transformers' default (sdpa if available).

    Args:
        half: Whether the model computes in bf16 or fp16, which flash attention requires.
        compiled: Whether its layers are compiled for a fixed shape, which the documents' borders
            do not have.

    Raises:
        ConfigurationError: If transformers' class of the model does not support `wanted`.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    can = {name: bool(getattr(kind, flag, False)) for name, flag in _SUPPORT.items()}
    if wanted == "auto":
        usable = torch.cuda.is_available() and is_flash_attn_2_available()
        return FLASH if usable and can[FLASH] and half and not compiled else None
    if not can.get(wanted, True):
        others = ", ".join(["auto", "eager", *(name for name in can if can[name])])
        raise ConfigurationError(
            f"attn_implementation={wanted}: transformers cannot run it for a model of type "
            f"{shape.model_type}; expected one of {others}"
        )
    return wanted


def borders_of(position_ids: torch.Tensor) -> torch.Tensor:
    """Computes where each document of a batch begins, followed by the end of the last.

    Args:
        position_ids: int [b, L], restarting at 0 with each document and each row.

    Returns:
        int32 [documents + 1], indices into the flattened batch: `cu_seqlens` of flash attention.
    """
    flat = position_ids.flatten()
    starts = (flat == 0).nonzero().flatten()
    return torch.cat([starts, starts.new_tensor([len(flat)])]).to(torch.int32)


def attention_arguments(
    implementation: str, position_ids: torch.Tensor, document_borders: torch.Tensor | None
) -> dict[str, Any]:
    """Builds the arguments of the model besides ids and positions, without waiting for the device.

    Args:
        position_ids: int [b, L], on the device.
        document_borders: `borders_of(position_ids)`, on the device, for flash attention.
    """
    if implementation == FLASH:
        assert document_borders is not None
        longest = position_ids.shape[1]  # an upper bound is enough
        return {
            "cu_seq_lens_q": document_borders,
            "cu_seq_lens_k": document_borders,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    documents = (position_ids == 0).cumsum(1)
    if implementation == FLEX:

        def sees(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q >= k) & (documents[b, q] == documents[b, k])

        rows, length = position_ids.shape
        device = str(position_ids.device)
        return {"attention_mask": create_block_mask(sees, rows, None, length, length, device)}
    if implementation == SDPA and position_ids.device.type == "cuda":
        # Otherwise transformers would wait for the device to learn whether documents are packed.
        return {"attention_mask": packed_mask(documents)}
    return {}


def packed_mask(documents: torch.Tensor) -> torch.Tensor:
    """Builds the mask, bool [b, 1, L, L]: causal attention within each token's own document.

    Args:
        documents: int [b, L], the number of each token's document in its row.
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents.unsqueeze(2) == documents.unsqueeze(1)) & causal).unsqueeze(1)


@torch.no_grad()
def check_isolation(losses: Losses, like: torch.Tensor, vocabulary: int, name: str) -> None:
    """Checks that changing a document does not change the losses of the one packed after it.

    Args:
        losses: Returns the loss of each token but the first, float [b, L - 1], for ids and
            positions.
        like: A batch of ids [b, L]; only its shape and device matter. All ranks have the same
            shape.
    """
    rows, length = like.shape
    half = length // 2
    if half < 2:
        return
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (2, rows, length), generator=generator)
    ids[1, :, half:] = ids[0, :, half:]
    positions = torch.cat([torch.arange(half), torch.arange(length - half)]).expand(rows, -1)
    first, second = (losses(row.to(like.device), positions.to(like.device)) for row in ids)
    if not torch.allclose(first[:, half:], second[:, half:], rtol=1e-4, atol=1e-4):
        others = "" if name in (SDPA, "eager") else "attn_implementation=sdpa, or "
        raise ConfigurationError(
            f"attn_implementation: under {name} the documents packed into a sequence see each "
            "other with this model, which does not start its attention again where position_ids "
            f"do (as OPT and BERT); expected a model that does. Fix: {others}"
            "data_config.packing=pad, or data_config.cross_document_attention=true"
        )


@torch.no_grad()
def check_causality(losses: Losses, like: torch.Tensor, vocabulary: int) -> None:
    """Checks that changing the second half of a sequence does not change the losses before it."""
    rows, length = like.shape
    half = length // 2
    if half < 2:
        return
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, half:] = (changed[:, half:] + 1) % vocabulary
    positions = torch.arange(length).expand(rows, -1).to(like.device)
    first, second = (losses(each.to(like.device), positions) for each in (ids, changed))
    # The loss at half - 1 is that of the first changed token. Those before it are equal to the last
    # digit; the tolerance is tight because small random weights cause only small differences.
    if not torch.allclose(first[:, : half - 1], second[:, : half - 1], rtol=0, atol=1e-4):
        raise ConfigurationError(
            "model_name (or model_config_file): tokens of this model see those after them, which "
            "they are to predict (as BERT's do without is_decoder); expected a causal language "
            "model. Fix: name another model"
        )


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a transformers model, in order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def encoder_layers(encoder: PreTrainedModel) -> list[nn.Module]:
    """The layers of an encoder, in order; none if they share their weights, as ALBERT's do."""
    lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList))
    count = getattr(encoder.config, "num_hidden_layers", None)
    # MPNet and others of the library have no layers of the class that `layers_of` looks for.
    return layers_of(encoder) or next((list(one) for one in lists if len(one) == count), [])


def recompute(model: nn.Module, every: int) -> None:
    """Keeps no activations inside every n-th layer; the backward pass recomputes them.

    Raises:
        ConfigurationError: If the model cannot do it in some layers only.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    layers = layers_of(model)
    if every > 1 and not layers:
        raise ConfigurationError(
            f"gradient_checkpointing_every={every}: {type(model).__name__} recomputes all of its "
            "layers or none; expected 1"
        )
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0  # type: ignore[assignment]


def compile_layers(model: nn.Module) -> None:
    """Compiles each layer for the shape that it is called with.

    All layers share the compiled code, so that it takes seconds and not minutes; the rest of the
    model (embedding, output layer and loss) does not benefit from compilation.

    Raises:
        ConfigurationError: If the model's layers cannot be found.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigurationError(
            f"torch_compile: the layers of {type(model).__name__} are not known; expected false"
        )
    _report_compilation()
    for layer in layers:
        layer.compile(dynamic=False)


@cache
def _report_compilation() -> None:
    """Has torch report each compilation of this process, in whatever step, as progress."""
    from torch._dynamo.callback import callback_handler

    running = ExitStack()  # torch calls the two in pairs
    callback_handler.register_start_callback(lambda _: running.enter_context(opaque_work()))
    callback_handler.register_end_callback(lambda _: running.close())


def run_uncompiled(compiled: bool) -> AbstractContextManager[Any]:
    """A context in which compiled layers run uncompiled, for batches of other shapes."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def use_liger(model: nn.Module) -> None:
    """Patches the layers with Liger's kernels for norms, rotary positions and MLP.

    Raises:
        ConfigurationError: If Liger is not installed, or does not support the model type.
    """
    try:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"liger_kernel: Liger cannot be imported ({error}); pip install liger-kernel, or "
            "liger_kernel=false"
        ) from error
    kind = model.config.model_type  # type: ignore[union-attr]
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ConfigurationError(
            f"liger_kernel: Liger has no kernels for {kind}; expected liger_kernel=false"
        )
    # The loss is computed here in any case, not by Liger.
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)


def add_adapters(model: PreTrainedModel, keys: LoraKeys, *, train_embeddings: bool) -> None:
    """Freezes a model, and gives its linear layers adapters.

    Args:
        train_embeddings: Also trains the embeddings, and the output layer: those of new tokens are
            random.

    Raises:
        ConfigurationError: If the model has no layer of `lora.targets`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    adapters = LoraConfig(
        r=keys.rank,
        lora_alpha=2 * keys.rank if keys.alpha is None else keys.alpha,
        lora_dropout=keys.dropout,
        target_modules=keys.targets or ALL_LINEAR,
    )
    try:
        inject_adapter_in_model(adapters, model, ADAPTER)
    except ValueError as error:
        raise ConfigurationError(
            f"lora.targets={keys.targets}: {error}", ["lora.targets"]
        ) from error
    if train_embeddings:
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.requires_grad_(True)


def merged(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a model without adapters that computes the same.

    Args:
        model: With the adapters of `add_adapters`, or without any.
        weights: Its full state dict, which is left as it is.
    """
    found = dict(weights)
    for name, layer in model.named_modules():
        scales = getattr(layer, "scaling", None)
        if not isinstance(scales, Mapping) or ADAPTER not in scales:
            continue
        low, high = (found.pop(f"{name}.lora_{part}.{ADAPTER}.weight") for part in "AB")
        change = scales[ADAPTER] * (high.float() @ low.float())
        weight = found.pop(f"{name}.base_layer.weight")
        found[f"{name}.weight"] = (
            weight.float() + (change.T if layer.fan_in_fan_out else change)
        ).to(weight.dtype)
        if (bias := found.pop(f"{name}.base_layer.bias", None)) is not None:
            found[f"{name}.bias"] = bias
    return found

"""Attention of a causal language model: chooses the implementation, and builds its arguments.

Documents packed into one sequence restart their positions, and must not attend to each other. From
the positions, transformers builds a mask for eager attention and sdpa. A mask rules out the fastest
kernels, and building it waits for the device. Therefore, on GPUs:

- flash attention (of a package, or torch's own `varlen_attn`) receives the borders of documents;
  with more than one sequence in a batch it ignores positions (`_is_packed_sequence` in
  transformers 5.23), and without borders documents would silently attend to each other;
- whole rows (every token attends to all earlier tokens of its row) need no mask. Rows are whole
  with joined documents, whose positions run through the row, and with one document per row, whose
  padding comes last, where no target sees it.

`VARLEN` and `CAUSAL` are registered with transformers' `AttentionInterface`. They have no function
that builds masks, so transformers builds none and drops a mask of padding. Models with them are for
training and for scoring rows that are padded on the right, not for generating from padded prompts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.varlen import varlen_attn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from bsmeta.core.errors import ConfigurationError
from bsmeta.models.shapes import count_head_groups, find_text_shape

EAGER = "eager"
SDPA = "sdpa"
FLEX = "flex_attention"
FLASH = "flash_attention_2"
FLASH_3 = "flash_attention_3"

VARLEN = "varlen"
"""torch's `varlen_attn` with the borders of documents; without borders, the same as `CAUSAL`."""

CAUSAL = "causal_sdpa"
"""sdpa without a mask, for whole rows."""

WITH_BORDERS = (FLASH, FLASH_3, VARLEN)
"""Implementations that receive the borders of packed documents."""

BORDERS = "document_borders"
"""Name of the tensor with the documents' borders in a micro-batch."""

TOKENS_PER_DOCUMENT = 16
"""Average document length down to which batches of one size share one shape of borders."""

_MAX_HEAD_SIZE = 256  # of torch's flash kernels
# Arguments that change the attention; `find_obstacle_to_custom_attention` excludes their models.
_UNSUPPORTED_BY_VARLEN = ("softcap", "s_aux", "position_bias")
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
# Attributes of a transformers model class that declare support for an implementation.
_SUPPORT = {
    FLASH: "_supports_flash_attn",
    FLEX: "_supports_flex_attn",
    SDPA: "_supports_sdpa",
}


@dataclass(frozen=True)
class Choice:
    """An attention implementation, and why it was chosen.

    Attributes:
        name: Its name in transformers; None: the default (sdpa if the class supports it).
        reason: Why it was chosen, for the log.
    """

    name: str | None
    reason: str


def choose_attention(
    requested: str, model_config: Any, *, half_precision: bool, compiled: bool, whole_rows: bool
) -> Choice:
    """Chooses the attention implementation.

    Args:
        requested: The value of `attn_implementation`.
        model_config: The transformers config of the model.
        half_precision: Whether the model computes in bf16 or fp16, which flash attention requires.
        compiled: Whether its layers are compiled for a fixed shape; the borders that the
            flash-attn packages receive vary in shape.
        whole_rows: Whether every token attends to all earlier tokens of its row.

    Raises:
        ConfigurationError: If transformers' class of the model does not support `requested`.
    """
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model_config), None)
    is_supported = {
        name: bool(getattr(model_class, flag, False)) for name, flag in _SUPPORT.items()
    }
    if getattr(model_class, "_compatible_flash_implementations", None):
        is_supported[FLASH] = False  # transformers would load compiled code from the Hub instead
    obstacle = find_obstacle_to_custom_attention(model_class, model_config)

    if requested == "auto":
        return _choose_fastest(
            model_config,
            obstacle,
            half_precision=half_precision,
            whole_rows=whole_rows,
            can_use_package=is_supported[FLASH] and not compiled,
        )

    if not is_supported.get(requested, True):
        usable = [VARLEN] if obstacle is None else []
        usable += [name for name in is_supported if is_supported[name]]
        expected = ", ".join(["auto", EAGER, *usable])
        raise ConfigurationError(
            f"attn_implementation={requested}: transformers cannot run it for a model of type "
            f"{model_config.model_type}; expected one of {expected}"
        )
    if requested == VARLEN and obstacle is not None:
        raise ConfigurationError(
            f"attn_implementation={VARLEN}: {obstacle}; expected another model, or "
            "attn_implementation=auto"
        )

    if requested == SDPA and whole_rows and obstacle is None and torch.cuda.is_available():
        return Choice(CAUSAL, "as configured; without a mask, because rows are whole")
    if requested == VARLEN and not half_precision:
        return Choice(VARLEN, "as configured; in float32 by sdpa with a mask")
    return Choice(requested, "as configured")


def _choose_fastest(
    model_config: Any,
    obstacle: str | None,
    *,
    half_precision: bool,
    whole_rows: bool,
    can_use_package: bool,
) -> Choice:
    """Chooses the implementation for `attn_implementation=auto`.

    Args:
        obstacle: Why `VARLEN` and `CAUSAL` cannot be used; None if they can.
        can_use_package: Whether the model can use a flash-attn package, if one is installed.
    """
    if not torch.cuda.is_available():
        return Choice(None, "there is no GPU")

    if half_precision and can_use_package:
        if (
            is_flash_attn_3_available()
            and not read_attention_dropout(model_config)
            and _is_hopper()
        ):
            return Choice(FLASH_3, "flash-attn-3 is installed")
        if is_flash_attn_2_available():
            return Choice(FLASH, "flash-attn is installed")

    if obstacle is not None:
        return Choice(None, obstacle)
    if whole_rows:
        return Choice(CAUSAL, "each row is attended to as a whole, without a mask")
    if not half_precision:
        return Choice(None, "flash attention does not compute in float32")
    if (
        torch.cuda.get_device_capability() < (8, 0)
        or not torch.backends.cuda.is_flash_attention_available()
    ):
        return Choice(None, "torch has no flash attention for this GPU")
    return Choice(VARLEN, "torch's kernel, which receives the borders of packed documents")


def _is_hopper() -> bool:
    """Whether the kernels of flash-attn-3 support the GPU."""
    return torch.cuda.get_device_capability()[0] == 9


def find_obstacle_to_custom_attention(model_class: Any, model_config: Any) -> str | None:
    """Explains why `VARLEN` and `CAUSAL` cannot compute a model's attention; None if they can.

    Args:
        model_class: The transformers class of the model.
        model_config: The transformers config of the model.
    """
    text = find_text_shape(model_config)
    if not (
        getattr(model_class, "_supports_flash_attn", False)
        and getattr(model_class, "_supports_attention_backend", False)
    ):
        return f"transformers' class for {model_config.model_type} supports no other attention"
    if getattr(model_class, "_compatible_flash_implementations", None):
        return f"{model_config.model_type} needs kernels with attention sinks or blocks"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return f"{model_config.model_type} caps the logits of its attention"
    if read_attention_dropout(model_config):
        return "the model has dropout in its attention"

    heads, _ = count_head_groups(model_config)
    head_size = getattr(text, "head_dim", None) or int(text.hidden_size) // (heads or 1)
    if head_size > _MAX_HEAD_SIZE or head_size % 8 or hasattr(text, "v_head_dim"):
        return f"torch's flash attention has no kernel for the heads of {model_config.model_type}"
    return None


def read_attention_dropout(model_config: Any) -> float:
    """Returns the dropout probability of attention weights, 0 if the config has none."""
    text = find_text_shape(model_config)
    return max(float(getattr(text, name, None) or 0.0) for name in _DROPOUTS)


def compute_borders(position_ids: torch.Tensor) -> torch.Tensor:
    """Computes the start of each document of a batch, followed by the end of the last one.

    Args:
        position_ids: int [b, L], restarting at 0 with each document and each row.

    Returns:
        int32 [documents + 1], indices into the flattened batch: `cu_seqlens` of flash attention.
    """
    flat = position_ids.flatten()
    starts = (flat == 0).nonzero().flatten()
    return torch.cat([starts, starts.new_tensor([len(flat)])]).to(torch.int32)


def pad_borders(borders: torch.Tensor, tokens: int) -> torch.Tensor:
    """Repeats the last border, so that batches of one size have borders of one shape.

    Compiled layers are then compiled once; each repetition is an empty document. The shape fits
    documents of `TOKENS_PER_DOCUMENT` tokens on average; for shorter ones, its length is doubled
    until they fit.

    Args:
        borders: int32 [documents + 1].
        tokens: Number of tokens in the batch.
    """
    count = tokens // TOKENS_PER_DOCUMENT + 1
    while count < len(borders):
        count *= 2
    return torch.cat([borders, borders[-1:].expand(count - len(borders))])


def build_attention_arguments(
    implementation: str, position_ids: torch.Tensor, document_borders: torch.Tensor | None
) -> dict[str, Any]:
    """Builds the model's arguments for attention, besides ids and positions.

    Does not wait for the device.

    Args:
        implementation: Name of the attention implementation.
        position_ids: int [b, L], on the device.
        document_borders: `compute_borders(position_ids)`, on the device, for `WITH_BORDERS`; None
            if rows are whole.
    """
    if implementation == CAUSAL or (implementation == VARLEN and document_borders is None):
        return {}

    if implementation in WITH_BORDERS:
        assert document_borders is not None
        max_length = position_ids.shape[1]  # an upper bound is enough
        return {
            "cu_seq_lens_q": document_borders,
            "cu_seq_lens_k": document_borders,
            "max_length_q": max_length,
            "max_length_k": max_length,
        }

    documents = (position_ids == 0).cumsum(1)
    if implementation == FLEX:

        def may_attend(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q >= k) & (documents[b, q] == documents[b, k])

        rows, length = position_ids.shape
        device = str(position_ids.device)
        block_mask = create_block_mask(
            may_attend, B=rows, H=None, Q_LEN=length, KV_LEN=length, device=device
        )
        return {"attention_mask": block_mask}

    if implementation == SDPA and position_ids.device.type == "cuda":
        # Otherwise transformers would wait for the device to learn whether documents are packed.
        return {"attention_mask": build_packed_mask(documents)}

    return {}


def build_packed_mask(documents: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Builds a mask for causal attention within documents, bool [b, 1, L, L]; True: attends.

    Args:
        documents: int [b, L], the index of each token's document in its row.
        window: Maximum number of tokens that a token attends to, itself included; None: no limit.
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    if window is not None:
        causal = causal.triu(1 - window)

    same_document = documents.unsqueeze(2) == documents.unsqueeze(1)
    return (same_document & causal).unsqueeze(1)


class VarlenKernel:
    """torch's `varlen_attn`, called with the parameters of the installed version.

    Args:
        function: `torch.nn.attention.varlen.varlen_attn`: in torch 2.10 with `is_causal`, in later
            versions with `window_size`, `scale` and `enable_gqa`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters
        self._function = function
        self.takes_window = "window_size" in parameters
        self._takes_scale = "scale" in parameters
        self._takes_groups = "enable_gqa" in parameters

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        borders: torch.Tensor,
        max_length: int,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        """Computes causal attention within documents.

        Args:
            query: [tokens, heads, d].
            key: [tokens, groups, d].
            value: [tokens, groups, d].
            borders: int32 [documents + 1].
            max_length: Upper bound on the number of tokens in a document.
            scaling: Factor of the products of queries and keys.
            window: Maximum number of tokens that a token attends to, itself included; None: no
                limit.

        Returns:
            [tokens, heads, d].
        """
        options: dict[str, Any] = {}
        if self.takes_window:
            # Number of tokens to attend to before and after each token; -1: no limit.
            num_before = -1 if window is None else window - 1
            options["window_size"] = (num_before, 0)
        else:
            assert window is None
            options["is_causal"] = True

        if self._takes_scale:
            options["scale"] = scaling
        else:  # the kernel itself multiplies by 1 / sqrt(d)
            query = query * (scaling * query.shape[-1] ** 0.5)

        groups = query.shape[1] // key.shape[1]
        if groups > 1 and self._takes_groups:
            options["enable_gqa"] = True
        elif groups > 1:
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)

        output: torch.Tensor = self._function(
            query, key, value, borders, borders, max_length, max_length, **options
        )
        return output


TORCH_KERNEL = VarlenKernel(varlen_attn)
"""The kernel of the installed torch."""


def _flatten_rows(states: torch.Tensor) -> torch.Tensor:
    """Concatenates the rows of queries, keys or values: [b, n, L, d] to [b * L, n, d]."""
    return states.transpose(1, 2).flatten(0, 1)


def attend_causally(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Computes causal attention, within documents if their borders are given.

    This is the function that transformers calls for `VARLEN` and `CAUSAL`. It uses torch's
    `varlen_attn` on a GPU in half precision, elsewhere sdpa with a mask.

    Args:
        query: [b, heads, L, d].
        key: [b, groups, L, d].
        value: [b, groups, L, d].
        attention_mask: None, or a mask [b, 1, L, L].
        scaling: Factor of the products of queries and keys; None: 1 / sqrt(d).
        sliding_window: Maximum number of tokens that a token attends to, itself included; None:
            no limit.
        cu_seq_lens_q: The borders of the documents, int32 [documents + 1]; None: rows are whole.
        max_length_q: Upper bound on the number of tokens in a document.

    Returns:
        [b, L, heads, d], and None in place of attention weights.
    """
    rows, _, length, size = query.shape
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)

    window = sliding_window
    if window is not None and window >= length:
        window = None  # it excludes no token

    # Attention to later tokens is computed unchanged; `check_causality` refuses such a model.
    needs_mask = attention_mask is None and is_causal and key.shape[2] == length
    if needs_mask and cu_seq_lens_q is not None:
        query, key, value = _lower_precision(query, key, value)
        if has_varlen_kernel(query, window):
            assert not dropout
            assert max_length_q is not None
            assert all(options.get(name) is None for name in _UNSUPPORTED_BY_VARLEN)
            output = TORCH_KERNEL(
                _flatten_rows(query),
                _flatten_rows(key),
                _flatten_rows(value),
                cu_seq_lens_q,
                max_length_q,
                size**-0.5 if scaling is None else scaling,
                window,
            )
            return output.unflatten(0, (rows, length)), None

        documents = number_documents(cu_seq_lens_q, rows, length)
        attention_mask = build_packed_mask(documents, window)
    elif needs_mask and window is not None:
        attention_mask = build_packed_mask(query.new_zeros(1, length), window)

    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )


def has_varlen_kernel(query: torch.Tensor, window: int | None) -> bool:
    """Whether torch's kernel supports the device and dtype of a query, and the window."""
    is_half_precision = query.dtype in (torch.float16, torch.bfloat16)
    takes_window = window is None or TORCH_KERNEL.takes_window
    return query.is_cuda and is_half_precision and takes_window


def number_documents(borders: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Computes the index of each token's document, int [rows, length], from the borders.

    Indices of empty documents do not occur.
    """
    tokens = torch.arange(rows * length, device=borders.device, dtype=borders.dtype)
    return torch.bucketize(tokens, borders, right=True).view(rows, length)


def _lower_precision(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Casts tensors to the dtype of autocast, which covers sdpa but not `varlen_attn`."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)

    dtype = torch.get_autocast_dtype(device)
    return [tensor.to(dtype) for tensor in tensors]


AttentionInterface.register(VARLEN, attend_causally)
AttentionInterface.register(CAUSAL, attend_causally)

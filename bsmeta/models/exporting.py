"""Writes the weights of a trained model: each once, and in the dtype of `export_dtype`.

The engines return weights in different forms. DeepSpeed copies each weight under each of its names,
so tied embeddings would be written twice. `write_model` therefore ties equal copies again, and
transformers leaves out all names but one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.parsing import parse_json

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedModel

CONFIG_FILE = "config.json"
DTYPE = "dtype"
"""Key of a model's `config.json`, and of the configs nested in it: the dtype of the weights."""


def write_model(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    folder: Path,
    export_dtype: str | None,
) -> None:
    """Writes a model of transformers for `from_pretrained`.

    Args:
        model: The model whose config is written, and which knows its tied weights.
        weights: The full state dict to write; not modified.
        export_dtype: Name of the dtype of the written weights; None: as in `weights`.

    Raises:
        ConfigurationError: If a finite value of a weight is infinite in this dtype.
    """
    pretrained = cast("PreTrainedModel", model)
    exported = cast_weights(_tie_weights(pretrained, weights), export_dtype)
    pretrained.save_pretrained(folder, state_dict=exported)
    record_dtype(folder, export_dtype)


def _tie_weights(
    model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the weights with one tensor for all names of a tied weight."""
    tied = dict(weights)
    for name, source in model.all_tied_weights_keys.items():
        if name in weights and source in weights and torch.equal(weights[name], weights[source]):
            tied[name] = weights[source]
    return tied


def cast_weights(
    weights: Mapping[str, torch.Tensor], export_dtype: str | None
) -> dict[str, torch.Tensor]:
    """Casts floating-point weights; a tensor with several names is cast once.

    Args:
        weights: Weights by name; not modified.
        export_dtype: Name of the dtype; None: no change.

    Raises:
        ConfigurationError: If a finite value of a weight is infinite in this dtype.
    """
    if export_dtype is None:
        return dict(weights)

    dtype: torch.dtype = getattr(torch, export_dtype)
    cast_by_id: dict[int, torch.Tensor] = {}
    for name, weight in weights.items():
        if id(weight) not in cast_by_id:
            cast_by_id[id(weight)] = _cast_weight(name, weight, dtype)
    return {name: cast_by_id[id(weight)] for name, weight in weights.items()}


def _cast_weight(name: str, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not weight.is_floating_point() or weight.dtype == dtype:
        return weight

    values = weight.detach().to(dtype)
    # A trained value that is not finite is not a fault of the dtype.
    overflows = values.isinf() & weight.isfinite()
    if bool(overflows.any()):
        export_dtype = str(dtype).removeprefix("torch.")
        wider = "bfloat16, whose range is that of float32, or null"
        raise ConfigurationError(
            f"export_dtype={export_dtype}: {name} has values of up to "
            f"{float(weight[overflows].abs().max()):,.6g}, which would be infinite "
            f"({int(overflows.sum()):,} of {weight.numel():,}); expected at most "
            f"{torch.finfo(dtype).max:,.6g}. Fix: export_dtype="
            f"{wider if dtype == torch.float16 else 'null'} (a run resumes with another one)",
            ["export_dtype"],
        )
    return values


def record_dtype(folder: Path, export_dtype: str | None) -> None:
    """Records the dtype of the weights in a folder in its `config.json`; None: no change."""
    if export_dtype is None:
        return
    file = folder / CONFIG_FILE
    content = parse_json(file.read_text(encoding="utf-8"))
    content[DTYPE] = export_dtype
    _replace_nested_dtypes(content, export_dtype)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _replace_nested_dtypes(content: Any, export_dtype: str) -> None:
    """Replaces the dtypes in configs at any depth, such as `text_config`."""
    if not isinstance(content, dict):
        return
    if content.get(DTYPE) is not None:
        content[DTYPE] = export_dtype
    for value in content.values():
        _replace_nested_dtypes(value, export_dtype)

"""Rehearses a model before its first step, to detect faults that would otherwise appear later.

A check that fails raises the same error on every rank.

- Unused weights: weights that no gradient reaches (the vision tower of a model that gets text
  alone, or the cross-attention of a decoder without its encoder) are frozen and logged, because
  torch's data parallel would fail in the second step.
- Export: the model is exported, with nonzero adapters, and loaded again; its outputs must be equal.
- Loss: the loss of the model's class must equal the training loss.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.model_files import create_model
from bsmeta.models.attention import EAGER
from bsmeta.models.cross_entropy import IGNORED_TARGET
from bsmeta.models.lora import ADAPTER
from bsmeta.models.manifest import write_model_manifest
from bsmeta.models.pretrained import load_weights, load_whole_weights

NUM_TOKENS = 16
"""Length of the sequence on which a model is tried."""

MAX_EXPORTED_PARAMETERS = 2**26
"""Maximum number of parameters of a model that is exported and loaded again for the rehearsal."""

_PARTITIONED = "ds_shape"  # attribute of a parameter that ZeRO-3 has partitioned

Export = Callable[[nn.Module, dict[str, torch.Tensor], Path], None]
"""Writes a model with a state dict to a folder."""

Adapt = Callable[[PreTrainedModel], None]
"""Adds adapters to a model without any."""

logger = logging.getLogger(__name__)


def _add_no_adapters(model: PreTrainedModel) -> None:
    """Leaves a model unchanged."""


def trace_reached_weights(
    model: PreTrainedModel, adapt: Adapt = _add_no_adapters
) -> set[str] | None:
    """Returns the names of the trainable weights that a gradient reaches from text alone.

    They follow from the graph of a forward pass on torch's fake tensors, which computes nothing and
    so suits a model of any size. A class whose forward pass depends on values is called with its
    weights.

    Args:
        adapt: Adds the adapters of the model to a copy without adapters.

    Returns:
        The names; None if the class needs its weights, and this process lacks them.
    """
    try:
        return _trace_copy(model, adapt)
    except Exception as error:  # any error of a class that needs values
        if _lacks_weights(model):
            logger.info("%s cannot be tried without weights: %s", type(model).__name__, error)
            return None
    return _trace_model(model)


def list_unreached_weights(model: nn.Module, reached: Collection[str] | None) -> list[str]:
    """Lists the names of trainable weights that no gradient reaches.

    Args:
        reached: The result of `trace_reached_weights`; None counts as all weights.
    """
    if reached is None:
        return []
    return [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad and name not in reached
    ]


def _lacks_weights(model: nn.Module) -> bool:
    """Whether this process lacks the values of some weights."""
    return any(
        weight.device.type == "meta" or hasattr(weight, _PARTITIONED)
        for weight in model.parameters()
    )


def _trace_copy(model: PreTrainedModel, adapt: Adapt) -> set[str]:
    """Returns the names of weights that a gradient reaches, in a copy on fake tensors."""
    with torch.device("meta"), load_whole_weights():
        copy = create_model(
            AutoModelForCausalLM,
            deepcopy(model.config),
            dtype=torch.float32,
            attn_implementation=EAGER,  # which every class has, on every device
            experts_implementation="batched_mm",  # other implementations depend on values
        )
        adapt(copy)

    with FakeTensorMode(allow_non_fake_inputs=True):
        weights = {
            name: torch.empty(weight.shape).requires_grad_(weight.requires_grad)
            for name, weight in copy.named_parameters()
        }
        buffers = {
            name: torch.empty(buffer.shape, dtype=buffer.dtype)
            for name, buffer in copy.named_buffers()
        }
        inputs = {"input_ids": torch.zeros(1, NUM_TOKENS, dtype=torch.long), "use_cache": False}
        outputs = functional_call(copy, {**weights, **buffers}, (), inputs)
        leaf_ids = _find_leaves(outputs.logits)
    return {name for name, weight in weights.items() if id(weight) in leaf_ids}


def _trace_model(model: PreTrainedModel) -> set[str]:
    """Returns the names of weights that a gradient reaches, in a forward pass of the model."""
    was_training = model.training
    model.eval()
    ids = torch.arange(NUM_TOKENS).unsqueeze(0) % 2
    leaf_ids = _find_leaves(model(input_ids=ids, use_cache=False).logits)
    model.train(was_training)
    return {name for name, weight in model.named_parameters() if id(weight) in leaf_ids}


def _find_leaves(output: torch.Tensor) -> set[int]:
    """Returns the ids of the tensors to which the backward pass of an output adds gradients."""
    leaf_ids: set[int] = set()
    visited: set[Any] = set()
    pending: list[Any] = [output.grad_fn]
    while pending:
        function = pending.pop()
        if function is None or function in visited:
            continue
        visited.add(function)

        if hasattr(function, "variable"):
            leaf_ids.add(id(function.variable))
        pending += [next_function for next_function, _ in function.next_functions]
    return leaf_ids


def freeze_weights(model: PreTrainedModel, unreached: Collection[str], setting: str) -> None:
    """Freezes weights that no gradient reaches, and logs the parts of the model they belong to.

    Args:
        setting: Key and value that name the model, for messages: `model_name=gpt2`.

    Raises:
        ConfigurationError: If no trainable weights remain.
    """
    if not unreached:
        return

    parts = ", ".join(summarize_weights(model, unreached))
    sizes = {name: _count_parameters(weight) for name, weight in model.named_parameters()}
    for name in unreached:
        model.get_parameter(name).requires_grad_(False)

    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigurationError(
            f"{setting}: nothing of the model would be trained, because text alone gives no "
            f"gradient to {parts}; expected a model with weights between its tokens and its "
            "logits, and adapters (lora.targets) of some of these"
        )
    logger.info(
        "%s: %s get no gradient from text alone: they are frozen, and exported as they are (%s of "
        "%s parameters)",
        setting,
        parts,
        f"{sum(sizes[name] for name in unreached):,}",
        f"{sum(sizes.values()):,}",
    )


def _count_parameters(weight: torch.Tensor) -> int:
    """Counts the elements of a weight, even if ZeRO-3 has partitioned it."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def summarize_weights(model: nn.Module, names: Collection[str]) -> list[str]:
    """Summarizes weights by the largest modules that contain no other trainable weights.

    Weights outside of such modules are listed one by one. Layer numbers are replaced by `*`.

    Args:
        names: Names of the weights.
    """
    listed_weights = set(names)
    parts: list[str] = []
    for path, module in model.named_modules():
        weights = [
            f"{path}.{name}" for name, weight in module.named_parameters() if weight.requires_grad
        ]
        if path and weights and listed_weights.issuperset(weights) and not _is_inside(path, parts):
            parts.append(path)

    parts += [name for name in sorted(listed_weights) if not _is_inside(name, parts)]
    return list(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", part) for part in parts))


def _is_inside(name: str, parts: Iterable[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def can_try_export(model: nn.Module) -> bool:
    """Whether the export of a model can be tried before the first step.

    False for a model with more than `MAX_EXPORTED_PARAMETERS`, which would take minutes to write,
    or with weights on other ranks only.
    """
    num_parameters = sum(_count_parameters(weight) for weight in model.parameters())
    return num_parameters <= MAX_EXPORTED_PARAMETERS and not _lacks_weights(model)


def _fill_adapters(model: PreTrainedModel) -> None:
    """Fills the B factors of the adapters, which are zero and thus without effect, randomly."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if f".lora_B.{ADAPTER}." in name:
            weight.data.normal_(std=0.02, generator=generator)


def check_export(model: PreTrainedModel, export: Export, setting: str) -> None:
    """Exports a model, loads it again, and compares the logits of both.

    An export that fails with an `OSError`, such as a full disk, is only logged.

    Args:
        model: A model built for this check; its adapters, which are zero before the first step, are
            filled with random values.
        export: Writes the model to a folder.
        setting: Key and value that a failure of the export is blamed on, for messages.

    Raises:
        ConfigurationError: If it cannot be exported, or its results differ afterwards.
        DataError: If the exported model cannot be loaded.
    """
    _fill_adapters(model.eval())
    with tempfile.TemporaryDirectory(prefix="bsmeta-rehearsal-") as folder:
        try:
            export(model, model.state_dict(), Path(folder))
        except (UserError, MemoryError):
            raise
        except OSError as error:  # such as a full disk, perhaps not the disk of the run
            logger.warning("the export could not be tried in %s: %s", folder, error)
            return
        except Exception as error:
            raise ConfigurationError(
                f"{setting}: the model could not be exported at the first save ({error!r}); "
                "expected one whose weights transformers can save"
            ) from error

        write_model_manifest(Path(folder))
        loaded = load_weights(
            folder, f"{setting}: its export", dtype=torch.float32, attn_implementation=EAGER
        )

    ids = torch.arange(NUM_TOKENS).unsqueeze(0) % 2
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        after = loaded.eval()(input_ids=ids, use_cache=False).logits
    largest_logit = float(before.abs().max())
    if not torch.allclose(after, before, rtol=1e-4, atol=1e-4 * largest_logit):
        raise ConfigurationError(
            f"{setting}: the exported model would not compute what was trained: its logits differ "
            f"by up to {float((after - before).abs().max()):.3g} (the largest is "
            f"{largest_logit:.3g})"
        )


def check_loss(model: nn.Module, inputs: dict[str, Any], loss: torch.Tensor, setting: str) -> None:
    """Compares the training loss with the loss of the model's own class.

    Some classes expect the inputs themselves as labels, others the next token at each position.

    Args:
        inputs: Arguments of the model; `input_ids`, int64 [b, L], are also the targets.
        loss: The training loss, the mean over the targets.
        setting: Key and value that name the model, for messages: `model_name=gpt2`.

    Raises:
        ConfigurationError: If the class adds a term that the training loss lacks.
    """
    ids = inputs["input_ids"]
    next_ids = nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORED_TARGET)

    loss = loss.detach().float()
    class_losses = []
    for labels in (ids, next_ids):
        class_loss = model(**inputs, labels=labels).loss.detach().float()
        if torch.allclose(class_loss, loss, rtol=1e-4, atol=1e-4, equal_nan=True):
            return
        class_losses.append(class_loss)

    raise ConfigurationError(
        f"{setting}: on random tokens, the loss of the model's own class is "
        f"{float(class_losses[0]):.4f}, and the loss that the run would train on "
        f"{float(loss):.4f}: the class adds a term that is not known here. Expected a "
        "model whose loss is the cross-entropy of the next token, with or without the auxiliary "
        "loss of its router. Fix: turn the term off in its config.json, or name another model"
    )

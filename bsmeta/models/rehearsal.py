"""The rehearsal of a model before its first step: what would otherwise fail, or be left out, later.

Each fault is one error, on every rank:

- weights that no gradient reaches (the vision tower of a model that gets text alone, or the
  cross-attention of a decoder without its encoder) are frozen and named: torch's data parallel
  fails in the second step of a model that has some;
- the model is exported, with adapters that are not zero, loaded again, and must compute the same;
- the loss of the model's class must be the one that is trained on.
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
from bsmeta.core.model_files import new_model
from bsmeta.models.cross_entropy import IGNORED
from bsmeta.models.lora import ADAPTER
from bsmeta.models.manifest import write_model_manifest
from bsmeta.models.pretrained import load_weights, whole_weights

TOKENS = 16
"""Tokens of the sequence that a model is tried with."""
EXPORTED = 2**26
"""The most parameters of a model that is exported and loaded again for the rehearsal."""
EAGER = "eager"
"""The attention that every class has, and that runs on every device."""
_PARTITIONED = "ds_shape"  # attribute of a parameter of which ZeRO-3 has kept a part

Export = Callable[[nn.Module, dict[str, torch.Tensor], Path], None]

Adapt = Callable[[PreTrainedModel], None]

logger = logging.getLogger(__name__)


def _leave(model: PreTrainedModel) -> None:
    """Adds no adapters."""


def unreached_weights(model: PreTrainedModel, adapt: Adapt = _leave) -> list[str]:
    """The names of trainable weights that no gradient reaches if the model is given text alone.

    They are read off the graph of a forward pass on torch's fake tensors, which computes nothing,
    whatever the size of the model. A class whose forward pass depends on values is called with its
    weights, if this process has them; without them, all of its weights count as reached.

    Args:
        adapt: Adds the adapters that the model has to a model without any.
    """
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    try:
        reached = _reached_in_copy(model, adapt)
    except Exception as error:  # whatever a class raises that needs values
        if _is_elsewhere(model):
            logger.info("%s cannot be tried without weights: %s", type(model).__name__, error)
            return []
        reached = _reached(model)
    return [name for name in names if name not in reached]


def _is_elsewhere(model: nn.Module) -> bool:
    """Whether this process does not have the values of all weights."""
    return any(
        weight.device.type == "meta" or hasattr(weight, _PARTITIONED)
        for weight in model.parameters()
    )


def _reached_in_copy(model: PreTrainedModel, adapt: Adapt) -> set[str]:
    with torch.device("meta"), whole_weights():
        copy = new_model(
            AutoModelForCausalLM,
            deepcopy(model.config),
            dtype=torch.float32,
            attn_implementation=EAGER,
            experts_implementation="batched_mm",  # the others depend on values
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
        inputs = {"input_ids": torch.zeros(1, TOKENS, dtype=torch.long), "use_cache": False}
        outputs = functional_call(copy, {**weights, **buffers}, (), inputs)
        leaves = _leaves(outputs.logits)
    return {name for name, weight in weights.items() if id(weight) in leaves}


def _reached(model: PreTrainedModel) -> set[str]:
    was_training = model.training
    model.eval()
    ids = torch.arange(TOKENS).unsqueeze(0) % 2
    leaves = _leaves(model(input_ids=ids, use_cache=False).logits)
    model.train(was_training)
    return {name for name, weight in model.named_parameters() if id(weight) in leaves}


def _leaves(output: torch.Tensor) -> set[int]:
    """The ids of the tensors to which the backward pass of an output adds gradients."""
    found, seen, waiting = set(), set(), [output.grad_fn]
    while waiting:
        function: Any = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            found.add(id(function.variable))
        waiting += [following for following, _ in function.next_functions]
    return found


def freeze_weights(model: PreTrainedModel, unreached: Collection[str], where: str) -> None:
    """Freezes weights that no gradient reaches, and logs which parts of the model they are.

    Args:
        where: The key that names the model, and its value.

    Raises:
        ConfigurationError: If nothing is left to be trained.
    """
    if not unreached:
        return
    parts = ", ".join(whole_parts(model, unreached))
    sizes = {name: _size(weight) for name, weight in model.named_parameters()}
    for name in unreached:
        model.get_parameter(name).requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigurationError(
            f"{where}: nothing of the model would be trained, because text alone gives no gradient "
            f"to {parts}; expected a model with weights between its tokens and its logits, and "
            "adapters (lora.targets) of some of these"
        )
    logger.info(
        "%s: %s get no gradient from text alone: they are frozen, and exported as they are (%s of "
        "%s parameters)", where, parts, f"{sum(sizes[name] for name in unreached):,}",
        f"{sum(sizes.values()):,}",
    )  # fmt: skip


def _size(weight: torch.Tensor) -> int:
    return int(getattr(weight, "ds_numel", weight.numel()))


def whole_parts(model: nn.Module, names: Collection[str]) -> list[str]:
    """The largest modules all of whose trainable weights are among the names.

    Weights beside these modules are listed themselves; the numbers of layers are left out.
    """
    wanted = set(names)
    parts: list[str] = []
    for module, layer in model.named_modules():
        own = [
            f"{module}.{name}" for name, weight in layer.named_parameters() if weight.requires_grad
        ]
        if module and own and wanted.issuperset(own) and not _is_inside(module, parts):
            parts.append(module)
    parts += [name for name in sorted(wanted) if not _is_inside(name, parts)]
    return list(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", part) for part in parts))


def _is_inside(name: str, parts: Iterable[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def is_tried(model: nn.Module) -> bool:
    """Whether the export of a model is tried before the first step.

    That of a model of more than `EXPORTED` parameters, or whose weights are on other ranks, is not:
    to write it would take minutes.
    """
    return sum(map(_size, model.parameters())) <= EXPORTED and not _is_elsewhere(model)


def check_export(model: PreTrainedModel, export: Export, where: str) -> None:
    """Exports a model, loads it again, and compares what the two compute.

    Args:
        model: A model for this purpose, as its class builds it; its adapters, which are zero before
            the first step, are given random values.
        export: Writes a model with these weights, its state dict, into a folder.
        where: The key that is the cause if it cannot be exported, and its value.

    Raises:
        ConfigurationError: If it cannot be exported, or computes something else afterwards.
        DataError: If the exported model cannot be loaded.
    """
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.eval().named_parameters():
        if f".lora_B.{ADAPTER}." in name:
            weight.data.normal_(std=0.02, generator=generator)
    with tempfile.TemporaryDirectory(prefix="bsmeta-rehearsal-") as folder:
        try:
            export(model, model.state_dict(), Path(folder))
        except (UserError, MemoryError):
            raise
        except OSError as error:  # a full disk, which may not be that of the run
            logger.warning("the export could not be tried in %s: %s", folder, error)
            return
        except Exception as error:
            raise ConfigurationError(
                f"{where}: the model could not be exported at the first save ({error!r}); expected "
                "one whose weights transformers can save"
            ) from error
        write_model_manifest(Path(folder))
        loaded = load_weights(
            folder, f"{where}: its export", dtype=torch.float32, attn_implementation=EAGER
        )
    ids = torch.arange(TOKENS).unsqueeze(0) % 2
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        after = loaded.eval()(input_ids=ids, use_cache=False).logits
    largest = float(before.abs().max())
    if not torch.allclose(after, before, rtol=1e-4, atol=1e-4 * largest):
        raise ConfigurationError(
            f"{where}: the exported model would not compute what was trained: its logits differ by "
            f"up to {float((after - before).abs().max()):.3g} (the largest is {largest:.3g})"
        )


def check_loss(model: nn.Module, inputs: dict[str, Any], loss: torch.Tensor, where: str) -> None:
    """Compares the loss that a run trains on with the loss of the model's own class.

    Classes take labels either as the inputs, or as the next token of each.

    Args:
        inputs: Arguments of the model; `input_ids`, int64 [b, L], are also the targets.
        loss: The mean over the targets that the run would train on.
        where: The key that names the model, and its value.

    Raises:
        ConfigurationError: If the class adds something that the run would leave out.
    """
    ids = inputs["input_ids"]
    following = nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORED)
    loss, losses = loss.detach().float(), []
    for labels in (ids, following):
        losses.append(model(**inputs, labels=labels).loss.detach().float())
        if torch.allclose(losses[-1], loss, rtol=1e-4, atol=1e-4, equal_nan=True):
            return
    raise ConfigurationError(
        f"{where}: on random tokens, the loss of the model's own class is {float(losses[0]):.4f}, "
        f"and the loss that the run would train on {float(loss):.4f}: the class adds a term that "
        "is not known here. Expected a model whose loss is the cross-entropy of the next token, "
        "with or without the auxiliary loss of its router. Fix: turn the term off in its "
        "config.json, or name another model"
    )

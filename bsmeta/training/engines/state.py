"""The content of `state/` in a checkpoint, which is the same for all engines that train.

    model/{name}             a weight or a buffer, in full precision if the engine has it
    optimizer/{key}/{name}   a value that the optimizer has for a weight: `exp_avg`, `step`, …
    engine.json              small values (`engine_values`)

The first two are tensors in the shapes of the model, which `shards` stores; any engine, with any
number of processes, reads its part of them. A tensor with several names in the model is saved under
the first.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.checkpoint import CONFIG_FILE
from bsmeta.training.checkpoints.shards import read_tensor_shapes, write_shards
from bsmeta.training.engines.values import EngineValues
from bsmeta.training.ranks.processes import Processes

MODEL_PREFIX = "model/"
"""Prefix of the names of weights and buffers."""

_OPTIMIZER_PREFIX = "optimizer/"


def write_state(
    tensors: dict[str, Any], values: EngineValues, folder: Path, processes: Processes
) -> None:
    """Writes a state, or a copy of it, into a new folder; all the processes call it together.

    Args:
        tensors: The parts of this rank (see `write_shards`).
    """
    write_shards(tensors, folder, processes)
    processes.on_main(lambda: values.write(folder))


def name_optimizer_value(key: str, weight: str) -> str:
    """Returns the name in a checkpoint of a value that the optimizer has for a weight."""
    return f"{_OPTIMIZER_PREFIX}{key}/{weight}"


def split_value_name(name: str) -> tuple[str, str]:
    """Splits the name of an optimizer value into key and weight; both are "" for other names."""
    if not name.startswith(_OPTIMIZER_PREFIX):
        return "", ""
    key, _, weight = name.removeprefix(_OPTIMIZER_PREFIX).partition("/")
    return key, weight


def map_first_names(model: nn.Module) -> dict[str, str]:
    """Maps each name in the state dict of a model to the first name of the same tensor."""
    first_names: dict[int, str] = {}
    return {
        name: first_names.setdefault(id(tensor), name)
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def collect_weights(model: nn.Module, unsaved: frozenset[str]) -> dict[str, torch.Tensor]:
    """Returns the weights and buffers that a checkpoint holds, by their names in it, not copied.

    Args:
        unsaved: Names of weights that are left out.
    """
    tensors = model.state_dict()
    return {
        MODEL_PREFIX + name: tensors[name]
        for name in dict.fromkeys(map_first_names(model).values())
        if name not in unsaved
    }


def map_trained_weights(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, nn.Parameter]:
    """Returns the parameters of an optimizer by name, in the order of its groups."""
    tensors = model.state_dict(keep_vars=True)
    names = {id(tensors[name]): name for name in map_first_names(model).values()}

    parameters = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameters[names[id(parameter)]] = parameter
    return parameters


def collect_optimizer_values(
    optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Returns the state of an optimizer by the names in a checkpoint, not copied.

    Args:
        parameters: The result of `map_trained_weights`.
    """
    values = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            values[name_optimizer_value(key, name)] = value
    return values


def allocate_optimizer_values(
    folder: Path, saved_weights: set[str], parameters: dict[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Allocates the optimizer values that a folder holds, sharded like their parameters.

    Args:
        saved_weights: Names of the weights and buffers that the folder should hold.
        parameters: The result of `map_trained_weights`.

    Raises:
        CheckpointError: If the folder holds other tensors.
    """
    values = {}
    for entry, (size, dtype) in read_tensor_shapes(folder).items():
        if entry in saved_weights:
            continue

        _, name = split_value_name(entry)
        if name not in parameters:
            raise make_surplus_error(folder, entry, MODEL_PREFIX + name in saved_weights)
        value = _allocate_value(parameters[name].detach(), size)
        if value is None:
            raise CheckpointError(f"{folder}: {entry} has the shape {list(size)}")
        values[entry] = value.to(dtype)
    return values


def make_surplus_error(folder: Path, entry: str, has_weight: bool) -> CheckpointError:
    """Makes the error of a folder with a tensor for which an engine has no use.

    Args:
        has_weight: Whether it is an optimizer value of a weight of the model, which is frozen.
    """
    if not has_weight:
        return CheckpointError(f"{folder}: has {entry}, but the model has no such weight")

    _, name = split_value_name(entry)
    return CheckpointError(
        f"{folder}: has {entry}, but this run does not train {name}; expected a run that trains "
        f"the same weights. Resume with the settings of {folder.parent / CONFIG_FILE}, or begin a "
        f"new run in another out_dir with the weights of {folder.parent / 'model'}"
    )


def _allocate_value(parameter: torch.Tensor, size: torch.Size) -> torch.Tensor | None:
    """Allocates a value of an optimizer's state; None if no optimizer has a value of this size."""
    if size == parameter.shape:
        return torch.zeros_like(parameter)  # sharded like the parameter
    if math.prod(size) <= max(parameter.numel(), 1):
        return torch.zeros(size)  # a step counter, or sums over rows and columns; not sharded
    return None


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, nn.Parameter],
    values: dict[str, torch.Tensor],
) -> None:
    """Gives an optimizer the values of a checkpoint; its settings stay.

    Args:
        parameters: The result of `map_trained_weights`.
        values: The result of `allocate_optimizer_values`, read from the folder.
    """
    state_by_name: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
    for entry, value in values.items():
        key, name = split_value_name(entry)
        state_by_name[name][key] = value

    state_by_number = {
        number: state for number, state in enumerate(state_by_name.values()) if state
    }
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state_by_number, "param_groups": settings})

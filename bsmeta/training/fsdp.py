"""The engine of FSDP2, whose parameters are sharded over the ranks."""

from __future__ import annotations

import math
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.core.errors import CheckpointError
from bsmeta.core.progress import report_progress
from bsmeta.training.distributed import Accelerator
from bsmeta.training.engine import Snapshot
from bsmeta.training.engine_plain import PlainEngine
from bsmeta.training.processes import Processes
from bsmeta.training.shards import (
    read_full_tensors,
    read_shards,
    read_tensor_shapes,
    write_shards,
)

_MODEL_PREFIX = "model/"
_OPTIMIZER_PREFIX = "optimizer/"


class FSDPEngine(PlainEngine):
    """Torch's own optimizer on parameters that `fully_shard` has sharded over the ranks."""

    holds_all_weights = False

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        unsaved_weights: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(accelerator, model, optimizer, unsaved_weights)
        if accelerator.native_amp:
            # Like Accelerate for plain torch: evaluations compute in the precision of training.
            autocast_forward = accelerator.autocast()(self.model.forward)
            self.model.forward = convert_outputs_to_fp32(autocast_forward)
        self._separate_processes = Processes.of_group(accelerator.device).with_separate_group()

        # A tensor with several names in the model is saved under the first.
        self._saved_names: dict[str, str] = {}
        first_names: dict[int, str] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            self._saved_names[name] = first_names.setdefault(id(tensor), name)

    def clip(self, limit: float) -> torch.Tensor:
        norm = super().clip(limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def gather_weights(self) -> dict[str, torch.Tensor]:
        return self._add_shared_names(self._gather_tensors(self._collect_model_state()))

    def _gather_tensors(self, shards: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns whole tensors in main memory on rank 0, {} on other ranks. All ranks call it."""
        tensors = {}
        for name, shard in shards.items():
            full_tensor = shard.full_tensor() if isinstance(shard, DTensor) else shard
            if self.accelerator.is_main_process:
                tensors[name] = full_tensor.to("cpu")
            report_progress()
        return tensors

    @cached_property
    def _unsaved_tensors(self) -> dict[str, torch.Tensor]:
        """The weights that `save` leaves out, whole on rank 0; all ranks first access it together.

        Training does not change them, so they are gathered once for all exports of copies.
        """
        state = self._collect_model_state()
        return self._gather_tensors(
            {name: shard for name, shard in state.items() if name in self.unsaved_weights}
        )

    def _add_shared_names(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the weights under all names of the model, given those under the first names."""
        return {
            name: weights[saved_name]
            for name, saved_name in self._saved_names.items()
            if saved_name in weights
        }

    def _collect_model_state(self) -> dict[str, torch.Tensor]:
        """Returns this rank's shards of the weights, each only under its first name."""
        state = self.model.state_dict()
        return {name: state[name] for name in dict.fromkeys(self._saved_names.values())}

    def _collect_prefixed_model_state(self) -> dict[str, torch.Tensor]:
        """Returns this rank's shards of the saved weights under their names in a checkpoint."""
        state = self._select_saved(self._collect_model_state())
        return {_MODEL_PREFIX + name: tensor for name, tensor in state.items()}

    def collect_state(self) -> dict[str, torch.Tensor]:
        """Returns this rank's shards of weights and optimizer, not copied."""
        state = self._collect_prefixed_model_state()
        for name, parameter in self._map_names_to_parameters().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                state[f"{_OPTIMIZER_PREFIX}{key}/{name}"] = value
        return state

    def _map_names_to_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the optimizer's parameters by name, in the order of its groups."""
        tensors = self.model.state_dict(keep_vars=True)
        names = {id(tensors[name]): name for name in self._saved_names.values()}
        parameters = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameters[names[id(parameter)]] = parameter
        return parameters

    def save(self, folder: Path) -> None:
        write_shards(self.collect_state(), folder, self._separate_processes)

    def take_snapshot(self, *, with_weights: bool) -> Snapshot:
        copy = self.copy_state()
        processes = self._separate_processes
        unsaved_tensors = self._unsaved_tensors if with_weights else {}

        def read_weights(folder: Path) -> dict[str, torch.Tensor]:
            if not processes.is_main:
                return {}
            saved_tensors = read_full_tensors(folder, _MODEL_PREFIX)
            return self._add_shared_names({**unsaved_tensors, **saved_tensors})

        return Snapshot(processes, partial(write_shards, copy, processes=processes), read_weights)

    def load(self, folder: Path) -> None:
        state = self._collect_prefixed_model_state()
        parameters = self._map_names_to_parameters()
        optimizer_state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}

        for entry, (size, dtype) in read_tensor_shapes(folder).items():
            if entry in state:
                continue

            key, _, name = entry.removeprefix(_OPTIMIZER_PREFIX).partition("/")
            if name not in parameters:
                raise CheckpointError(f"{folder}: has {entry}, but the model has no such weight")
            value = _allocate_optimizer_value(parameters[name].detach(), size)
            if value is None:
                raise CheckpointError(f"{folder}: {entry} has the shape {list(size)}")

            value = value.to(dtype)
            state[entry] = value
            optimizer_state[name][key] = value

        read_shards(state, folder, self._separate_processes)
        state_by_number = {
            number: values for number, values in enumerate(optimizer_state.values()) if values
        }
        settings = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state_by_number, "param_groups": settings})


def _allocate_optimizer_value(parameter: torch.Tensor, size: torch.Size) -> torch.Tensor | None:
    """Allocates a value of an optimizer's state; None if no optimizer has a value of this size."""
    if size == parameter.shape:
        return torch.zeros_like(parameter)  # sharded like the parameter
    if math.prod(size) <= max(parameter.numel(), 1):
        return torch.zeros(size)  # a step counter, which all ranks have
    return None

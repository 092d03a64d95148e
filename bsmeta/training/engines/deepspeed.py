"""The engine of DeepSpeed. Each rank writes and reads its ranges of the weights.

DeepSpeed's own checkpoints are not used: they are pickles, in a format for each stage of ZeRO and
each number of processes.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.core.errors import CheckpointError, TrainingError
from bsmeta.training.checkpoints.checkpoint import name_damaged_file
from bsmeta.training.checkpoints.fragments import Fragment
from bsmeta.training.checkpoints.shards import read_shards, read_tensor_shapes
from bsmeta.training.engines.engine import Snapshot
from bsmeta.training.engines.state import (
    MODEL_PREFIX,
    make_surplus_error,
    map_first_names,
    name_optimizer_value,
    split_value_name,
)
from bsmeta.training.engines.training_engine import TrainingEngine
from bsmeta.training.engines.values import VALUES_FILE, EngineValues, read_values
from bsmeta.training.engines.zero_partitions import (
    MasterRange,
    cut_untrained,
    is_trained,
    list_master_ranges,
    round_weights,
)
from bsmeta.training.engines.zero_scaler import (
    capture_loss_scale,
    get_loss_scaler,
    restore_loss_scale,
)
from bsmeta.training.ranks.processes import Processes

_STEP = "step"  # key of the step counter of a weight in the state of the optimizer


class DeepSpeedEngine(TrainingEngine):
    """DeepSpeed, which clips, steps, and skips non-finite steps inside its backward pass.

    `model` is DeepSpeed's own engine object.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        unsaved_weights: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(accelerator, model, optimizer, unsaved_weights)
        self.scales_loss = accelerator.mixed_precision == "fp16"
        self.holds_all_weights = self.model.zero_optimization_stage() < 3
        if self.model.zero_optimization():  # otherwise, every rank has everything
            self._processes = Processes.of_group(accelerator.device).with_separate_group()

    def clip(self, limit: float) -> torch.Tensor | float | None:
        norm: torch.Tensor | float | None = self.model.get_global_grad_norm()
        return norm

    def step(self, is_finite: torch.Tensor) -> bool:
        return bool(self.model.was_step_applied())

    def gather_weights(self) -> dict[str, torch.Tensor]:
        # Under ZeRO-3, the other ranks than 0 get None.
        return self.accelerator.get_state_dict(self.model) or {}

    def _collect_values(self) -> EngineValues:
        if not self.scales_loss:
            return EngineValues(has_optimizer=True)
        scale = capture_loss_scale(get_loss_scaler(self.model))
        return EngineValues(has_optimizer=True, loss_scale=scale)

    def save(self, folder: Path) -> None:
        self._refuse_damaged_weights()
        super().save(folder)

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        self._refuse_damaged_weights()
        return super().take_snapshot(with_weights=with_weights)

    def collect_state(self) -> dict[str, torch.Tensor | Fragment]:
        state = self._collect_untrained()
        for weight in self._list_master_ranges():
            state[MODEL_PREFIX + weight.name] = weight.cut(weight.master)
            for key, value in self._optimizer_state.get(weight.master, {}).items():
                entry = name_optimizer_value(key, weight.name)
                state[entry] = value if key == _STEP else weight.cut(value)
        return state

    @property
    def _optimizer_state(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """The state of the optimizer, by the tensors that it updates."""
        state: dict[torch.Tensor, dict[str, torch.Tensor]] = self.model.basic_optimizer.state
        return state

    def _map_saved_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the weights and buffers that a checkpoint holds, by their first names.

        Under ZeRO-3, the weights are empty tensors, and their shards are attributes.
        """
        tensors = self.unwrapped_model.state_dict(keep_vars=True)
        first_names = dict.fromkeys(map_first_names(self.unwrapped_model).values())
        return {name: tensors[name] for name in first_names if name not in self.unsaved_weights}

    def _list_master_ranges(self) -> list[MasterRange]:
        """Lists the ranges of weights that the optimizer of this rank updates."""
        names = {id(tensor): name for name, tensor in self._map_saved_tensors().items()}
        return list_master_ranges(self.model, names)

    def _collect_untrained(self) -> dict[str, torch.Tensor | Fragment]:
        """Returns this rank's part of saved weights and buffers that are not trained."""
        state = {}
        for name, tensor in self._map_saved_tensors().items():
            values = None if is_trained(tensor) else cut_untrained(tensor)
            if values is not None:
                state[MODEL_PREFIX + name] = values
        return state

    def _refuse_damaged_weights(self) -> None:
        """Raises an error if a weight is not finite; all ranks call it.

        Without ZeRO, DeepSpeed neither reports a norm nor skips a step that is not finite.
        """
        if self.model.zero_optimization():
            return
        for name, parameter in self.model.module.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise TrainingError(
                    f"{name} is not finite, because a gradient was not; no checkpoint was written. "
                    "Resume with a lower learning_rate, or under ZeRO 1-3, which skips such steps"
                )

    def load(self, folder: Path) -> None:
        values = read_values(folder, has_optimizer=True)
        if self.model.zero_optimization_partition_weights():
            self.model.optimizer.checkpoint_event_prologue()  # releases gathered weights

        weights = self._list_master_ranges()
        counters = self._read_state(folder, weights)
        self._processes.run_on_all(lambda: self._restore_counters(folder, weights, counters))

        round_weights(self.model)
        if self.model.zero_optimization_partition_weights():
            self.model.optimizer.checkpoint_event_epilogue()  # gathers the persistent ones
        if self.scales_loss and values.loss_scale is not None:
            with name_damaged_file(folder / VALUES_FILE):
                restore_loss_scale(get_loss_scaler(self.model), values.loss_scale)

    def _read_state(self, folder: Path, weights: list[MasterRange]) -> dict[str, torch.Tensor]:
        """Reads this rank's part of weights and optimizer; returns the step counters by weight.

        Args:
            weights: The ranges of weights that the optimizer of this rank updates.
        """
        keys = self._list_optimizer_keys(folder)
        self._clear_optimizer(weights)
        state = self._collect_untrained()
        counters = {}
        for weight in weights:
            state[MODEL_PREFIX + weight.name] = weight.cut(weight.master)
            for key in keys[weight.name]:
                entry = name_optimizer_value(key, weight.name)
                if key == _STEP:
                    state[entry] = counters[weight.name] = torch.zeros(())
                else:
                    state[entry] = weight.cut(self._allocate_optimizer_value(weight.master, key))

        read_shards(state, folder, self._processes)
        return counters

    def _list_optimizer_keys(self, folder: Path) -> dict[str, list[str]]:
        """Lists the keys of the optimizer values that a folder holds, by weight.

        Raises:
            CheckpointError: If the folder holds weights that the model lacks, or optimizer values
                of frozen ones.
        """
        tensors = self._map_saved_tensors()
        keys = defaultdict(list)
        for entry in read_tensor_shapes(folder):
            if entry.removeprefix(MODEL_PREFIX) in tensors:
                continue
            key, name = split_value_name(entry)
            if name not in tensors or not is_trained(tensors[name]):
                raise make_surplus_error(folder, entry, name in tensors)
            keys[name].append(key)
        return keys

    def _allocate_optimizer_value(self, master: torch.Tensor, key: str) -> torch.Tensor:
        """Returns the memory of an optimizer value."""
        state = self._optimizer_state[master]
        if key not in state:
            state[key] = torch.zeros_like(master, requires_grad=False)
        return state[key]

    def _clear_optimizer(self, weights: list[MasterRange]) -> None:
        """Sets the optimizer values of earlier steps to zero.

        A checkpoint has none for padding, nor for weights without a gradient so far. A tensor with
        many weights is cleared once.
        """
        for master in {weight.master for weight in weights}:
            for value in self._optimizer_state.get(master, {}).values():
                value.zero_()

    def _restore_counters(
        self, folder: Path, weights: list[MasterRange], counters: dict[str, torch.Tensor]
    ) -> None:
        """Gives each tensor that the optimizer updates a step counter of its own.

        Args:
            counters: Step counters in the checkpoint, by weight.

        Raises:
            CheckpointError: If the weights of a tensor have had different numbers of steps.
        """
        steps: dict[torch.Tensor, set[float]] = defaultdict(set)
        for weight in weights:
            if weight.name in counters:
                steps[weight.master].add(float(counters[weight.name]))

        for master, different_steps in steps.items():
            if len(different_steps) > 1:
                raise CheckpointError(
                    f"{folder}: weights that ZeRO updates together have had different numbers of "
                    f"steps ({sorted(different_steps)}); resume with the engine that saved it"
                )
            # A fused optimizer has its counters on the device.
            step = torch.tensor(different_steps.pop(), device=master.device)
            self._optimizer_state[master][_STEP] = step

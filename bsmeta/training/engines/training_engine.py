"""How the engines that train save their state, at once or from a copy in main memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.checkpoints.fragments import Fragment
from bsmeta.training.checkpoints.shards import read_full_tensors
from bsmeta.training.checkpoints.state_copy import StateCopier
from bsmeta.training.engines.engine import Engine, Snapshot
from bsmeta.training.engines.state import MODEL_PREFIX, map_first_names, write_state
from bsmeta.training.engines.values import EngineValues
from bsmeta.training.ranks.processes import ALONE, Processes


class TrainingEngine(Engine):
    """An engine with an optimizer, whose state is as in `engine_state`."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        unsaved_weights: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(accelerator, model, optimizer, unsaved_weights)
        # The processes that have a part of the state each, which they save and load together.
        # `ALONE`: every rank has all of it, which rank 0 saves and each rank loads by itself.
        self._processes: Processes = ALONE
        self._copier = StateCopier(accelerator.device)
        # Under FSDP2, a thread that asked the model for them would disturb training.
        self._first_names = map_first_names(self.unwrapped_model)
        self._dtypes = {
            MODEL_PREFIX + name: tensor.dtype
            for name, tensor in self.unwrapped_model.state_dict(keep_vars=True).items()
        }

    @abstractmethod
    def collect_state(self) -> dict[str, torch.Tensor | Fragment]:
        """Returns this rank's part of the state by the names in a checkpoint, not copied."""

    @abstractmethod
    def _collect_values(self) -> EngineValues:
        """Returns the small values of a checkpoint."""

    @property
    def _writes_state(self) -> bool:
        return self._processes is not ALONE or self.accelerator.is_main_process

    def save(self, folder: Path) -> None:
        if self._writes_state:
            write_state(self.collect_state(), self._collect_values(), folder, self._processes)

    def copy_state(self) -> dict[str, torch.Tensor | Fragment]:
        """Copies this rank's part of the state to main memory, over the last copy."""
        return self._copier.copy(self.collect_state())

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        unsaved_weights = self._unsaved_weights if with_weights else {}
        if not self._writes_state:
            return None

        copy = self.copy_state()

        def read_model(folder: Path) -> dict[str, torch.Tensor]:
            if not self.accelerator.is_main_process:
                return {}
            if self._processes is ALONE:
                saved_weights = _round_weights(copy, self._dtypes)
            else:
                saved_weights = read_full_tensors(folder, MODEL_PREFIX, self._dtypes)
            return self._name_weights(unsaved_weights | saved_weights)

        write = partial(write_state, copy, self._collect_values(), processes=self._processes)
        return Snapshot(self._processes, write, read_model)

    @cached_property
    def _unsaved_weights(self) -> dict[str, torch.Tensor]:
        """The weights that `save` leaves out, whole on rank 0; all ranks first access it together.

        Training does not change them, so they are gathered once for all exports of copies.
        """
        if not self.unsaved_weights:
            return {}

        model = self.unwrapped_model
        weights = model.state_dict() if self.holds_all_weights else self.gather_weights()
        return {
            MODEL_PREFIX + name: weights[name] for name in self.unsaved_weights if name in weights
        }

    def _name_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the weights under all names of the model, given those in a checkpoint."""
        return {
            name: tensors[MODEL_PREFIX + first_name]
            for name, first_name in self._first_names.items()
            if MODEL_PREFIX + first_name in tensors
        }


def _round_weights(
    state: Mapping[str, torch.Tensor | Fragment], dtypes: Mapping[str, torch.dtype]
) -> dict[str, torch.Tensor]:
    """Returns the whole weights in a state, in some types, by their names in it."""
    return {
        name: values.to(dtypes[name])
        for name, values in state.items()
        if name in dtypes and isinstance(values, torch.Tensor)
    }

"""The engine of FSDP2, whose parameters are sharded over the ranks."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.core.progress import report_progress
from bsmeta.training.distributed import Accelerator
from bsmeta.training.engine import Snapshot
from bsmeta.training.engine_plain import PlainEngine
from bsmeta.training.engine_state import MODEL_PREFIX, collect_weights, write_state
from bsmeta.training.processes import Processes
from bsmeta.training.shards import read_full_tensors


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

    def clip(self, limit: float) -> torch.Tensor:
        norm = super().clip(limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def gather_weights(self) -> dict[str, torch.Tensor]:
        weights = collect_weights(self.unwrapped_model, frozenset())
        return self._name_weights(self._gather_tensors(weights))

    def _gather_tensors(self, shards: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns whole tensors in main memory on rank 0, {} on other ranks. All ranks call it."""
        tensors = {}
        for name, shard in shards.items():
            full_tensor = shard.full_tensor() if isinstance(shard, DTensor) else shard
            if self.accelerator.is_main_process:
                tensors[name] = full_tensor.to("cpu")
            report_progress()
        return tensors

    def _name_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the weights under all names of the model, given those in a checkpoint."""
        return {
            name: tensors[MODEL_PREFIX + first_name]
            for name, first_name in self._first_names.items()
            if MODEL_PREFIX + first_name in tensors
        }

    @cached_property
    def _unsaved_tensors(self) -> dict[str, torch.Tensor]:
        """The weights that `save` leaves out, whole on rank 0; all ranks first access it together.

        Training does not change them, so they are gathered once for all exports of copies.
        """
        weights = collect_weights(self.unwrapped_model, frozenset())
        saved_weights = collect_weights(self.unwrapped_model, self.unsaved_weights)
        return self._gather_tensors(
            {name: shard for name, shard in weights.items() if name not in saved_weights}
        )

    def save(self, folder: Path) -> None:
        state = self.collect_state()
        write_state(state, self._collect_values(), folder, self._separate_processes)

    def take_snapshot(self, *, with_weights: bool) -> Snapshot:
        copy = self.copy_state()
        processes = self._separate_processes
        unsaved_tensors = self._unsaved_tensors if with_weights else {}

        def read_weights(folder: Path) -> dict[str, torch.Tensor]:
            if not processes.is_main:
                return {}
            return self._name_weights(unsaved_tensors | read_full_tensors(folder, MODEL_PREFIX))

        values = self._collect_values()
        write = partial(write_state, copy, values, processes=processes)
        return Snapshot(processes, write, read_weights)

    def load(self, folder: Path) -> None:
        self._load(folder, self._separate_processes)

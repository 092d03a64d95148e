"""The engine of FSDP2, whose parameters are sharded over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.core.progress import report_progress
from bsmeta.training.engines.plain import PlainEngine
from bsmeta.training.engines.state import collect_weights
from bsmeta.training.ranks.distributed import Accelerator
from bsmeta.training.ranks.processes import Processes


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
        self._processes = Processes.of_group(accelerator.device).with_separate_group()

    def clip(self, limit: float) -> torch.Tensor:
        norm = super().clip(limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def gather_weights(self) -> dict[str, torch.Tensor]:
        tensors = {}
        for name, shard in collect_weights(self.unwrapped_model, frozenset()).items():
            full_tensor = shard.full_tensor() if isinstance(shard, DTensor) else shard
            if self.accelerator.is_main_process:
                tensors[name] = full_tensor.to("cpu")
            report_progress()
        return self._name_weights(tensors)

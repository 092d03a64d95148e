"""The engine of DeepSpeed, which also loads checkpoints saved by another number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.core.errors import CheckpointError, TrainingError
from bsmeta.core.progress import report_opaque_work
from bsmeta.training.checkpoint import name_damaged_file
from bsmeta.training.engine import Engine
from bsmeta.training.engine_frozen import load_saved_weights
from bsmeta.training.engines_states import restrict_to_values
from bsmeta.training.optimization import keep_settings

TAG = "pytorch_model"  # of DeepSpeed's checkpoints


class DeepSpeedEngine(Engine):
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
        # Writing or reading a file counts as progress, but not the barriers around it.
        file_engine = self.model.checkpoint_engine
        file_engine.save = report_opaque_work()(file_engine.save)
        file_engine.load = report_opaque_work()(file_engine.load)

    def clip(self, limit: float) -> torch.Tensor | float | None:
        norm: torch.Tensor | float | None = self.model.get_global_grad_norm()
        return norm

    def step(self, is_finite: torch.Tensor) -> bool:
        return bool(self.model.was_step_applied())

    def gather_weights(self) -> dict[str, torch.Tensor]:
        return self.accelerator.get_state_dict(self.model)

    def save(self, folder: Path) -> None:
        if self.model.zero_optimization_stage() == 0:
            self._refuse_damaged_weights()

        # DeepSpeed creates the folders on rank 0, and not all ranks may share them.
        folder.mkdir(exist_ok=True)
        (folder / TAG).mkdir(exist_ok=True)
        with self._leave_out_unsaved():
            self.model.save_checkpoint(
                str(folder), TAG, exclude_frozen_parameters=bool(self.unsaved_weights)
            )

    @contextmanager
    def _leave_out_unsaved(self) -> Iterator[None]:
        """Context in which DeepSpeed saves no weight of `unsaved_weights`.

        Its own `exclude_frozen_parameters` saves a shared weight under all names but the first.
        """
        collect_weights = self.model.module_state_dict

        def collect_saved_weights(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            weights = collect_weights(*args, **kwargs)
            return {
                name: weight for name, weight in weights.items() if name not in self.unsaved_weights
            }

        self.model.module_state_dict = collect_saved_weights
        try:
            yield
        finally:
            del self.model.module_state_dict

    def _load_saved_weights(self, src: dict[str, torch.Tensor], dst: nn.Module) -> None:
        """Loads weights from a checkpoint into a model; DeepSpeed passes both by these names."""
        load_saved_weights(dst, src, self.unsaved_weights)

    def _refuse_damaged_weights(self) -> None:
        """Raises an error if a weight is not finite.

        Without ZeRO, DeepSpeed neither reports a norm nor skips a step that is not finite.
        """
        for name, parameter in self.model.module.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise TrainingError(
                    f"{name} is not finite, because a gradient was not; no checkpoint was written. "
                    "Resume with a lower learning_rate, or under ZeRO 1-3, which skips such steps"
                )

    def load(self, folder: Path) -> None:
        optimizer = self.model.optimizer
        clip_limit = getattr(optimizer, "clip_grad", None)  # ZeRO 1 and 2 overwrite it

        with keep_settings(optimizer), name_damaged_file(folder), restrict_to_values():
            if self.model.load_universal_checkpoint():
                self._load_universal(folder)
                # Checkpoints of this run are loaded in the format in which it saves them.
                self.model._config.load_universal_checkpoint = False
            else:
                path, _ = self.model.load_checkpoint(
                    str(folder), TAG, custom_load_fn=self._load_saved_weights
                )
                if path is None:
                    raise CheckpointError(f"{folder}: DeepSpeed found no checkpoint there")

        if clip_limit is not None:
            optimizer.clip_grad = clip_limit

    def _load_universal(self, folder: Path) -> None:
        """Loads a checkpoint saved by another number of processes, and repairs the optimizer.

        For ZeRO-3, DeepSpeed 0.19.8 gives all parameter groups the settings of the first group
        (biases would be decayed; see `keep_settings`) and one shared step counter (which is then
        incremented too often).
        """
        optimizer = self.model.optimizer.optimizer
        try:
            with report_opaque_work():  # reads a file for each parameter
                self.model.load_checkpoint(str(folder), "universal")
        except (IndexError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: DeepSpeed cannot cut the checkpoint for "
                f"{self.accelerator.num_processes} processes ({error!r}): each must get a part of "
                "every parameter group; resume with fewer processes"
            ) from error

        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()

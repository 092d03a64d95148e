"""The small values in `state/` of a checkpoint: whether the run trains, and its loss scale."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.parsing import parse_json
from bsmeta.training.checkpoints.checkpoint import name_damaged_file

VALUES_FILE = "engine.json"
"""File of the small values of an engine."""


@dataclass(frozen=True)
class LossScale:
    """The state of a loss scaler (fp16).

    Attributes:
        scale: Factor of the loss.
        scaler: Class of the scaler.
        values: All of its state, which only a scaler of this class can restore.
    """

    scale: Annotated[float, msgspec.Meta(gt=0)]
    scaler: str
    values: dict[str, int | float]


@dataclass(frozen=True)
class EngineValues:
    """The content of `engine.json`.

    Attributes:
        has_optimizer: Whether the run trains; False for a fitted model.
        loss_scale: None if the loss is not scaled.
    """

    has_optimizer: bool
    loss_scale: LossScale | None = None

    def write(self, folder: Path) -> None:
        """Writes the file into the folder of a state."""
        (folder / VALUES_FILE).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> EngineValues:
        """Reads the file from the folder of a state.

        Raises:
            CheckpointError: If it cannot be read, or a value has another type.
        """
        file = folder / VALUES_FILE
        with name_damaged_file(file):
            return msgspec.convert(parse_json(file.read_bytes()), cls)


def read_values(folder: Path, *, has_optimizer: bool) -> EngineValues:
    """Reads the values for an engine with or without an optimizer.

    Raises:
        CheckpointError: See `EngineValues.read`.
        ConfigurationError: If the engine that saved them differs in this.
    """
    values = EngineValues.read(folder)
    if values.has_optimizer != has_optimizer:
        saved_run = "a run that trains" if values.has_optimizer else "a run without training steps"
        action = "trains" if has_optimizer else "has no training steps"
        raise ConfigurationError(
            f"{folder.parent} was saved by {saved_run}, and this run {action}; expected the "
            "settings of that run, or a new run in another out_dir"
        )
    return values

"""The small values of a state, which anyone may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bsmeta.core.errors import CheckpointError, ConfigurationError
from bsmeta.training.engines.values import EngineValues, LossScale, read_values

SCALE = {"scale": 1024.0, "scaler": "GradScaler", "values": {"scale": 1024.0, "growth_interval": 5}}


@pytest.mark.parametrize("values", [
    EngineValues(has_optimizer=True),
    EngineValues(has_optimizer=False),
    EngineValues(True, LossScale(1024.0, "GradScaler", {"scale": 1024.0, "growth_interval": 5})),
])  # fmt: skip
def test_values_are_read_as_they_were_written(values: EngineValues, tmp_path: Path) -> None:
    values.write(tmp_path)
    assert EngineValues.read(tmp_path) == values


@pytest.mark.parametrize("change", [
    {"scale": 0}, {"scale": -1.0}, {"scale": "1"}, {"scaler": 3}, {"values": [1]},
    {"values": {"scale": "1"}}, {"values": {"growth_interval": [5]}}, {"values": None},
])  # fmt: skip
def test_a_malformed_loss_scale_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    content = {"has_optimizer": True, "loss_scale": {**SCALE, **change}}
    (tmp_path / "engine.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/engine.json: cannot be read"):
        EngineValues.read(tmp_path)


@pytest.mark.parametrize(
    ("has_optimizer", "message"),
    [
        (True, "was saved by a run that trains, and this run has no training steps;"),
        (False, "was saved by a run without training steps, and this run trains;"),
    ],
)
def test_a_run_with_steps_and_one_without_do_not_continue_each_other(
    has_optimizer: bool, message: str, tmp_path: Path
) -> None:
    EngineValues(has_optimizer).write(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        read_values(tmp_path, has_optimizer=not has_optimizer)

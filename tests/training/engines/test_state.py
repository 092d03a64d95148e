"""The tensors of a state and their names, and the small values beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.shards import read_full_tensors, read_tensor_shapes, write_shards
from bsmeta.training.engines.plain import PlainEngine
from bsmeta.training.engines.state import map_first_names
from bsmeta.training.engines.values import EngineValues, LossScale
from bsmeta.training.ranks.processes import ALONE


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.tensor([7]))


def train(model: nn.Module) -> PlainEngine:
    """Returns an engine after one step of AdamW."""
    engine = PlainEngine(Accelerator(cpu=True), model, torch.optim.AdamW(model.parameters()))
    sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    engine.step(torch.tensor(True))
    return engine


def test_a_state_has_each_tensor_in_its_shape_under_its_first_name(tmp_path: Path) -> None:
    model = Tied()
    assert map_first_names(model) == {
        "first.weight": "first.weight",
        "first.bias": "first.bias",
        "second.weight": "first.weight",
        "count": "count",
    }
    engine = train(model)
    engine.save(tmp_path / "state")
    matrix, vector, scalar = torch.Size([3, 3]), torch.Size([3]), torch.Size([])
    assert read_tensor_shapes(tmp_path / "state") == {
        "model/first.weight": (matrix, torch.float32),
        "model/first.bias": (vector, torch.float32),
        "model/count": (torch.Size([1]), torch.int64),
        "optimizer/step/first.weight": (scalar, torch.float32),
        "optimizer/exp_avg/first.weight": (matrix, torch.float32),
        "optimizer/exp_avg_sq/first.weight": (matrix, torch.float32),
        "optimizer/step/first.bias": (scalar, torch.float32),
        "optimizer/exp_avg/first.bias": (vector, torch.float32),
        "optimizer/exp_avg_sq/first.bias": (vector, torch.float32),
    }
    assert json.loads((tmp_path / "state" / "engine.json").read_text()) == {
        "has_optimizer": True,
        "loss_scale": None,
    }


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("optimizer/exp_avg/third.weight", (3, 3), "but the model has no such weight"),
        ("model/third.weight", (3, 3), "but the model has no such weight"),
        ("exp_avg/first.weight", (3, 3), "but the model has no such weight"),
        ("optimizer/exp_avg/first.weight", (9, 3), r"has the shape \[9, 3\]"),
    ],
)
def test_a_state_of_another_model_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    engine = train(Tied())
    engine.save(tmp_path / "state")
    tensors = read_full_tensors(tmp_path / "state", "")
    write_shards({**tensors, name: torch.ones(shape)}, tmp_path / "other", ALONE)
    (tmp_path / "state" / "engine.json").rename(tmp_path / "other" / "engine.json")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/other: .*{message}"):
        engine.load(tmp_path / "other")


def test_optimizer_values_of_a_frozen_weight_are_refused(tmp_path: Path) -> None:
    train(Tied()).save(tmp_path / "state")
    model = Tied()
    model.first.bias.requires_grad_(False)
    trained = [model.first.weight]
    engine = PlainEngine(Accelerator(cpu=True), model, torch.optim.AdamW(trained))
    message = (
        f"^{tmp_path}/state: has optimizer/step/first.bias, but this run does not train first.bias;"
        f" expected a run that trains the same weights. Resume with the settings of {tmp_path}/"
    )
    with pytest.raises(CheckpointError, match=message):
        engine.load(tmp_path / "state")


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    engine = train(Tied())
    engine.save(tmp_path / "state")
    tensors = read_full_tensors(tmp_path / "state", "")
    del tensors["model/first.bias"]
    write_shards(tensors, tmp_path / "other", ALONE)
    (tmp_path / "state" / "engine.json").rename(tmp_path / "other" / "engine.json")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/other: .*model/first.bias"):
        engine.load(tmp_path / "other")


def test_a_loss_scaler_is_restored_and_another_takes_its_scale(tmp_path: Path) -> None:
    saved, loaded = train(Tied()), train(Tied())
    saved.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    saved.save(tmp_path / "state")
    values = EngineValues.read(tmp_path / "state")
    assert values.loss_scale == LossScale(
        1024.0,
        "GradScaler",
        {
            "scale": 1024.0,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": 5,
            "_growth_tracker": 0,
        },
    )

    loaded.accelerator.scaler = torch.amp.GradScaler("cpu")
    loaded.load(tmp_path / "state")
    assert loaded.accelerator.scaler.state_dict() == values.loss_scale.values

    loaded.accelerator.scaler = torch.amp.GradScaler("cpu")
    foreign = LossScale(512.0, "DynamicLossScaler", {"cur_scale": 512.0, "cur_iter": 3})
    EngineValues(has_optimizer=True, loss_scale=foreign).write(tmp_path / "state")
    loaded.load(tmp_path / "state")
    state = loaded.accelerator.scaler.state_dict()
    assert (state["scale"], state["growth_interval"]) == (512.0, 2000)

"""The engine of a run without steps: its state, and the refusal to train from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn

from bsmeta.core.errors import CheckpointError, ConfigurationError
from bsmeta.training.engines.choice import make_engine, needs_optimizer
from bsmeta.training.engines.engine import PLAIN
from bsmeta.training.engines.plain import PlainEngine


def test_only_a_run_without_steps_needs_no_optimizer() -> None:
    accelerator = Accelerator(cpu=True)
    assert not needs_optimizer(accelerator, 0)
    assert needs_optimizer(accelerator, 1)
    assert needs_optimizer(accelerator, None)  # a task without epochs


def test_a_fixed_model_is_restored_from_its_state_and_from_a_snapshot(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    engine = make_engine(accelerator, nn.Linear(2, 1), None)
    assert engine.name == PLAIN
    engine.save(tmp_path / "state")
    snapshot = engine.take_snapshot(with_weights=True)
    assert snapshot is not None
    snapshot.write(tmp_path / "snapshot")

    for folder in ("state", "snapshot"):
        model = nn.Linear(2, 1)
        make_engine(accelerator, model, None).load(tmp_path / folder)
        assert torch.equal(model.weight, engine.unwrapped_model.weight)
        assert torch.equal(model.bias, engine.unwrapped_model.bias)


def test_a_tied_weight_is_written_once_and_restored_under_both_names(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.ModuleDict({name: nn.Linear(100, 100, bias=False) for name in ("in", "out")})
    model["out"].weight = model["in"].weight
    make_engine(accelerator, model, None).save(tmp_path / "state")
    assert (tmp_path / "state" / "weights.safetensors").stat().st_size < 1.1 * 40_000

    other = nn.ModuleDict({name: nn.Linear(100, 100, bias=False) for name in ("in", "out")})
    other["out"].weight = other["in"].weight
    make_engine(accelerator, other, None).load(tmp_path / "state")
    assert torch.equal(other["out"].weight, model["in"].weight)


@pytest.mark.parametrize(
    "weights",
    [
        {"weight": torch.ones(1, 2)},
        {"weight": torch.ones(1, 2), "bias": torch.ones(2)},
        {"weight": torch.ones(1, 2), "bias": torch.ones(1), "other": torch.ones(1)},
    ],
)
def test_weights_of_another_model_are_named(
    weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    engine = make_engine(Accelerator(cpu=True), nn.Linear(2, 1), None)
    engine.save(tmp_path / "state")
    file = tmp_path / "state" / "weights.safetensors"
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=f"^{file}: cannot be read"):
        engine.load(tmp_path / "state")


def test_a_run_without_steps_does_not_continue_training(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    engine = PlainEngine(Accelerator(cpu=True), model, torch.optim.AdamW(model.parameters()))
    engine.save(tmp_path / "state")
    message = "was saved by a run that trains, and this run has no training steps"
    with pytest.raises(ConfigurationError, match=message):
        make_engine(Accelerator(cpu=True), model, None).load(tmp_path / "state")


def test_training_does_not_continue_a_run_without_steps(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 1)
    folder = tmp_path / "checkpoint-0step" / "state"
    folder.parent.mkdir()
    make_engine(accelerator, model, None).save(folder)
    engine = PlainEngine(accelerator, model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(ConfigurationError, match="checkpoint-0step was saved by a run without"):
        engine.load(folder)

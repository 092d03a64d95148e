"""Copies of a state, which share memory; random generators, which come back."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.core.errors import CheckpointError
from bsmeta.training.engine_plain import PlainEngine
from bsmeta.training.generators import capture_rng, restore_rng, write_rng

CPU = torch.device("cpu")


def test_copies_are_made_in_the_same_memory() -> None:
    model = nn.ModuleDict({name: nn.Linear(3, 2, bias=False) for name in ("in", "out")})
    model["out"].weight = model["in"].weight
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = PlainEngine(Accelerator(cpu=True), model, optimizer)
    weight = model["in"].weight

    def step() -> None:
        weight.sum().backward()
        engine.step(torch.tensor(True))

    step()
    state, before = engine.state(), weight.detach().clone()
    first = engine.copy()
    assert first["model"]["in.weight"].data_ptr() == first["model"]["out.weight"].data_ptr()
    torch.testing.assert_close(first, state, rtol=0, atol=0)
    step()
    assert torch.equal(first["model"]["in.weight"], before)
    assert not torch.equal(weight, before)
    places = addresses(first)
    second = engine.copy()
    torch.testing.assert_close(second, engine.state(), rtol=0, atol=0)
    assert addresses(second) == places
    assert not set(places) & set(addresses(state))
    optimizer.load_state_dict(optimizer.state_dict())  # into other memory
    torch.testing.assert_close(engine.copy(), engine.state(), rtol=0, atol=0)


def test_the_memory_of_copies_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A tied matrix of 4 MB counts once, and so do its two moments."""
    caplog.set_level(logging.INFO)
    model = nn.ModuleDict({name: nn.Linear(1000, 1000, bias=False) for name in ("in", "out")})
    model["out"].weight = model["in"].weight
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = PlainEngine(Accelerator(cpu=True), model, optimizer)
    model["in"].weight.sum().backward()
    engine.step(torch.tensor(True))
    engine.copy()
    engine.copy()
    expected = (
        "async_save: the copy of a checkpoint takes 12.0 MB of main memory, for the whole run"
    )
    assert [line for line in caplog.messages if "async_save" in line] == [expected]


def addresses(state: dict[str, Any]) -> list[int]:
    moments = state["optimizer"]["state"][0]
    return [tensor.data_ptr() for tensor in (state["model"]["in.weight"], *moments.values())]


def draw() -> list[float]:
    return [random.gauss(0, 1), random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


def test_random_state_comes_back(tmp_path: Path) -> None:
    (tmp_path / "rng").mkdir()
    random.gauss(0, 1)
    write_rng(capture_rng(CPU), tmp_path, 0)
    first = draw()
    restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=CPU)
    assert draw() == first


def test_a_rank_saves_and_restores_the_generator_of_its_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees four GPUs, saves on the third, and resumes on the second; here they are a table."""
    generators = {torch.device("cuda", index): torch.tensor([index]) for index in range(4)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generators[device])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: generators.update({device: state})
    )
    (tmp_path / "rng").mkdir()
    write_rng(capture_rng(torch.device("cuda", 2)), tmp_path, 0)
    restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=torch.device("cuda", 1))
    assert [int(state) for state in generators.values()] == [0, 2, 2, 3]


def test_a_new_rank_seeds_itself(tmp_path: Path) -> None:
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5, device=CPU)
    first = float(torch.rand(1))
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5, device=CPU)
    assert float(torch.rand(1)) == first


def test_a_missing_file_of_a_rank_that_saved_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rank1.pt: is missing, but 2 ranks saved"):
        restore_rng(tmp_path, 1, saved_ranks=2, seed=0, device=CPU)


class Call:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def write_call(file: Path) -> None:
    torch.save({"model": Call(file.with_name("was_run"))}, file)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"PK\x03\x04"),
        lambda file: torch.save([1, 2], file),
        lambda file: torch.save({"python": 1, "numpy": 2, "torch": 3, "cuda": []}, file),
        lambda file: torch.save({**capture_rng(CPU), "python": [3, ["x"], None]}, file),
        lambda file: torch.save({**capture_rng(CPU), "torch": torch.zeros(3)}, file),
        write_call,
    ],
)
def test_generators_of_another_form_are_named(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    file = tmp_path / "rng" / "rank0.pt"
    file.parent.mkdir()
    write(file)
    with pytest.raises(CheckpointError) as error:
        restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=CPU)
    assert str(error.value).startswith(f"{file}: cannot be read (")
    assert not file.with_name("was_run").exists()


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(b"\x80\x04K\x01."),
        lambda file: torch.save({"model": {}}, file),
        lambda file: torch.save({"model": {"weight": 1}, "optimizer": 2, "scaler": 3}, file),
        write_call,
    ],
)
def test_an_engine_names_a_state_of_another_form(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    engine = PlainEngine(Accelerator(cpu=True), model, torch.optim.AdamW(model.parameters()))
    file = tmp_path / "torch.pt"
    write(file)
    with pytest.raises(CheckpointError) as error:
        engine.load(tmp_path)
    assert str(error.value).startswith(f"{file}: cannot be read (")
    assert not file.with_name("was_run").exists()

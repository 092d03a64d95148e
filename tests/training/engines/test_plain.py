"""The engine of plain torch: copies of its state, which share memory, and states it refuses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.core.errors import CheckpointError
from bsmeta.training.engines.plain import PlainEngine


def test_copies_reuse_the_same_memory() -> None:
    model = nn.ModuleDict({name: nn.Linear(3, 2, bias=False) for name in ("in", "out")})
    model["out"].weight = model["in"].weight
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = PlainEngine(Accelerator(cpu=True), model, optimizer)
    weight = model["in"].weight

    def step() -> None:
        weight.sum().backward()
        engine.step(torch.tensor(True))

    step()
    state, before = engine.collect_state(), weight.detach().clone()
    first = engine.copy_state()
    assert "model/out.weight" not in first
    torch.testing.assert_close(first, state, rtol=0, atol=0)
    step()
    assert torch.equal(first["model/in.weight"], before)
    assert not torch.equal(weight, before)
    places = addresses(first)
    second = engine.copy_state()
    torch.testing.assert_close(second, engine.collect_state(), rtol=0, atol=0)
    assert addresses(second) == places
    assert not set(places) & set(addresses(state))
    optimizer.load_state_dict(optimizer.state_dict())  # into other memory
    torch.testing.assert_close(engine.copy_state(), engine.collect_state(), rtol=0, atol=0)


def test_the_memory_of_copies_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A tied matrix of 4 MB counts once, and so do its two moments."""
    caplog.set_level(logging.INFO)
    model = nn.ModuleDict({name: nn.Linear(1000, 1000, bias=False) for name in ("in", "out")})
    model["out"].weight = model["in"].weight
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = PlainEngine(Accelerator(cpu=True), model, optimizer)
    model["in"].weight.sum().backward()
    engine.step(torch.tensor(True))
    engine.copy_state()
    engine.copy_state()
    expected = (
        "async_save: the copy of a checkpoint takes 12.0 MB of main memory, for the whole run"
    )
    assert [line for line in caplog.messages if "async_save" in line] == [expected]


def addresses(state: dict[str, torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in state.values()]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("engine.json", b"{"),
        ("engine.json", b'{"has_optimizer": 3}'),
        (".metadata", b"\x80\x04K\x01."),
        ("__0_0.distcp", b""),
    ],
)
def test_an_engine_names_a_malformed_state(file: str, content: bytes, tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    engine = PlainEngine(Accelerator(cpu=True), model, torch.optim.AdamW(model.parameters()))
    engine.save(tmp_path / "state")
    (tmp_path / "state" / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/state/?\S*: "):
        engine.load(tmp_path / "state")

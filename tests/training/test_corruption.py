"""Silent data corruption: single flipped bits are found, and named by step, rank and tensor."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.training.corruption import compute_checksum

FLIPPING = Path(__file__).with_name("flipped_bits.py")
TOY = Path(__file__).with_name("toy_task.py")
KEYS = (
    "trackers=[]",
    "max_train_steps=6",
    "num_warmup_steps=0",
    "corruption_check_steps=3",
    "deterministic=true",
)
Launch = Callable[..., subprocess.CompletedProcess[str]]


def train_with_flip(
    launch: Launch, out_dir: Path, flip: str, flip_pass: int, *keys: str, **options: Any
) -> str:
    """Trains with a flipped bit; returns the message of the run that it ended."""
    environment = {"FLIP": flip, "FLIP_PASS": str(flip_pass), "FLIP_RANK": "0", **options}
    done = launch(FLIPPING, *KEYS, f"out_dir={out_dir}", *keys, check=False, **environment)
    assert done.returncode == 1, done.stderr
    return json.loads((out_dir / "status.json").read_text())["message"]


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.integers(0, 20),
    st.integers(0, 15),
)
def test_every_flipped_bit_changes_the_checksum(dtype: torch.dtype, index: int, bit: int) -> None:
    values = torch.linspace(-2, 2, 21, dtype=dtype)
    flipped = values.clone()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[flipped.element_size()]
    mask = torch.tensor(1, dtype=integers) << bit
    flipped.view(integers)[index] ^= mask
    assert compute_checksum(values) != compute_checksum(flipped)
    assert compute_checksum(values) == compute_checksum(values.clone())


def test_a_flipped_activation_ends_the_run_before_the_step_is_saved(
    launch: Launch, tmp_path: Path
) -> None:
    # A step has one forward pass, and a step with a check three: the second pass of step 6.
    message = train_with_flip(launch, tmp_path, "activation", 9, "save_steps=1")
    assert message == (
        f"step 6: silent data corruption: rank 0 ({socket.gethostname()}) has computed a "
        "micro-batch twice, and the loss differs. The device or its memory may be faulty: "
        "checkpoints after step 3 may be wrong. Resume on other hardware from an earlier one. If "
        "it happens on all hardware, a kernel does not repeat its results bit for bit: "
        "corruption_check_steps=0"
    )
    steps = sorted(folder.name for folder in tmp_path.glob("checkpoint-*"))
    assert steps == ["checkpoint-3step", "checkpoint-4step", "checkpoint-5step"]


def test_a_flipped_gradient_is_found_although_the_loss_is_equal(
    launch: Launch, tmp_path: Path
) -> None:
    message = train_with_flip(launch, tmp_path, "gradient", 3)
    assert "step 3: silent data corruption: rank 0" in message
    assert "the gradients differ in 2 of 4 parameters (0.weight, 0.bias)" in message
    assert "checkpoints since the start may be wrong" in message


def test_a_flipped_weight_is_found_on_the_rank_that_has_it(launch: Launch, tmp_path: Path) -> None:
    """Two steps before the check."""
    message = train_with_flip(launch, tmp_path, "weight", 1, FLIP_RANK="1", processes=2)
    assert "rank 1 (" in message
    assert ") has other weights than rank 0 in 1 of 4 parameters (0.weight)." in message
    assert "twice" not in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "stage"), [(1, None), (2, None), (2, "1"), (2, "3"), (2, "fsdp2")]
)
def test_checks_change_no_loss(
    launch: Launch,
    tmp_path: Path,
    steps: Callable[[Path], dict[int, dict[str, Any]]],
    processes: int,
    stage: str | None,
) -> None:
    """With dropout, under every engine; a check draws the random numbers of the step."""
    environment = {} if stage is None else {"TOY_ZERO_STAGE": stage}
    losses = []
    for interval in (0, 1):
        out_dir = tmp_path / str(interval)
        keys = (*KEYS, f"corruption_check_steps={interval}", f"out_dir={out_dir}")
        launch(TOY, *keys, processes=processes, **environment)
        losses.append([step["loss"] for step in steps(out_dir).values()])
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


@pytest.mark.long
@pytest.mark.parametrize("stage", ["2", "3", "fsdp2"])
def test_a_flipped_activation_is_found_under_every_engine(
    launch: Launch, tmp_path: Path, stage: str
) -> None:
    message = train_with_flip(launch, tmp_path, "activation", 4, processes=2, TOY_ZERO_STAGE=stage)
    assert message.startswith("step 3: silent data corruption: rank 0 (")

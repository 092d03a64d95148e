"""The same losses from a bare loop, from the trainer, and with each way of going faster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("equal_losses.py")
Launch = Callable[..., subprocess.CompletedProcess[str]]
SMALL = (
    "trackers=[]",
    "eval_steps=0",
    "save_steps=0",
    "num_warmup_steps=4",
    "gradient_accumulation_steps=2",
    "data_config.metadata_config.max_seq_len=64",
)


def losses(
    launch: Launch, out_dir: Path, steps: int, variants: list[dict[str, Any]], processes: int = 1
) -> dict[str, list[float]]:
    keys = (*SMALL, f"max_train_steps={steps}", f"out_dir={out_dir}")
    done = launch(SCRIPT, *keys, processes=processes, VARIANTS=json.dumps(variants))
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOSSES "))
    found = json.loads(line.removeprefix("LOSSES "))
    assert all(len(values) == steps for values in found.values())
    return found


def test_a_bare_loop_and_every_optional_kernel(launch: Launch, tmp_path: Path) -> None:
    """20 steps in float32 of 2 x 2 sequences of 64 tokens; chunks of 30 targets (of 128)."""
    chunked = {"loss_chunk_logits": 30 * 4096}
    variants = [
        {"name": "bare"},
        {"name": "ours"},
        {"name": "chunked", **chunked},
        {"name": "eager", "attn_implementation": "eager"},
        {
            "name": "recomputed",
            "gradient_checkpointing": True,
            "gradient_checkpointing_every": 2,
            **chunked,
        },
    ]
    found = losses(launch, tmp_path, 20, variants)
    for name in ("ours", "chunked", "eager", "recomputed"):
        assert found[name] == pytest.approx(found["bare"], rel=1e-4), name
    assert found["bare"][0] > found["bare"][-1]
    steps = [json.loads(line) for line in (tmp_path / "chunked/metrics.jsonl").open()]
    plain = [json.loads(line) for line in (tmp_path / "ours/metrics.jsonl").open()]
    for one, other in zip(steps[:20], plain[:20], strict=True):
        assert one["parts"] == pytest.approx(other["parts"], rel=1e-4)


@pytest.mark.slow
def test_compiled_layers(launch: Launch, tmp_path: Path) -> None:
    variants = [{"name": "ours"}, {"name": "compiled", "torch_compile": True}]
    found = losses(launch, tmp_path, 20, variants)
    assert found["compiled"] == pytest.approx(found["ours"], rel=1e-4)


@pytest.mark.slow
def test_chunks_under_every_engine(launch: Launch, tmp_path: Path) -> None:
    """Two processes, tied embeddings, under DDP and with ZeRO 2 and 3."""
    chunked = {"loss_chunk_logits": 30 * 4096}
    variants = [
        {"name": "ddp"},
        {"name": "ddp chunked", **chunked},
        {"name": "zero2 chunked", "stage": 2, **chunked},
        {"name": "zero3 chunked", "stage": 3, **chunked},
    ]
    found = losses(launch, tmp_path, 8, variants, processes=2)
    for name in ("ddp chunked", "zero2 chunked", "zero3 chunked"):
        assert found[name] == pytest.approx(found["ddp"], rel=1e-4), name

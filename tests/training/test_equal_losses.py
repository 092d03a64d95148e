"""The same losses from a bare loop, from the trainer, and with each way of going faster."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.schema import OPTIMIZERS

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


def results(
    launch: Launch, out_dir: Path, steps: int, variants: list[dict[str, Any]], processes: int = 1
) -> dict[str, dict[str, Any]]:
    keys = (*SMALL, f"max_train_steps={steps}", f"out_dir={out_dir}")
    done = launch(SCRIPT, *keys, processes=processes, VARIANTS=json.dumps(variants))
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


def events(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


CHUNKED = {"loss_chunk_logits": 30 * 4096}  # of the 128 targets of a micro-batch
TIMES = ("data_wait_s", "step_s", "tokens_per_s", "memory_gb")


@pytest.mark.long
def test_a_bare_loop_and_every_optional_kernel_have_equal_losses(
    launch: Launch, tmp_path: Path
) -> None:
    """8 steps in float32 of 2 x 2 sequences of 64 tokens."""
    variants = [
        {"name": "bare"},
        {"name": "ours", "profile": True, "profile_steps": [3, 4]},
        {"name": "read later", "lag": 1},
        {"name": "chunked", **CHUNKED},
        {"name": "eager", "attn_implementation": "eager"},
        {
            "name": "recomputed",
            "gradient_checkpointing": True,
            "gradient_checkpointing_every": 2,
            **CHUNKED,
        },
    ]
    runs = results(launch, tmp_path, 8, variants)
    bare = runs.pop("bare")["losses"]
    assert bare[0] > bare[-1]
    for name, one in runs.items():
        assert len(one["losses"]) == 8
        assert one["losses"] == pytest.approx(bare, rel=1e-4), name
        # Nothing of a micro-batch is read: once at the start, and once a step; and the rehearsal
        # reads the difference of the exported model's logits.
        reads = {"training/step_stats.py: read": 9, "models/rehearsal.py: check_export": 1}
        assert one["reads"] == reads, name
    whole = events(tmp_path / "ours", "step")
    for one, other in zip(events(tmp_path / "chunked", "step"), whole, strict=True):
        assert one["parts"] == pytest.approx(other["parts"], rel=1e-4)
    for one, other in zip(events(tmp_path / "read later", "step"), whole, strict=True):
        same = [name for name in one if name not in TIMES]
        assert [one[name] for name in same] == [other[name] for name in same]
    trace = json.loads((tmp_path / "ours/profile/steps-3-4-rank0.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert names.count("bsmeta: forward pass") == 4  # 2 steps of 2 micro-batches
    for name in ("waiting for data", "backward pass", "all-reduce", "optimizer"):
        assert f"bsmeta: {name}" in names


@pytest.mark.long
def test_every_optimizer_skips_a_step_that_is_not_finite(launch: Launch, tmp_path: Path) -> None:
    """The run is the same if the values are read at once or, as on a GPU, one step later."""
    skip = {"on_nonfinite": "skip", "nan": 3}
    variants = [{"name": "now", **skip}]
    variants += [{"name": name, "lag": 1, "optimizer_type": name, **skip} for name in OPTIMIZERS]
    runs = results(launch, tmp_path, 8, variants)
    assert runs["adamw"]["losses"] == runs["now"]["losses"]
    assert len({result["losses"][-1] for result in runs.values()}) == len(OPTIMIZERS)
    for name, one in runs.items():
        assert all(map(math.isfinite, one["losses"]))
        assert [event["step"] for event in events(tmp_path / name, "nonfinite")] == [3]
        steps = [event["step"] for event in events(tmp_path / name, "step")]
        assert steps == [1, 2, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_compiled_layers_have_equal_losses(launch: Launch, tmp_path: Path) -> None:
    variants = [{"name": "ours"}, {"name": "compiled", "torch_compile": True}]
    runs = results(launch, tmp_path, 20, variants)
    assert runs["compiled"]["losses"] == pytest.approx(runs["ours"]["losses"], rel=1e-4)


@pytest.mark.slow
def test_chunks_and_precision_have_equal_losses_under_every_engine(
    launch: Launch, tmp_path: Path
) -> None:
    """Two processes, tied embeddings, under DDP, FSDP2 and with ZeRO 2 and 3."""
    half = {"mixed_precision": "bf16"}
    variants = [
        {"name": "ddp"},
        {"name": "ddp chunked", **CHUNKED},
        {"name": "zero2 chunked", "stage": 2, **CHUNKED},
        {"name": "zero3", "stage": 3},  # which draws other weights, part by part
        {"name": "zero3 chunked", "stage": 3, **CHUNKED},
        {"name": "fsdp2", "stage": "FSDP2"},
        {"name": "fsdp2 chunked", "stage": "FSDP2", **CHUNKED},
        {"name": "fsdp2 compiled", "stage": "FSDP2", "torch_compile": True},
        {"name": "ddp bf16", **half},
        {"name": "fsdp2 bf16", "stage": "FSDP2", **half},
        {"name": "fsdp2 bf16 chunked", "stage": "FSDP2", **half, **CHUNKED},
        {"name": "zero2 bf16 chunked", "stage": 2, **half, **CHUNKED},
        {"name": "zero3 bf16 chunked", "stage": 3, **half, **CHUNKED},
    ]
    runs = results(launch, tmp_path, 8, variants, processes=2)
    losses = {name: one["losses"] for name, one in runs.items()}
    assert losses["ddp chunked"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["zero2 chunked"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["zero3 chunked"] == pytest.approx(losses["zero3"], rel=1e-4)
    assert losses["fsdp2"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["fsdp2 chunked"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["fsdp2 compiled"] == pytest.approx(losses["ddp"], rel=1e-4)
    assert losses["fsdp2 bf16"] == pytest.approx(losses["ddp"], rel=2e-3)
    assert losses["fsdp2 bf16 chunked"] == pytest.approx(losses["ddp"], rel=2e-3)
    assert losses["ddp bf16"] == pytest.approx(losses["ddp"], rel=2e-3)
    assert losses["zero2 bf16 chunked"] == pytest.approx(losses["ddp"], rel=2e-3)
    assert losses["zero3 bf16 chunked"] == pytest.approx(losses["zero3"], rel=2e-3)
    # Whatever the model computes in, the optimizer updates float32 weights.
    for name, one in runs.items():
        assert one["optimizer"] == ["torch.float32"], name
        of_zero = name.startswith("zero") and "bf16" in name
        assert one["model"] == ["torch.bfloat16" if of_zero else "torch.float32"], name
        # Whether all ranks have data and how much, then one a step.
        assert one["collectives"] == 10, name
        if not name.startswith("zero"):  # which keeps gradients in buffers of its own
            assert one["kept"] == (0.5 if name.startswith("fsdp2") else 1.0), name


@pytest.mark.slow
def test_every_optimizer_of_fsdp2_skips_a_step_that_is_not_finite(
    launch: Launch, tmp_path: Path
) -> None:
    """Two processes; the losses equal those of data parallel training."""
    skip = {"on_nonfinite": "skip", "nan": 3}
    names = [name for name, entry in OPTIMIZERS.items() if entry.takes_shards]
    variants = [
        {"name": f"{name}{end}", "optimizer_type": name, **engine, **skip}
        for name in names
        for end, engine in (("", {}), (" fsdp2", {"stage": "FSDP2"}))
    ]
    runs = results(launch, tmp_path, 8, variants, processes=2)
    for name in names:
        losses = runs[f"{name} fsdp2"]["losses"]
        assert losses == pytest.approx(runs[name]["losses"], rel=1e-3), name
        assert len(losses) == 7


@pytest.mark.long
def test_copies_of_a_sharded_model_train_like_one_process(launch: Launch, tmp_path: Path) -> None:
    """Four processes as two copies of two shards each; continued as one copy of two shards."""
    rate = {"lr_scheduler_type": "constant"}
    hybrid = {"name": "hsdp", "stage": "FSDP2", "fsdp_shard_processes": 2, **rate}
    variants = [hybrid, {"name": "all shards", "stage": "FSDP2", **rate}]
    runs = results(launch, tmp_path, 6, variants, processes=4)
    one = {"name": "one", "gradient_accumulation_steps": 8, **rate}
    losses = results(launch, tmp_path, 9, [one])["one"]["losses"]
    for name in ("hsdp", "all shards"):
        assert runs[name]["losses"] == pytest.approx(losses[:6], rel=1e-5), name
    assert runs["hsdp"]["kept"] == pytest.approx(1 / 2, rel=0.1)
    assert runs["all shards"]["kept"] == pytest.approx(1 / 4, rel=0.1)

    again = {
        "name": "hsdp",
        "stage": "FSDP2",
        "gradient_accumulation_steps": 4,
        "resume_from_checkpoint_dir": "latest",
        **rate,
    }
    continued = results(launch, tmp_path, 9, [again], processes=2)
    assert continued["hsdp"]["losses"] == pytest.approx(losses, rel=1e-5)

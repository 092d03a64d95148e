"""Complete checkpoints with small files."""

from __future__ import annotations

from pathlib import Path

from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.ranks.processes import ALONE


def write_checkpoint(out_dir: Path, step: int) -> Path:
    return begin_checkpoint(out_dir, step).commit().folder


def begin_checkpoint(out_dir: Path, step: int) -> checkpoint.Writer:
    writer = checkpoint.Writer(out_dir, step, ALONE)
    (writer.folder / "state").mkdir()
    (writer.folder / "state" / "weights").write_bytes(bytes(range(256)) * 40)
    (writer.folder / "rng" / "rank0.pt").write_bytes(b"states")
    writer.write_json("trainer_state.json", {"step": step})
    writer.write_json("data_state.json", {})
    (writer.folder / "config.yaml").write_text("seed: 1\n")
    return writer

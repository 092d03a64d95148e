"""Checkpoints: written aside, sealed by a manifest, committed by one rename, validated when read.

    checkpoint-{step}step/
        state/              the engine's state: weights, optimizer
        rng/rank{r}.pt      the random generators of each rank
        data_state.json     the position of every stream (all ranks), and the data's fingerprint
        trainer_state.json  counters
        config.yaml         the resolved configuration
        model/              weights and tokenizer for `from_pretrained`
        manifest.json       size and xxh3 of each file above, written last

Only a folder whose manifest fits its files counts. A bit flip in a weights file would otherwise
load without a word.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.errors import CheckpointError, ConfigurationError
from bsmeta.models.manifest import FORMAT, MANIFEST, describe_file, mismatch, read_manifest

if TYPE_CHECKING:  # it loads accelerate, for which a refused run should not wait
    from bsmeta.training.distributed import Processes

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"
DATA = "data_state.json"
_NAME = re.compile(r"checkpoint-(\d+)step")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint folder and the step that it was taken after."""

    folder: Path
    step: int


def name(step: int) -> str:
    """The folder's name (no `=`: it would break a Hydra override that names it)."""
    return f"checkpoint-{step}step"


def found(out_dir: Path) -> list[Checkpoint]:
    """The checkpoints of a run folder, oldest first; their content is not looked at."""
    matches = [(entry, _NAME.fullmatch(entry.name)) for entry in out_dir.glob("checkpoint-*step")]
    return sorted(
        (Checkpoint(entry, int(match[1])) for entry, match in matches if match),
        key=lambda one: one.step,
    )


class Writer:
    """A checkpoint in the making. All ranks open it, write their files, and commit it together."""

    def __init__(self, out_dir: Path, step: int, processes: Processes) -> None:
        self.step = step
        self._processes = processes
        self._final = out_dir / name(step)
        self.folder = out_dir / f"tmp-{name(step)}"
        processes.on_main(self._begin)

    def _begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "rng").mkdir(parents=True)

    def write_json(self, file: str, value: Any) -> None:
        """Writes a JSON file (rank 0)."""
        (self.folder / file).write_text(json.dumps(value, indent=1))

    def commit(self) -> Checkpoint:
        """Seals the folder and gives it its name; the checkpoint exists from here on, or not."""
        self._processes.barrier()  # every rank has written its files
        entries = _describe(self.folder, _files(self.folder), self._processes, sync=True)
        self._processes.on_main(lambda: self._seal(entries))
        return Checkpoint(self._final, self.step)

    def _seal(self, entries: dict[str, Any]) -> None:
        manifest = {"format": FORMAT, "step": self.step, "files": entries}
        self.write_json(MANIFEST, manifest)
        _sync(self.folder / MANIFEST)
        for folder in [self.folder, *(p for p in self.folder.rglob("*") if p.is_dir())]:
            _sync(folder)
        if self._final.exists():  # a damaged one of this step, passed over when the run resumed
            shutil.rmtree(self._final)
        os.rename(self.folder, self._final)
        _sync(self._final.parent)


def problems(folder: Path, processes: Processes) -> list[str]:
    """What is wrong with a checkpoint, one line a file; empty: it is whole. Every rank calls it."""
    try:
        expected = read_manifest(folder)
    except ValueError as error:
        return [str(error)]
    missing = [f"{folder / file}: is missing" for file in expected if not (folder / file).is_file()]
    if missing:
        return missing
    actual = _describe(folder, sorted(expected), processes, sync=False)
    return [
        mismatch(folder / file, actual[file], entry)
        for file, entry in expected.items()
        if entry != actual[file]
    ]


def choose(wanted: str, out_dir: Path, processes: Processes) -> Checkpoint | None:
    """The checkpoint to resume from; every rank gets the same.

    Args:
        wanted: `latest`, or the folder of one checkpoint.
        out_dir: The run folder that `latest` looks into.

    Returns:
        The newest whole checkpoint; None for `latest` where the run has none yet.

    Raises:
        CheckpointError: If the named one, or every one of the run, is damaged.
        ConfigurationError: If the named folder is not a checkpoint.
    """
    if wanted != "latest":
        return _named(Path(wanted), processes)
    candidates = processes.broadcast(found(out_dir))
    damaged: list[str] = []
    for candidate in reversed(candidates):
        faults = problems(candidate.folder, processes)
        if not faults:
            return candidate
        damaged += faults
        if processes.is_main:
            logger.warning(
                "%s is damaged and passed over:\n  %s", candidate.folder, "\n  ".join(faults)
            )
    if damaged:
        raise CheckpointError(
            f"{out_dir}: every checkpoint is damaged; nothing was overwritten. Restore one, or "
            "delete them all to start afresh:\n  " + "\n  ".join(damaged)
        )
    return None


def _named(folder: Path, processes: Processes) -> Checkpoint:
    match = _NAME.fullmatch(folder.resolve().name)
    if not folder.is_dir() or match is None:
        raise ConfigurationError(
            f"resume_from_checkpoint_dir: {folder} is not a checkpoint folder; expected `latest` "
            "or the path of a folder named checkpoint-{step}step"
        )
    faults = problems(folder, processes)
    if faults:
        raise CheckpointError(f"{folder} is damaged:\n  " + "\n  ".join(faults))
    return Checkpoint(folder, int(match[1]))


def clean(out_dir: Path) -> None:
    """Removes what an interrupted save has left behind (rank 0)."""
    for leftover in out_dir.glob("tmp-checkpoint-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _describe(
    folder: Path, files: list[str], processes: Processes, *, sync: bool
) -> dict[str, dict[str, Any]]:
    """Size and checksum of each file; the ranks share the reading, and all get the result."""
    mine = {}
    for file in processes.broadcast(files)[processes.rank :: processes.size]:
        mine[file] = describe_file(folder / file)
        if sync:
            _sync(folder / file)
    merged: dict[str, dict[str, Any]] = {}
    for part in processes.gather(mine):
        merged.update(part)
    return dict(sorted(merged.items()))


def _sync(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Checkpoints: written to a temporary folder, committed by one rename, validated when read.

    checkpoint-{step}step/
        state/              the engine's state: weights (without those of a frozen base), optimizer
        rng/rank{r}.pt      the states of each rank's random number generators
        data_state.json     the position of every stream (all ranks), and the data's fingerprint
        trainer_state.json  counters
        config.yaml         the resolved configuration
        model/              weights and tokenizer for `from_pretrained` (see `export_steps`)
        manifest.json       size and xxh3 of each file above, written last

A checkpoint is valid only if its manifest matches its files and `state/` and `rng/` hold no other
files. A bit flip in a weights file would otherwise load without an error. A manifest says nothing
about who wrote the checkpoint: any other error in the content of a file is reported with the name
of the file (`name_damaged_file`), and no file is read in a way that could run code.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import CheckpointError, ConfigurationError, TrainingError, UserError
from bsmeta.core.files import sync_to_disk
from bsmeta.core.parsing import parse_json
from bsmeta.models.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    describe_file,
    find_fault,
    read_manifest,
    write_manifest,
)
from bsmeta.training.checkpoints.trainer_state import TrainerState
from bsmeta.training.ranks.file_shares import divide_files, select_unique_files
from bsmeta.training.ranks.shared_folder import TOKEN

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.ranks.processes import Processes

logger = logging.getLogger(__name__)

# The version of the checkpoint format: incremented when `state/` or one of the state files below
# changes.
FORMAT = 6
TRAINER_STATE_FILE = "trainer_state.json"
DATA_STATE_FILE = "data_state.json"
CONFIG_FILE = "config.yaml"
KEEP_FILE = "KEEP"
"""A checkpoint that contains a file of this name is never deleted."""
REHEARSAL = ".rehearsal"
"""Folder in the run folder where the first save is rehearsed before the first step."""
LOADED_FOLDERS = ("state", "rng")
"""Folders of which every file may be loaded."""
# Errors that do not come from the content of a file, by name: torch is not imported here.
_OTHER_ERRORS = {"OutOfMemoryError", "DistError"}


@contextmanager
def name_damaged_file(
    file: Path, *, other_errors: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Context that turns any error about the content of `file` into a `CheckpointError`.

    Its message names the file. Exhausted GPU memory and a lost rank are not errors of the file.

    Args:
        other_errors: Further types of errors that do not come from the file.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (UserError, CheckpointError, TrainingError, *other_errors)):
            raise
        if {parent.__name__ for parent in type(error).__mro__} & _OTHER_ERRORS:
            raise
        error_name = type(error).__name__
        raise CheckpointError(f"{file}: cannot be read ({error_name}: {error})") from error


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint folder and the step after which it was saved."""

    folder: Path
    step: int

    def read_state(self) -> dict[str, Any]:
        """Reads the state of the trainer.

        Raises:
            CheckpointError: If the file cannot be read, or a value has another type.
        """
        content = self._read_json(TRAINER_STATE_FILE)
        with name_damaged_file(self.folder / TRAINER_STATE_FILE):
            msgspec.convert(content, TrainerState)
        return content

    def read_data(self) -> dict[str, Any]:
        """Reads the state of the data, whose content the stream of the task checks.

        Raises:
            CheckpointError: If the file is not a JSON object.
        """
        return self._read_json(DATA_STATE_FILE)

    def _read_json(self, name: str) -> dict[str, Any]:
        """Reads a file of the checkpoint that holds a JSON object."""
        file = self.folder / name
        with name_damaged_file(file):
            content = parse_json(file.read_bytes())
            if not isinstance(content, dict):
                raise ValueError(f"found {type(content).__name__}, expected an object")
        return content


def name_folder(step: int) -> str:
    """Returns the folder name of a checkpoint (without `=`, which would break a Hydra override)."""
    return f"checkpoint-{step}step"


def locate_temporary_folder(out_dir: Path, step: int) -> Path:
    """Returns the folder to which the checkpoint of a step is written until it is committed."""
    return out_dir / f"tmp-{name_folder(step)}"


def list_checkpoints(out_dir: Path) -> list[Checkpoint]:
    """Lists the checkpoints of a run folder, oldest first, without reading their content."""
    checkpoints = []
    for entry in out_dir.glob("checkpoint-*step"):
        match = CHECKPOINT_NAME.fullmatch(entry.name)
        if match and entry.is_dir():
            checkpoints.append(Checkpoint(entry, int(match[1])))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


class Writer:
    """Writes a checkpoint. All ranks construct it, write their files, and commit together."""

    def __init__(self, out_dir: Path, step: int, processes: Processes) -> None:
        self.step = step
        self._processes = processes
        self._final = out_dir / name_folder(step)
        self.folder = locate_temporary_folder(out_dir, step)
        processes.on_leaders(self._begin)

    def _begin(self) -> None:
        """Creates the temporary folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        # Without the parents: if the run folder is deleted, only `RunFolder.keep` may rebuild it,
        # with the files that mark it as the folder of a run. Without them it would be taken for a
        # folder of the user.
        self.folder.mkdir()
        (self.folder / "rng").mkdir()

    def write_json(self, file: str, value: Any) -> None:
        """Writes a file of the checkpoint; one rank calls it."""
        (self.folder / file).write_text(json.dumps(value, indent=1))

    def commit(self) -> Checkpoint:
        """Writes the manifest and renames the folder, so that the checkpoint appears at once.

        Raises:
            FileNotFoundError: If a part of the checkpoint was deleted in the meantime.
        """
        self._processes.barrier()  # every rank has written its files

        files = select_unique_files(self._measure_files, self._processes)
        entries_by_rank = self._processes.run_on_all(
            lambda: {
                file: self._describe_file(file) for file in divide_files(files, self._processes)
            }
        )
        entries: dict[str, FileEntry] = {}
        for entries_of_rank in entries_by_rank:
            entries.update(entries_of_rank)
        entries = dict(sorted(entries.items()))

        self._processes.on_leaders(lambda: self._seal(entries))
        return Checkpoint(self._final, self.step)

    def _measure_files(self) -> dict[str, int]:
        """Returns the sizes of the files in the temporary folder, in bytes."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}

    def _describe_file(self, file: str) -> FileEntry:
        """Makes a file durable on the disk, and returns its size and hash."""
        sync_to_disk(self.folder / file)
        return describe_file(self.folder / file)

    def _seal(self, entries: dict[str, FileEntry]) -> None:
        """Writes the manifest, makes everything durable on the disk, and renames the folder."""
        parts = {file.split("/")[0] for file in entries}
        missing = sorted(
            {*LOADED_FOLDERS, TRAINER_STATE_FILE, DATA_STATE_FILE, CONFIG_FILE} - parts
        )
        if missing:
            raise FileNotFoundError(
                f"{self.folder}: {', '.join(missing)} was deleted while the checkpoint was written"
            )

        write_manifest(self.folder, Manifest(FORMAT, entries, self.step))
        sync_to_disk(self.folder / MANIFEST)
        subfolders = (path for path in self.folder.rglob("*") if path.is_dir())
        for folder in [self.folder, *subfolders]:
            sync_to_disk(folder)

        if self._final.exists():  # a damaged checkpoint of this step that a rollback skipped
            shutil.rmtree(self._final)
        os.rename(self.folder, self._final)
        sync_to_disk(self._final.parent)


def read_checked_manifest(checkpoint: Checkpoint) -> Manifest:
    """Reads and checks a checkpoint's manifest, without reading the files that it lists.

    Raises:
        CheckpointError: If it cannot be read, is malformed, or belongs to another step.
        ConfigurationError: If another version of bsmeta wrote the checkpoint.
    """
    manifest = read_manifest(checkpoint.folder)
    if manifest.format != FORMAT:
        version = "an earlier" if manifest.format < FORMAT else "a later"
        raise ConfigurationError(
            f"{checkpoint.folder} was written by {version} version of bsmeta (format "
            f"{manifest.format}, expected {FORMAT}); resume with that version, or start afresh: "
            "another out_dir, or overwrite_out_dir=true. model_name="
            f"{checkpoint.folder / 'model'} begins a new run from its weights"
        )

    file = checkpoint.folder / MANIFEST
    if manifest.step != checkpoint.step:
        name = name_folder(checkpoint.step)
        raise CheckpointError(f"{file}: is of step {manifest.step}, but its folder is named {name}")
    for path in (TRAINER_STATE_FILE, DATA_STATE_FILE, CONFIG_FILE):
        if path not in manifest.files:
            raise CheckpointError(f"{file}: does not list {path}")
    return manifest


def list_faults(checkpoint: Checkpoint, processes: Processes) -> list[str]:
    """Lists a checkpoint's faults, one line per file; empty if intact. Every rank calls it.

    If ranks have different run folders, the copy in each of them must be complete.
    """
    inspections = processes.run_on_all(
        lambda: _inspect_checkpoint(checkpoint) if processes.is_leader else _Inspection({}, [])
    )
    faults = [fault for inspection in inspections for fault in inspection.faults]
    if faults:
        return faults

    expected = inspections[0].expected
    share = divide_files({file: entry.bytes for file, entry in expected.items()}, processes)
    faults_by_rank = processes.run_on_all(
        lambda: [find_fault(checkpoint.folder / file, expected[file]) for file in share]
    )
    return sorted(
        fault for faults_of_rank in faults_by_rank for fault in faults_of_rank if fault is not None
    )


class _Inspection(NamedTuple):
    """The manifest's entries, and the faults that are found without reading the files."""

    expected: dict[str, FileEntry]
    faults: list[str]


def _inspect_checkpoint(checkpoint: Checkpoint) -> _Inspection:
    """Reads the manifest of a checkpoint, and looks for files that it does not list."""
    try:
        expected = read_checked_manifest(checkpoint).files
    except CheckpointError as error:
        return _Inspection({}, [str(error)])

    folder = checkpoint.folder
    paths: list[Path] = []
    for part in LOADED_FOLDERS:
        paths += (folder / part).rglob("*")

    faults = []
    for path in sorted(paths):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(folder).as_posix() not in expected:
            faults.append(
                f"{path}: is not listed in {MANIFEST}; remove it if you do not know where it is "
                "from"
            )
    return _Inspection(expected, faults)


def find_newest_intact(
    out_dir: Path,
    processes: Processes,
    is_candidate: Callable[[Checkpoint], bool] = lambda _: True,
) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest intact checkpoint of a run, among those in the folder of rank 0.

    Every rank gets the same step and its own path.

    Args:
        out_dir: The run folder of this rank.
        is_candidate: Whether a checkpoint is considered (rank 0).

    Returns:
        The checkpoint, if there is one, and the faults of newer ones.
    """
    steps = processes.on_main(
        lambda: [saved.step for saved in list_checkpoints(out_dir) if is_candidate(saved)]
    )
    newer_faults: list[str] = []
    for step in reversed(steps):
        candidate = Checkpoint(out_dir / name_folder(step), step)
        faults = list_faults(candidate, processes)
        if not faults:
            return candidate, newer_faults

        newer_faults += faults
        if processes.is_main:
            logger.warning(
                "%s is damaged and skipped:\n  %s", candidate.folder, "\n  ".join(faults)
            )
    return None, newer_faults


def remove_leftovers(out_dir: Path) -> None:
    """Removes the leftovers of an interrupted save or start (rank 0)."""
    for leftover in (*out_dir.glob("tmp-checkpoint-*"), out_dir / REHEARSAL):
        shutil.rmtree(leftover, ignore_errors=True)
    for token in out_dir.glob(f"{TOKEN}*"):
        token.unlink(missing_ok=True)


def set_aside_newer(out_dir: Path, step: int) -> None:
    """Renames the checkpoints later than `step`, the step that the run resumes from.

    They were skipped because they are damaged, or because an earlier checkpoint was named, and the
    run will save these steps again. Under a new name, retention neither counts nor deletes them,
    and the next `latest` does not choose them.
    """
    for checkpoint in list_checkpoints(out_dir):
        if checkpoint.step <= step:
            continue

        target = _find_unused_path(out_dir / f"superseded-{checkpoint.folder.name}")
        checkpoint.folder.rename(target)
        logger.warning(
            "resuming from step %d: the later %s is now %s; delete it when you are sure that "
            "you do not need it",
            step,
            checkpoint.folder,
            target.name,
        )


def _find_unused_path(path: Path) -> Path:
    """Returns `path`, or if it exists, the first of `path.2`, `path.3`, … that does not."""
    candidate = path
    for number in itertools.count(2):
        if not candidate.exists():
            break
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate

"""Saves: what goes into a checkpoint, and whether it is written synchronously or asynchronously.

In an asynchronous save (`async_save`), rank 0 copies weights and optimizer to main memory (under
FSDP2 every rank its shards), and a thread writes the copy while training continues. Only one save
is in progress at a time. Under DeepSpeed, the ranks write their own partitions together, so every
save is synchronous. Every rank adds the states of its random number generators.

The disk: room for a checkpoint before it is saved, and which checkpoints are kept after it.

The last k, every n-th, the best, and those marked by the user are kept. Called on rank 0 after a
checkpoint is committed, so that there is always an intact one. Only intact checkpoints count among
the last k; otherwise damaged ones would displace those that a run can resume from.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import exports_model
from bsmeta.config.values import to_yaml
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.files import free_bytes, gigabytes, is_full
from bsmeta.core.progress import opaque_work
from bsmeta.models.pretrained import record_tokenizer, write_model_manifest
from bsmeta.training import checkpoint
from bsmeta.training.checkpoint import (
    STATE,
    Checkpoint,
    list_checkpoints,
    manifest_of,
    newest_whole,
    problems,
)
from bsmeta.training.distributed import ALONE, Processes
from bsmeta.training.engines import Engine, PlainEngine
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import Completes, Exports, Metric, Task

# Before each further attempt at a save during which the run folder is deleted: the deletion of a
# large folder takes a while, and takes along what is written into it meanwhile.
_PAUSES = (0.1, 1.0, 10.0)

# Allows for logs, file system overhead, and a model that has grown by a token.
MARGIN = 1.1

KEEP = "KEEP"
"""A checkpoint that contains a file of this name is never deleted."""

# For each file of a checkpoint: path, size and time of the last modification (ns).
Stamps = list[tuple[str, int, int]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint.

    Attributes:
        seconds: How long it took to write.
        loop_seconds: How long the loop waited for it.
    """

    step: int
    name: str
    seconds: float
    loop_seconds: float


class Saver:
    """Writes the checkpoints of a run. All ranks call `save` and `finish` together.

    Attributes:
        retention: Deletes old ones after each save (rank 0).
    """

    def __init__(
        self, config: RunConfig, task: Task, model: nn.Module, engine: Engine, run: RunFolder,
        processes: Processes,
    ) -> None:  # fmt: skip
        self._config = config
        self._task = task
        self._model = model
        self._engine = engine
        self._run = run
        self._out_dir = run.path
        self._processes = processes
        self.retention = Retention(run.path, config)
        self._thread: threading.Thread | None = None
        self._finished: queue.SimpleQueue[Saved] = queue.SimpleQueue()
        self._failure: Exception | None = None

    def save(self, step: int, state: dict[str, Any], data: dict[str, Any]) -> None:
        """Saves the current state of the run.

        Args:
            state: For `trainer_state.json`.
            data: For `data_state.json`.

        Raises:
            DataError: If there is not enough disk space; the previous checkpoint is kept.
        """
        began = time.perf_counter()
        self.finish()
        self._processes.on_main(lambda: self._prepare(step))
        if self._config.async_save and isinstance(self._engine, PlainEngine):
            self._save_aside(step, state, data, self._engine, began)
        else:
            self._save_now(step, state, data, began)

    def _prepare(self, step: int) -> None:
        self._run.keep()
        check_room(self._out_dir, with_model=self._exports(step))

    def _exports(self, step: int) -> bool:
        return isinstance(self._task, Exports) and exports_model(self._config, step)

    @property
    def failed(self) -> bool:
        """Whether an asynchronous save has failed on this rank; `finish` raises rank 0's error."""
        return self._failure is not None

    def finish(self) -> None:
        """Waits for the save in progress; raises its error, if any, on every rank."""
        self.settle()
        self._processes.on_main(self._raise_failure)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Waits for the save in progress, whether or not it succeeds (this rank only)."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finished(self) -> list[Saved]:
        """Returns the saves that were committed since the last call (rank 0)."""
        return [self._finished.get() for _ in range(self._finished.qsize())]

    def export(self, folder: Path) -> None:
        """Replaces `folder` with the model and its manifest; all ranks call it.

        The model is that of `best`, or else the current one, unless the task replaces it.
        """
        if not isinstance(self._task, Exports):
            return
        temporary = folder.with_name(f".tmp-{folder.name}")
        self._processes.on_main(lambda: shutil.rmtree(temporary, ignore_errors=True))
        best = self.best()
        if best is None:
            self._write_model(temporary)
        else:
            model = best.folder / "model"
            self._processes.on_main(lambda: shutil.copytree(model, temporary))

        def replace() -> None:
            if isinstance(self._task, Completes):
                with opaque_work():
                    self._task.complete(temporary)
                record_tokenizer(temporary)
            write_model_manifest(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)

        self._processes.on_main(replace)

    def best(self) -> checkpoint.Checkpoint | None:
        """The checkpoint that `export_best` exports; None: the last model. All ranks call it."""
        return self._processes.on_main(self.retention.best) if self._config.export_best else None

    def _write_model(self, folder: Path) -> None:
        """Writes the model for `from_pretrained`; all ranks take part in gathering the weights."""
        weights = self._engine.weights()
        self._processes.on_main(lambda: self._export(weights, folder))

    def _export(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        if isinstance(self._task, Exports):
            with opaque_work():
                self._task.export(self._model, weights, folder)
            record_tokenizer(folder)

    def _save_now(
        self, step: int, state: dict[str, Any], data: dict[str, Any], began: float
    ) -> None:
        def write() -> None:
            writer = checkpoint.Writer(self._out_dir, step, self._processes)
            self._engine.save(writer.folder / "state")
            write_rng(capture_rng(), writer.folder, self._processes.rank)
            if self._exports(step):
                self._write_model(writer.folder / "model")
            self._processes.on_main(lambda: self._write_json(writer, state, data))
            saved = writer.commit()
            seconds = time.perf_counter() - began
            if self._processes.is_main:
                self._committed(Saved(step, saved.folder.name, seconds, seconds))

        try:
            # Several ranks cannot begin again: they do not notice the deletion at the same point.
            self._despite_deletion(write, step, _PAUSES if self._processes.size == 1 else ())
        except Exception as error:
            self._clean(step)
            explanation = explain_full_disk(error, self._out_dir)
            if explanation is error:
                raise  # `raise error from error` would make the error its own cause
            raise explanation from error
        self._processes.barrier()

    def _save_aside(
        self,
        step: int,
        state: dict[str, Any],
        data: dict[str, Any],
        engine: PlainEngine,
        began: float,
    ) -> None:
        generators = self._processes.gather(capture_rng())
        snapshot = engine.snapshot()
        if snapshot is None:
            return
        together = snapshot.processes
        waited = time.perf_counter() - began

        def write() -> None:
            writer = checkpoint.Writer(self._out_dir, step, together)
            snapshot.write(writer.folder / "state")
            together.on_main(lambda: write_rest(writer))
            name = writer.commit().folder.name
            if together.is_main:
                self._committed(Saved(step, name, time.perf_counter() - began, waited))

        def write_rest(writer: checkpoint.Writer) -> None:
            for rank, states in enumerate(generators):
                write_rng(states, writer.folder, rank)
            if self._exports(step):
                self._export(snapshot.weights(writer.folder / "state"), writer.folder / "model")
            self._write_json(writer, state, data)

        def work() -> None:
            try:
                self._despite_deletion(write, step, _PAUSES if together.size == 1 else ())
            except Exception as error:  # the loop checks for it and raises it
                self._clean(step)
                self._failure = explain_full_disk(error, self._out_dir)

        # Not a daemon, so that a run that fails for another reason still completes the checkpoint.
        self._thread = threading.Thread(target=work, name="checkpoint writer")
        self._thread.start()

    def _despite_deletion(
        self, write: Callable[[], None], step: int, pauses: tuple[float, ...]
    ) -> None:
        """Calls `write`, and again after each pause if the run folder is deleted meanwhile."""
        final = self._out_dir / checkpoint.name(step)
        for pause in (*pauses, None):
            try:
                write()
                return
            except Exception as error:
                # Torch's and safetensors' writers have their own errors for a missing folder.
                is_deleted = isinstance(error, FileNotFoundError) or not checkpoint.has_folders(
                    self._out_dir, step
                )
                if pause is None or not is_deleted or final.is_dir():
                    raise
                time.sleep(pause)
                self._run.keep()

    def _clean(self, step: int) -> None:
        """Removes what a failed save has left, unless it is in the folder of another run."""
        if not self._run.is_replaced():
            folder = checkpoint.temporary_folder(self._out_dir, step)
            shutil.rmtree(folder, ignore_errors=True)

    def _write_json(
        self, writer: checkpoint.Writer, state: dict[str, Any], data: dict[str, Any]
    ) -> None:
        writer.write_json(checkpoint.DATA, data)
        writer.write_json(checkpoint.STATE, state)
        (writer.folder / checkpoint.CONFIG).write_text(to_yaml(self._config))

    def _committed(self, saved: Saved) -> None:
        self.retention.prune(checkpoint.Checkpoint(self._out_dir / saved.name, saved.step))
        self._run.write_status("running", saved.step, None)
        self._finished.put(saved)


def capture_rng() -> dict[str, Any]:
    """Captures Python's, numpy's and torch's generator states (CPU and GPUs), in plain types."""
    python = random.getstate()
    kind, state, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [kind, np.asarray(state).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def write_rng(states: dict[str, Any], folder: Path, rank: int) -> None:
    """Writes the states of one rank to a checkpoint."""
    torch.save(states, _rng_file(folder, rank))


def restore_rng(folder: Path, rank: int, saved_ranks: int, seed: int) -> None:
    """Restores the generators from a checkpoint.

    Args:
        saved_ranks: Number of ranks that saved the checkpoint. A rank beyond them has no saved
            states and seeds its generators: its dropout is new, its data is not.
        seed: The seed for such a rank.

    Raises:
        CheckpointError: If the file of a rank that saved the checkpoint is missing.
    """
    if rank >= saved_ranks:
        torch.manual_seed(seed)
        return
    if not _rng_file(folder, rank).is_file():
        raise CheckpointError(
            f"{_rng_file(folder, rank)}: is missing, but {saved_ranks} ranks saved"
        )
    states = torch.load(_rng_file(folder, rank), map_location="cpu", weights_only=True)
    version, values, gauss = states["python"]
    random.setstate((version, tuple(values), gauss))
    kind, state, *rest = states["numpy"]
    np.random.set_state((kind, np.array(state, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


def _rng_file(folder: Path, rank: int) -> Path:
    return folder / "rng" / f"rank{rank}.pt"


def check_room(out_dir: Path, like: Checkpoint | None = None, *, with_model: bool = False) -> None:
    """Refuses a save that would not fit, estimated from the size of another checkpoint.

    Args:
        like: The other checkpoint; by default the last one in `out_dir`.
        with_model: Whether `model/` is also to be written.
    """
    size = _last_size([like] if like else list_checkpoints(out_dir), with_model=with_model)
    if size is None:
        return
    needed = int(size * MARGIN)
    free = free_bytes(out_dir)
    if free < needed:
        raise DataError(
            f"no checkpoint was written: {out_dir} has {gigabytes(free)} free, and one needs "
            f"{gigabytes(needed)} ({MARGIN} times the last one). {remedy(out_dir)}"
        )


def _last_size(checkpoints: list[Checkpoint], *, with_model: bool) -> int | None:
    """Size in bytes of the newest readable checkpoint, with or without `model/`.

    If it has no `model/`, that is estimated as float32 weights.
    """
    for saved in reversed(checkpoints):
        try:
            files = manifest_of(saved).files
        except CheckpointError:
            continue
        model = sum(own.bytes for file, own in files.items() if file.startswith("model/"))
        rest = sum(own.bytes for own in files.values()) - model
        return rest + (model or 4 * _weights(saved)) if with_model else rest
    return None


def _weights(saved: Checkpoint) -> int:
    """The number of weights of a checkpoint's model; 0 if it cannot be read."""
    try:
        shapes = json.loads((saved.folder / STATE).read_text())["parameters"]
    except (OSError, ValueError, KeyError):
        return 0
    return sum(math.prod(shape) for shape in shapes.values())


def explain_full_disk(error: Exception, out_dir: Path) -> Exception:
    """Returns the error itself, or for a full disk a DataError that explains what to do."""
    if not is_full(error):
        return error
    free = gigabytes(free_bytes(out_dir))
    return DataError(
        f"the disk of {out_dir} is full or its quota used up ({error}; {free} free): the "
        f"checkpoint was not completed and its parts were removed. {remedy(out_dir)}"
    )


def remedy(out_dir: Path) -> str:
    """Describes what the user can do about a full disk."""
    saved, _ = newest_whole(list_checkpoints(out_dir), ALONE)
    last = f"{saved.folder.name} is intact" if saved else "There is no intact checkpoint yet"
    return (
        f"{last}. Free some space (or lower keep_last_checkpoints), then resume with "
        "resume_from_checkpoint_dir=latest"
    )


class Retention:
    """Deletes the old checkpoints of a run (rank 0).

    A checkpoint that this process did not write is read and verified once; after that, only the
    sizes and modification times of its files are compared.
    """

    def __init__(self, out_dir: Path, config: RunConfig) -> None:
        self._out_dir = out_dir
        self._config = config
        self._verified: dict[Path, tuple[Stamps, bool]] = {}
        self._resumed_from: Path | None = None

    def protect(self, resumed_from: Checkpoint) -> None:
        """Keeps the checkpoint that the run resumed from, for as long as this process runs."""
        self._resumed_from = resumed_from.folder.resolve()

    def prune(self, written: Checkpoint) -> None:
        """Deletes the checkpoints that no rule keeps; a failed deletion only logs a warning.

        Args:
            written: The checkpoint that was just committed, and so is intact. Those of later steps
                do not belong to this run's past, and are left alone.
        """
        self._verified[written.folder] = (_stamps(written.folder), True)
        past = [
            checkpoint
            for checkpoint in list_checkpoints(self._out_dir)
            if checkpoint.step <= written.step
        ]
        kept = to_keep(past, self._config, self._is_whole)
        for old in past:
            if old not in kept and old.folder.resolve() != self._resumed_from:
                _delete(old)

    def best(self) -> Checkpoint | None:
        """The best intact checkpoint by `keep_best_by`, if there is one."""
        return best_of(list_checkpoints(self._out_dir), self._config.keep_best_by, self._is_whole)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            stamps = _stamps(checkpoint.folder)
            known = self._verified.get(checkpoint.folder)
            if known is not None and known[0] == stamps:
                return known[1]
            faults = problems(checkpoint, ALONE)
        except OSError as error:  # it is being deleted or changed concurrently
            logger.warning("%s could not be verified: %s", checkpoint.folder, error)
            return False
        if faults:
            logger.warning(
                "%s is damaged and does not count among keep_last_checkpoints:\n  %s",
                checkpoint.folder,
                "\n  ".join(faults),
            )
        self._verified[checkpoint.folder] = (stamps, not faults)
        return not faults


def _stamps(folder: Path) -> Stamps:
    files = [(path, path.lstat()) for path in folder.rglob("*")]
    return sorted((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files)


def _delete(checkpoint: Checkpoint) -> None:
    folder = checkpoint.folder
    try:
        # Renamed first, so that an interrupted deletion leaves no damaged checkpoint in the list.
        doomed = folder.with_name(f"tmp-{folder.name}-deleted")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", folder, error)


def to_keep(
    checkpoints: list[Checkpoint], config: RunConfig, is_whole: Callable[[Checkpoint], bool]
) -> set[Checkpoint]:
    """Selects the checkpoints of a run that are kept.

    Args:
        checkpoints: Oldest first.
        is_whole: Whether a checkpoint is intact; called for as few as possible, because it may
            have to read them.

    Returns:
        The last intact checkpoints, all that are newer, and those that the other keys keep.
    """
    if config.keep_last_checkpoints == 0:
        return set(checkpoints)
    whole = filter(is_whole, reversed(checkpoints))
    last = list(islice(whole, config.keep_last_checkpoints))
    oldest = last[-1].step if len(last) == config.keep_last_checkpoints else 0
    kept = {checkpoint for checkpoint in checkpoints if checkpoint.step >= oldest}
    every = config.keep_every_checkpoint_steps
    kept |= {checkpoint for checkpoint in checkpoints if every and checkpoint.step % every == 0}
    kept |= {checkpoint for checkpoint in checkpoints if (checkpoint.folder / KEEP).exists()}
    best = best_of(checkpoints, config.keep_best_by, is_whole)
    return kept if best is None else kept | {best}


def best_of(
    checkpoints: list[Checkpoint], name: str | None, is_whole: Callable[[Checkpoint], bool]
) -> Checkpoint | None:
    """Finds the intact checkpoint with the best value of a metric; on a tie, the first.

    Returns None if no checkpoint has a finite value of it.
    """
    measured = [(value, saved) for saved in checkpoints for value in _cost(saved, name)]
    ranked = sorted(measured, key=lambda pair: pair[0])
    return next((saved for _, saved in ranked if is_whole(saved)), None)


def _cost(saved: Checkpoint, name: str | None) -> list[float]:
    """A metric of the evaluation at a checkpoint's step, negated if higher values are better."""
    try:
        metrics = json.loads((saved.folder / STATE).read_text())["evaluation"]
        values = [
            -float(metric["value"]) if metric["better"] == "max" else float(metric["value"])
            for metric in metrics
            if metric["name"] == name
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [value for value in values if math.isfinite(value)]


def check_metric(name: str | None, metrics: list[Metric]) -> None:
    """Refuses a `keep_best_by` that the evaluation does not have, or that has no direction."""
    names = sorted(metric.name for metric in metrics if metric.better is not None)
    if name is not None and name not in names:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such metric; expected one of "
            f"{', '.join(names) or 'none (there is no held-out file)'}"
        )

"""Writes checkpoints, synchronously or in a thread; `retention` deletes old ones.

In an asynchronous save (`async_save`), rank 0 copies weights and optimizer to main memory (under
FSDP2 and ZeRO every rank its part), and a thread writes the copy while training continues. Only one
save is in progress at a time. Once a checkpoint is complete, another thread of each rank uploads it
to the bucket of a run that has one.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bsmeta.config.saved_runs import format_yaml
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import exports_model
from bsmeta.core.errors import CheckpointError
from bsmeta.core.permissions import follow_umask
from bsmeta.core.progress import report_opaque_work
from bsmeta.models.manifest import write_model_manifest
from bsmeta.models.pretrained import record_tokenizer
from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.checkpoints.checkpoint import Checkpoint, list_faults
from bsmeta.training.checkpoints.disk_space import check_room, explain_full_disk, measure_checkpoint
from bsmeta.training.checkpoints.rng import capture_rng, write_rng
from bsmeta.training.engines.engine import Engine, Snapshot
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.retention import Retention
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.task import Exports, Task

# Seconds before each further attempt at a save during which the run folder is deleted. Deleting a
# large folder takes a while, and also deletes files that are written to it meanwhile.
_RETRY_PAUSES_S = (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class _Contents:
    """Contents of a checkpoint that rank 0 writes, besides the state of the engine.

    Attributes:
        step: The step after which it is saved.
        rng_states: States of the random number generators, by rank.
        trainer_state: Content of `trainer_state.json`.
        data_state: Content of `data_state.json`.
    """

    step: int
    rng_states: list[dict[str, Any]]
    trainer_state: dict[str, Any]
    data_state: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint.

    Attributes:
        seconds: Time to write it.
        loop_seconds: Time that the loop waited for it.
    """

    checkpoint: Checkpoint
    seconds: float
    loop_seconds: float


class Saver:
    """Writes the checkpoints of a run. All ranks call `save` and `finish` together.

    Attributes:
        retention: Deletes old checkpoints after each save (rank 0).
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        engine: Engine,
        run_folder: RunFolder,
        processes: Processes,
    ) -> None:
        self._config = config
        self._task = task
        self._engine = engine
        self._run_folder = run_folder
        self._processes = processes
        self._store = run_folder.store

        self.retention = Retention(
            run_folder.path,
            keep_last=config.keep_last_checkpoints,
            keep_every=config.keep_every_checkpoint_steps,
            keep_best_by=config.keep_best_by,
            store=self._store,
        )

        # Its thread is not a daemon: a run that fails for another reason completes the checkpoint.
        self._writer = ThreadPoolExecutor(1, "checkpoint writer")
        self._saving: Future[None] | None = None  # the last asynchronous save

        self._uploader = ThreadPoolExecutor(1, "checkpoint uploader")
        self._uploading: Future[None] | None = None  # the last upload to a bucket
        self._uploading_processes = processes
        if self._store.uploads and processes.size > 1:
            self._uploading_processes = processes.with_separate_group()
        self._finished: queue.SimpleQueue[Saved] = queue.SimpleQueue()

    def save(self, step: int, state: dict[str, Any], data: dict[str, Any]) -> None:
        """Saves the state of engine and generators, and the given states of trainer and data.

        Args:
            step: The step after which the state is saved.
            state: State of the trainer, the content of `trainer_state.json`.
            data: State of the data, the content of `data_state.json`.

        Raises:
            DataError: If there is not enough disk space; the previous checkpoint is kept.
        """
        began = time.perf_counter()
        self.finish()

        def prepare() -> None:
            self._run_folder.rebuild_if_deleted()
            check_room(
                self._run_folder.path,
                with_model=self._includes_model(step),
                export_dtype=self._config.export_dtype,
            )

        self._processes.on_leaders(prepare)
        contents = self._collect_contents(step, state, data)
        write = partial(self._write, contents, began)

        if self._config.async_save:
            copy = self._engine.take_snapshot(with_weights=self._includes_model(step))
            if copy is not None:
                if self._processes.leaders and copy.processes.size > 1:
                    copy = self._adapt_to_folders(copy, step)
                write = partial(write, loop_seconds=time.perf_counter() - began)
                self._saving = self._writer.submit(self._write_with_retries, step, copy, write)
        else:
            self._write_with_retries(step, self._live_state(), write)

        if self._store.uploads:
            loop_seconds = time.perf_counter() - began
            self._uploading = self._uploader.submit(self._upload, step, began, loop_seconds)

    def _adapt_to_folders(self, copy: Snapshot, step: int) -> Snapshot:
        """Adapts a copy to ranks that do not share one run folder. All ranks call it.

        Rank 0 cannot read the weights of `model/` from files of other machines, so they are
        gathered now.
        """
        processes = replace(copy.processes, leaders=self._processes.leaders)
        weights = self._engine.gather_weights() if self._includes_model(step) else {}
        return replace(copy, processes=processes, read_weights=lambda _: weights)

    def _collect_contents(
        self, step: int, trainer_state: dict[str, Any], data_state: dict[str, Any]
    ) -> _Contents:
        """Adds the generator states of all ranks to the given states. All ranks call it."""
        rng_states = self._processes.gather(capture_rng(self._processes.device))
        return _Contents(step, rng_states, trainer_state, data_state)

    def _live_state(self) -> Snapshot:
        """Returns the state of the engine itself, for a synchronous save."""
        return Snapshot(self._processes, self._engine.save, lambda _: self._engine.gather_weights())

    def _includes_model(self, step: int) -> bool:
        """Whether the checkpoint of a step contains `model/`."""
        return isinstance(self._task, Exports) and exports_model(self._config.export_steps, step)

    def _write_with_retries(
        self, step: int, source: Snapshot, write: Callable[[Snapshot], None]
    ) -> None:
        """Calls `write`, and retries after a pause if the run folder is deleted meanwhile.

        Several ranks do not retry, because they do not notice the deletion at the same point.
        """
        final = self._run_folder.path / checkpoint.name_folder(step)
        folder = checkpoint.locate_temporary_folder(self._run_folder.path, step)
        pauses = _RETRY_PAUSES_S if source.processes.size == 1 else ()

        for pause in (*pauses, None):
            try:
                write(source)
                return
            except Exception as error:
                may_retry = _is_about_deleted_folder(error, folder) and not final.is_dir()
                if pause is not None and may_retry:
                    time.sleep(pause)
                    self._run_folder.rebuild_if_deleted()
                    continue

                if not self._run_folder.is_replaced():
                    shutil.rmtree(folder, ignore_errors=True)
                explanation = explain_full_disk(error, self._run_folder.path)
                if explanation is error:
                    raise  # `raise error from error` would make the error its own cause
                raise explanation from error

    def _write(
        self,
        contents: _Contents,
        began: float,
        source: Snapshot,
        *,
        loop_seconds: float | None = None,
    ) -> None:
        """Writes a checkpoint, and records it unless it is yet to be uploaded.

        Args:
            began: When the save began, by `time.perf_counter`.
            loop_seconds: Time that the loop waited; None: until the save is complete.
        """
        committed = self._write_checkpoint(self._run_folder.path, contents, source)

        def record() -> None:
            self._run_folder.write_status("running", contents.step, None)
            if not self._store.uploads:
                self._record(committed, began, loop_seconds)

        source.processes.on_main(record)

    def _record(self, committed: Checkpoint, began: float, loop_seconds: float | None) -> None:
        """Deletes old checkpoints, and records the time that a new one took (rank 0)."""
        self.retention.prune(committed)
        seconds = time.perf_counter() - began
        waited = seconds if loop_seconds is None else loop_seconds
        self._finished.put(Saved(committed, seconds, waited))

    def _upload(self, step: int, began: float, loop_seconds: float) -> None:
        """Waits until a checkpoint is complete, uploads it, and records it.

        A thread of each rank calls it. An error of one rank is raised on every rank.
        """
        processes = self._uploading_processes
        saving = self._saving
        processes.run_on_all(lambda: None if saving is None else saving.result())

        committed = Checkpoint(self._run_folder.path / checkpoint.name_folder(step), step)
        self._store.publish(committed, processes)
        processes.on_main(lambda: self._record(committed, began, loop_seconds))

    def _write_checkpoint(self, out_dir: Path, contents: _Contents, source: Snapshot) -> Checkpoint:
        """Writes and commits a checkpoint in a folder; all of the source's processes call it."""
        writer = checkpoint.Writer(out_dir, contents.step, source.processes)
        source.write(writer.folder / "state")
        weights: dict[str, torch.Tensor] | None = None

        def read_weights() -> None:
            nonlocal weights
            weights = source.read_weights(writer.folder / "state")

        if self._includes_model(contents.step):
            source.processes.run_on_all(read_weights)  # rank 0 may fail alone

        def write_contents() -> None:
            for rank, states in enumerate(contents.rng_states):
                write_rng(states, writer.folder, rank)
            if weights is not None:
                self._write_model(weights, writer.folder / "model")
            writer.write_json(checkpoint.DATA_STATE_FILE, contents.data_state)
            writer.write_json(checkpoint.TRAINER_STATE_FILE, contents.trainer_state)
            (writer.folder / checkpoint.CONFIG_FILE).write_text(format_yaml(self._config))

        source.processes.on_main(write_contents)
        return writer.commit()

    @contextmanager
    def rehearse(self, state: dict[str, Any], data: dict[str, Any]) -> Iterator[Checkpoint]:
        """Context with a checkpoint of step 0, written like the first save and removed at the end.

        All ranks enter it, and load the checkpoint together. Failures that would otherwise end the
        run at its first save, hours later, end it here: a folder that not all ranks can write, a
        full disk, a model that cannot be written or read.

        Raises:
            CheckpointError: If a file reads back differently from what was written.
        """
        folder = self._run_folder.path / checkpoint.REHEARSAL
        try:
            self._processes.on_leaders(folder.mkdir)
            contents = self._collect_contents(0, state, data)
            saved = self._write_checkpoint(folder, contents, self._live_state())
            self._processes.on_leaders(lambda: self._store.check_room(measure_checkpoint(saved)))
            self._store.exchange(saved, self._processes)

            faults = list_faults(saved, self._processes)
            if faults:
                raise CheckpointError("a save before the first step: " + "\n".join(faults))
            yield saved
            self._processes.barrier()  # every rank has read it
        finally:
            if self._processes.is_leader:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def has_failed(self) -> bool:
        """Whether a save in a thread has failed on this rank; `finish` raises rank 0's error."""
        saves = (self._saving, self._uploading)
        return any(
            saving is not None and saving.done() and saving.exception() is not None
            for saving in saves
        )

    def finish(self) -> None:
        """Waits for the save and the upload in progress; raises an error of rank 0 on every rank.

        A failed upload is an error of every rank.

        Raises:
            TrainingError: If another run has claimed the bucket.
            DataError: If the disk is full, or the server of the bucket keeps failing.
        """
        self.settle()

        def raise_error() -> None:
            for saving in (self._saving, self._uploading):
                if saving is not None:
                    saving.result()

        self._processes.on_main(raise_error)

    def settle(self) -> None:
        """Waits for the save and the upload in progress on this rank, and ignores errors."""
        if self._saving is not None:
            wait([self._saving])
        if self._uploading is not None:
            wait([self._uploading])

    def take_finished(self) -> list[Saved]:
        """Returns the saves that were committed since the last call (rank 0)."""
        return [self._finished.get() for _ in range(self._finished.qsize())]

    def export(self, folder: Path) -> None:
        """Replaces `folder` with the exported model and its manifest. All ranks call it.

        The model is the one of `find_exported_checkpoint`, or else the current one;
        `Task.finalize_export` may replace it.
        """
        if not isinstance(self._task, Exports):
            return

        temporary = folder.with_name(f".tmp-{folder.name}")
        exported = self.find_exported_checkpoint()
        weights = self._engine.gather_weights() if exported is None else {}

        def replace_folder() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            if exported is None:
                self._write_model(weights, temporary)
            else:
                shutil.copytree(exported.folder / "model", temporary)

            with report_opaque_work():
                self._task.finalize_export(temporary)
            record_tokenizer(temporary)
            write_model_manifest(temporary)
            follow_umask(temporary)

            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)

        self._processes.on_main(replace_folder)

    def find_exported_checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint whose model `export_best` exports; None: the last model.

        All ranks call it.
        """
        if not self._config.export_best:
            return None

        best = self._processes.on_main(self.retention.find_best)
        if best is None:
            return None
        copy = Checkpoint(self._run_folder.path / best.folder.name, best.step)
        self._store.fetch(copy, self._processes, "model")
        return copy

    def _write_model(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Writes the model for `from_pretrained` (rank 0)."""
        if isinstance(self._task, Exports):
            with report_opaque_work():
                self._task.export(self._engine.unwrapped_model, weights, folder)
            record_tokenizer(folder)
            follow_umask(folder)


def _is_about_deleted_folder(error: Exception, folder: Path) -> bool:
    """Whether a save failed because its folder has been deleted, or is being deleted.

    Torch's and safetensors' writers have their own errors for a missing folder. During a deletion,
    only some entries of the folder may be missing.
    """
    return (
        isinstance(error, FileNotFoundError)
        or os.strerror(errno.ENOENT) in str(error)
        or not all((folder / part).is_dir() for part in checkpoint.LOADED_FOLDERS)
    )

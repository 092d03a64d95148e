"""Saves: what goes into a checkpoint, and whether it is written synchronously or asynchronously.

In an asynchronous save (`async_save`), rank 0 copies weights and optimizer to main memory (under
FSDP2 every rank its shards), and a thread writes the copy while training continues. Only one save
is in progress at a time. Under DeepSpeed, the ranks write their own partitions together, so every
save is synchronous. Every rank adds the states of its random number generators.
"""

from __future__ import annotations

import queue
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bsmeta.config.compose import to_yaml
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import exports_model
from bsmeta.core.errors import CheckpointError
from bsmeta.core.progress import opaque_work
from bsmeta.models.manifest import record_tokenizer, write_model_manifest
from bsmeta.training import checkpoint
from bsmeta.training.distributed import Processes
from bsmeta.training.engines import Engine, PlainEngine
from bsmeta.training.retention import Retention, check_room, explain_full_disk
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import Completes, Exports, Task

# Before each further attempt at a save during which the run folder is deleted: the deletion of a
# large folder takes a while, and takes along what is written into it meanwhile.
_PAUSES = (0.1, 1.0, 10.0)


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

"""Rows of a table on disk, and the steps of one rank over them, from the start or a saved state.

A store is an Arrow folder of `datasets`, built once per machine and memory-mapped by every process.
It also has what determines the rows: the content hash of the source (`file_hashes`) and every
setting that affects a row. A store built with different settings is rejected, naming the setting
that differs. Arrow files have no checksums, so the hashes of all files are stored, too; the first
process of each machine compares them when it opens the store (16 GB per CPU second).

Which rows make up a step depends only on (seed, epoch), not on the processes: step t has the same
rows for every world size, number of loader workers and split into micro-batches, and every row is
in exactly one step of an epoch. The rows of a step are divided among processes and micro-batches
within the step. The state is the number of steps done.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from bsmeta.core.errors import ConfigurationError, DataError, UserError, differing
from bsmeta.core.files import building, file_hash, write_json, writing
from bsmeta.core.progress import exclusively, opaque_work, report_progress
from bsmeta.data import derive, permutation
from bsmeta.data.batch import MicroBatch, StepData, set_up_worker

if TYPE_CHECKING:
    import datasets

KEY = "key.json"
HASHES = "hashes.json"

Collate = Callable[[np.ndarray, int], MicroBatch]
"""Builds a micro-batch from some rows (at least one) in an epoch."""


def open_store(
    folder: Path,
    key: Mapping[str, Any],
    build: Callable[[], datasets.Dataset | Iterable[pa.RecordBatch]],
    *,
    overwrite: bool = False,
    remedy: str = "delete the folder to build it again",
) -> datasets.Dataset:
    """The rows of a store, which is built first if there is none.

    Every process of a run calls it: one process per machine builds while the others wait.

    Args:
        folder: Where the store is, or will be.
        key: What determines the rows, JSON-serializable: the source's content hash and every
            setting.
        build: Builds the rows: a dataset (`Dataset.map(num_proc=...)` inside), or batches of rows,
            the first not empty, which are written as they come.
        overwrite: Replace a store that was built from another source or with other settings.
        remedy: How to do so, for the message that refuses it.

    Raises:
        ConfigurationError: If the store was built from another source or with other settings.
        DataError: If the store is damaged, or cannot be written.
    """
    from datasets import load_from_disk

    now = json.loads(json.dumps(key))  # as it reads back: tuples are lists
    with writing(folder, f"the rows of {folder}"):
        if overwrite and folder.exists() and _read_key(folder)["key"] != now:
            shutil.rmtree(folder)  # processes that have mapped its files keep them
        if not folder.exists():
            with opaque_work():
                _write(folder, now, build())
        saved = _read_key(folder)
    differences = "\n".join(differing(saved["key"], now, "in the store"))
    if differences:
        raise ConfigurationError(
            f"{folder} was built with other settings; restore them, or {remedy}:\n{differences}"
        )
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _check_files(folder, saved["files"])
    try:
        rows = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, str(error)) from error
    if len(rows) != saved["rows"]:
        raise _damaged(folder, f"{len(rows):,} rows instead of {saved['rows']:,}")
    return rows


def saved_key(folder: Path) -> dict[str, Any]:
    """What a store was built from, as given to `open_store`; empty if there is no store."""
    found: dict[str, Any] = _read_key(folder)["key"] if folder.exists() else {}
    return found


def _write(
    folder: Path, key: dict[str, Any], rows: datasets.Dataset | Iterable[pa.RecordBatch]
) -> None:
    """Writes a store; an interrupted build leaves none."""
    from datasets import Dataset

    with building(folder) as part:
        if isinstance(rows, Dataset):
            rows.save_to_disk(str(part))
            count = len(rows)
        else:
            count = _write_batches(iter(rows), part)
        files = {path.name: file_hash(path) for path in sorted(part.iterdir())}
        (part / KEY).write_text(json.dumps({"key": key, "rows": count, "files": files}, indent=1))


def _write_batches(batches: Iterator[pa.RecordBatch], folder: Path) -> int:
    """Writes batches of rows as they come, in the form of a saved dataset; returns the rows."""
    from datasets import Dataset, Features

    first = next(batches)
    features = Features.from_arrow_schema(first.schema)
    Dataset.from_dict(first.to_pydict(), features).save_to_disk(str(folder))
    (file,) = folder.glob("*.arrow")  # of the first batch, replaced by one with all of them
    count = 0
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_stream(opened, first.schema) as stream:
        for batch in chain([first], batches):
            stream.write(batch)
            count += batch.num_rows
    return count


def _check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuses a store with a file that is missing or was changed after it was built."""
    for name, expected in hashes.items():
        try:
            found = file_hash(folder / name)
        except OSError as error:
            raise _damaged(folder, str(error)) from error
        if found != expected:
            raise _damaged(folder, f"{name}: other bytes than were written")


def _read_key(folder: Path) -> dict[str, Any]:
    try:
        saved = json.loads((folder / KEY).read_text())
        return {"key": saved["key"], "rows": int(saved["rows"]), "files": dict(saved["files"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"{KEY}: {error}") from error


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete the folder to build it again")


def file_hashes(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The xxh3 of each file's content, in hexadecimal.

    A file is read again only if its size, its time of modification or its inode has changed.

    Args:
        folder: Where the hashes are kept; created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / HASHES
    found: dict[Path, str] = {}
    with exclusively(f"{store}.lock", "hashing the data sets"):
        known: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError):  # otherwise, all are computed again
            known = json.loads(store.read_text())
        for file in files:
            status = file.stat()
            state = [status.st_size, status.st_mtime_ns, status.st_ino]
            name = str(file.resolve())
            if known.get(name, {}).get("state") != state:
                known[name] = {"state": state, "hash": file_hash(file)}
                report_progress()
            found[file] = known[name]["hash"]
        write_json(store, known)
    return found


@dataclass(frozen=True)
class EpochOrder(Sequence[np.ndarray]):
    """The rows of each step of an epoch.

    There is no array for each step until it is requested: a large table has millions of steps.

    Attributes:
        rows: The rows in the order of the epoch, int64[number of rows].
        bounds: Where the parts of `rows` begin, and where the last one ends, int64[steps + 1].
        turn: The part that each step has, int64[steps].
    """

    rows: np.ndarray
    bounds: np.ndarray
    turn: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return len(self.turn)

    def __getitem__(self, step: Any) -> Any:
        part = self.turn[step]
        return self.rows[self.bounds[part] : self.bounds[part + 1]]


class StepOrder(ABC):
    """Cuts every epoch into steps.

    Attributes:
        steps_per_epoch: Number of steps, the same for every epoch.
        shares: The number that processes x accumulation must divide; None: no constraint.
    """

    steps_per_epoch: int
    shares: int | None = None

    @abstractmethod
    def epoch(self, epoch: int) -> EpochOrder:
        """The steps of an epoch (counted from 0)."""


class FixedSize(StepOrder):
    """Steps of `batch_size` rows; the last step of an epoch has the remaining rows.

    Raises:
        ConfigurationError: If there are no rows, or the batch size is not positive.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int) -> None:
        if num_rows < 1 or batch_size < 1:
            raise ConfigurationError(
                f"{num_rows} rows in steps of {batch_size}: both must be at least 1"
            )
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._seed = seed
        self._bounds = np.append(np.arange(0, num_rows, batch_size), num_rows)
        self.steps_per_epoch = len(self._bounds) - 1

    def epoch(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._shuffled(epoch), self._bounds, range(self.steps_per_epoch))

    def _shuffled(self, epoch: int) -> np.ndarray:
        return permutation(self._num_rows, derive(self._seed, "rows", epoch))


class SimilarLengths(FixedSize):
    """Steps of `batch_size` rows of similar length, which need little padding.

    An epoch's rows are shuffled; those of every `SORTED_STEPS` steps are sorted by length and cut
    into steps, which are shuffled. One step of an epoch has the remaining rows.

    Args:
        lengths: Tokens of each row, int[number of rows].
    """

    SORTED_STEPS = 50

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self._lengths = np.asarray(lengths)

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = self._shuffled(epoch)
        part = np.arange(len(shuffled)) // (self.SORTED_STEPS * self._batch_size)
        rows = shuffled[np.lexsort((self._lengths[shuffled], part))]
        turn = permutation(self.steps_per_epoch, derive(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, turn)


class TokenBudget(StepOrder):
    """Steps of rows of similar length whose padded tokens fill a budget over all processes.

    An epoch's rows are shuffled, ordered by bucket (`length // span`), from long to short, and cut
    into steps, which are shuffled. A step takes rows until its budget is full, with each row padded
    to the longest of the bucket in which the step begins. The budget is cut into `shares` equal
    parts, so that no process exceeds its part, for any number of processes that divides `shares`.
    Where a bucket ends, the step continues with the next; one step of an epoch has the remaining
    rows.

    Args:
        lengths: Tokens of each row, int[number of rows].
        budget: Padded tokens of a step over all processes.
        span: Width of a bucket, in tokens.
        shares: Parts of the budget; processes x accumulation must divide it.

    Raises:
        ConfigurationError: If a row does not fit into its part of the budget.
    """

    def __init__(self, lengths: np.ndarray, budget: int, span: int, shares: int, seed: int) -> None:
        if len(lengths) == 0:
            raise ConfigurationError("a token budget for no rows: the table is empty")
        self.shares = shares
        self._seed = seed
        buckets = -(np.asarray(lengths) // span)
        numbers, place, counts = np.unique(buckets, return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers), np.int64)
        np.maximum.at(longest, place, lengths)
        if longest[0] * shares > budget:
            raise ConfigurationError(
                f"the longest example has {longest[0]:,} tokens and does not fit into its part "
                f"of the budget: batch_max_length={budget:,} over batch_shares={shares} leaves "
                f"{budget // shares:,} tokens; expected batch_max_length of at least "
                f"{longest[0] * shares:,}, fewer shares, or shorter examples"
            )
        self._place = place.astype(np.int32)  # the number of each row's bucket, the longest first
        sizes = shares * (budget // shares // np.maximum(longest, 1))
        self._bounds = np.minimum(_bounds(counts.tolist(), sizes.tolist()), len(lengths))
        self.steps_per_epoch = len(self._bounds) - 1

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = permutation(len(self._place), derive(self._seed, "rows", epoch))
        rows = shuffled[np.argsort(self._place[shuffled], kind="stable")]
        turn = permutation(self.steps_per_epoch, derive(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, turn)


def _bounds(counts: list[int], sizes: list[int]) -> np.ndarray:
    """Where steps begin in rows that are ordered by bucket: int64[steps + 1].

    Args:
        sizes: Rows of a step that begins in each bucket.
    """
    steps: list[np.ndarray] = []
    taken = 0  # rows of this bucket that the last step before it has
    for count, size in zip(counts, sizes, strict=True):
        remaining = count - taken
        own = max(-(-remaining // size), 0)
        steps.append(np.full(own, size))
        taken = own * size - remaining
    return np.concatenate([[0], np.cumsum(np.concatenate(steps))])


class TableStream:
    """This rank's steps in the order of the run; endless, epoch after epoch.

    Args:
        collate: Builds a micro-batch; called in the loader workers.
        accumulation: Micro-batches per step, the same for each process and step.
        num_workers: Number of loader processes; 0 does all work in this process.
        fingerprint: What must be equal for a saved state to be usable.
        state: `{"steps": n, "fingerprint": ...}` as saved with a checkpoint; None starts from the
            beginning.

    Raises:
        ConfigurationError: If processes x accumulation do not divide the order's shares, or the
            state belongs to other rows.
    """

    def __init__(
        self,
        order: StepOrder,
        collate: Collate,
        *,
        rank: int,
        world_size: int,
        accumulation: int,
        num_workers: int,
        fingerprint: dict[str, Any],
        state: dict[str, Any] | None = None,
    ) -> None:
        parts = world_size * accumulation
        if order.shares is not None and order.shares % parts:
            raise ConfigurationError(
                f"batch_shares={order.shares} is not a multiple of processes x "
                f"gradient_accumulation_steps = {world_size} x {accumulation} = {parts}"
            )
        saved = fingerprint if state is None else state["fingerprint"]
        changed = "\n".join(differing(saved, fingerprint, "in the checkpoint"))
        if changed:
            raise ConfigurationError(
                "the checkpoint is of a run on other rows, which cannot be continued exactly; "
                f"restore these, or start a new run:\n{changed}"
            )
        self.fingerprint = fingerprint
        self._steps = _Steps(order, collate, rank, world_size, accumulation)
        self._num_workers = num_workers
        self._done = 0 if state is None else int(state["steps"])

    @property
    def state(self) -> dict[str, Any]:
        """The state before the first step."""
        return {"steps": self._done}

    def __iter__(self) -> Iterator[StepData]:
        """The steps from the state on.

        Raises:
            UserError: Raised while building a batch, in any process.
        """
        loader = DataLoader(
            self._steps,
            sampler=itertools.count(self._done),
            batch_size=None,
            num_workers=self._num_workers,
            worker_init_fn=set_up_worker,
            generator=torch.Generator(),  # the global generator is used by dropout
        )
        for number, batches in enumerate(loader, start=self._done + 1):
            if isinstance(batches, UserError):
                raise batches
            yield StepData(batches, {"steps": number})

    @staticmethod
    def merge(states: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of the run from those of all ranks, which are at the same step."""
        assert all(state == states[0] for state in states), f"ranks disagree: {states}"
        return states[0]


class _Steps(Dataset):
    """Step t of the run as this rank's micro-batches."""

    def __init__(
        self, order: StepOrder, collate: Collate, rank: int, world_size: int, accumulation: int
    ) -> None:
        self._order = order
        self._collate = collate
        self._parts = world_size * accumulation
        self._own = range(rank, self._parts, world_size)
        self._epoch: tuple[int, EpochOrder] | None = None

    def __getitem__(self, step: int) -> list[MicroBatch] | UserError:
        epoch, index = divmod(step, self._order.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order.epoch(epoch))
        rows = self._epoch[1][index]
        dealt = np.array_split(rows, self._parts)
        try:
            return [self._micro_batch(dealt[part], rows, epoch) for part in self._own]
        except UserError as error:
            return error  # raised in the trainer's process, without a worker's stack trace

    def _micro_batch(self, own: np.ndarray, rows: np.ndarray, epoch: int) -> MicroBatch:
        if len(own):
            return self._collate(own, epoch)
        # Fewer rows than micro-batches: every process must still take part in the step.
        filler = self._collate(rows[:1], epoch)
        size = filler.tokens + filler.padding
        counts = dict.fromkeys(filler.counts, 0.0)
        return replace(filler, weight=0.0, tokens=0, padding=size, documents=[], counts=counts)

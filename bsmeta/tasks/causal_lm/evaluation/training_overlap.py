"""Finds the documents of a held-out file that are in the training shards of a run.

Training keeps the documents of the run's own held-out file out (`bsmeta.data.stream.held_out`), so
nothing is read if that file is evaluated. Any other file is compared with the run's training shards
on this machine, document by document, by the same definition (`same_document`). If the run started
from the model of an earlier run, the same holds for that run (`earlier_runs`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import REMOTE_SCHEMES, DataConfig, resolve_in_dataset
from bsmeta.core.errors import DataError, UserError
from bsmeta.core.progress import Show, show_progress_bar
from bsmeta.core.secrets import redact
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import measure_file
from bsmeta.data.io.shards import (
    Shard,
    add_sample_hashes,
    describe_position,
    find_validation_path,
    fingerprint_shards,
)
from bsmeta.data.stream.held_out import HeldOutFingerprints, identify_held_out, read_held_out
from bsmeta.data.stream.same_document import iterate_fingerprints
from bsmeta.data.stream.shard_fingerprints import ShardFingerprints
from bsmeta.metadata.document import Document
from bsmeta.tasks.causal_lm.evaluation.earlier_runs import TrainingRun, follow_initial_models
from bsmeta.tasks.causal_lm.evaluation.training_shards import (
    UNREADABLE,
    LocalShard,
    TrainingShards,
    list_training_shards,
    read_saved_fingerprint,
)
from bsmeta.tasks.checkpoints import Location

BEYOND_LIMIT = "beyond overlap_check_gb"
DAMAGED = "damaged, compared in part"
UNREAD_RUN = "initial model whose run cannot be read"
"""Reasons why a training shard was not compared, beside those of `training_shards`."""


class Position(NamedTuple):
    """The position of a document in a shard.

    Attributes:
        number: The number of its line, from 0.
    """

    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, {describe_position(self.path, self.number)}"


class Overlap(NamedTuple):
    """The part of a document that is the same in a training document.

    Attributes:
        part: `text` or `url`.
        position: The position of the training document.
    """

    part: str
    position: Position


@dataclass
class Gap:
    """Shards or lines that were not compared.

    Attributes:
        count: The number of them.
        first: The name of the first.
    """

    count: int
    first: str


@dataclass
class TrainingOverlap:
    """The documents of a held-out file that are in training shards of a run; picklable.

    Attributes:
        checkpoint: The checkpoint of the run, as the user named it.
        compared: Number of shards of which all documents were compared.
        gaps: The other shards, by the reason.
        unread_lines: The lines of the shards that cannot be read; None if there are none.
        positions: The first training document with a fingerprint, by fingerprint.
    """

    checkpoint: str
    compared: int = 0
    gaps: dict[str, Gap] = field(default_factory=dict)
    unread_lines: Gap | None = None
    positions: dict[int, Position] = field(default_factory=dict)

    @property
    def num_shards(self) -> int:
        """Number of training shards of the run, as far as they are known."""
        return self.compared + sum(gap.count for gap in self.gaps.values())

    def find(self, document: Document) -> Overlap | None:
        """Returns the part that is the same in a training document; None if there is none."""
        for part, value in iterate_fingerprints(document):
            position = self.positions.get(value)
            if position is not None:
                return Overlap(part, position)
        return None

    def describe(self) -> str:
        """Describes the comparison in a sentence, for reports."""
        if self.num_shards == 0:
            return "Not compared with training documents: the training shards are not known."

        sentence = f"Compared with {self.compared:,} of {self.num_shards:,} training shards"
        if self.gaps:
            reasons = [
                f"{gap.count:,} {reason} (first: {gap.first})" for reason, gap in self.gaps.items()
            ]
            sentence += f"; the others: {', '.join(reasons)}"
        if self.unread_lines is not None:
            lines = self.unread_lines
            sentence += f"; unreadable training lines: {lines.count:,} (first: {lines.first})"
        return f"{sentence}."

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison as a dict for JSON."""
        return {
            "shards": self.num_shards,
            "compared": self.compared,
            "not_compared": {
                reason: {"shards": gap.count, "first": gap.first}
                for reason, gap in self.gaps.items()
            },
            "unread_lines": 0 if self.unread_lines is None else self.unread_lines.count,
        }

    def add_gap(self, reason: str, name: str) -> None:
        """Counts a shard that was not compared."""
        gap = self.gaps.setdefault(reason, Gap(0, redact(name)))
        gap.count += 1

    def add_shard(self, shard: Shard, fingerprints: ShardFingerprints) -> None:
        """Counts a shard that was compared, and its lines that cannot be read."""
        if fingerprints.damage:
            self.add_gap(DAMAGED, shard.name)
        else:
            self.compared += 1

        num_unread = len(fingerprints.unreadable)
        if num_unread == 0:
            return
        if self.unread_lines is None:
            first = describe_position(shard.path, int(fingerprints.unreadable[0]))
            self.unread_lines = Gap(0, f"{shard.name}, {first}")
        self.unread_lines.count += num_unread


def find_training_overlap(
    data: DataConfig, location: Location, run_config: CausalLMConfig, *, limit_gb: float
) -> TrainingOverlap | None:
    """Compares the documents of the held-out file with those of the run's training shards.

    If the run started from the model of an earlier run, they are compared with the shards of that
    run, too, and so on. Each run is compared unless it kept the file out.

    Args:
        data: The data configuration of the evaluation.
        run_config: The configuration of the model's run, without changes by the evaluation.
        limit_gb: Maximum size of the shards that are compared, of all runs together, in GB.

    Returns:
        The overlap; None if each run kept the file out of training, or it is missing (an error is
        reported when it is read).

    Raises:
        DataError: If the held-out file is itself a training shard.
    """
    path = find_validation_path(data)
    if not path or not (isinstance(path, FileRef) or os.path.isfile(path)):
        return None

    chain = follow_initial_models(location, run_config)
    all_shards = [_RunShards(run, read_saved_fingerprint(run.location)) for run in chain.runs]
    compared = [shards for shards in all_shards if not shards.is_kept_out(data)]
    if not compared and chain.unread is None:
        return None
    for shards in compared:
        _refuse_training_shard(path, shards)

    overlap = TrainingOverlap(location.name)
    remaining_bytes = int(limit_gb * 1e9)
    for shards in compared:
        for name, reason in shards.listed.absent.items():
            overlap.add_gap(reason, name)
        selected = _select_within_limit(shards.listed.local, remaining_bytes, overlap)
        remaining_bytes -= sum(local.shard.size for local in selected)
        if selected:
            cache = Cache(data.cache_dir)
            evaluated = ShardFingerprints.load(path, cache, data.columns).values
            held_out = _read_own_held_out(shards.data, shards.saved)
            _compare_with_shards(np.unique(evaluated), selected, held_out, cache, overlap)
    if chain.unread is not None:
        overlap.add_gap(UNREAD_RUN, chain.unread)
    return overlap


@dataclass(frozen=True)
class _RunShards:
    """The training data of a run.

    Attributes:
        saved: The fingerprint of the data in a checkpoint; {} if there is none.
    """

    run: TrainingRun
    saved: dict[str, Any]

    @property
    def data(self) -> DataConfig:
        """The data configuration of the run."""
        return self.run.config.data_config

    @cached_property
    def listed(self) -> TrainingShards:
        """The training shards of the run."""
        return list_training_shards(self.data, self.saved.get("shards", {}))

    def is_kept_out(self, data: DataConfig) -> bool:
        """Returns whether the run kept the held-out file of `data` out of training."""
        return data.columns == self.data.columns and _is_kept_out(data, self.data, self.saved)


def _is_kept_out(data: DataConfig, run_data: DataConfig, saved: Mapping[str, Any]) -> bool:
    """Whether the run kept the held-out file of `data` out of training.

    Args:
        run_data: The data configuration of the run.
        saved: The fingerprint of the data in a checkpoint, which identifies the content of the
            file; {} if there is none: then the file is the run's if it has the same path.
    """
    if saved:
        return identify_held_out(data) == saved.get("held_out")
    file, run_file = (_resolve_held_out(config) for config in (data, run_data))
    return bool(run_file) and file == run_file


def _resolve_held_out(data: DataConfig) -> str:
    """Returns the address of the held-out file, or its path without links; "" if there is none."""
    file = resolve_in_dataset(data.validation_file or "", data)
    return file if not file or file.startswith(REMOTE_SCHEMES) else os.path.realpath(file)


def _select_within_limit(
    shards: Sequence[LocalShard], limit_bytes: int, overlap: TrainingOverlap
) -> list[LocalShard]:
    """Selects shards in order, up to a total size; adds the others to the gaps of `overlap`."""
    selected = []
    remaining_bytes = limit_bytes
    for local in shards:
        if local.shard.size > remaining_bytes:
            overlap.add_gap(BEYOND_LIMIT, local.shard.name)
            continue
        remaining_bytes -= local.shard.size
        selected.append(local)
    return selected


def _read_own_held_out(
    run_data: DataConfig, saved: Mapping[str, Any]
) -> HeldOutFingerprints | None:
    """Reads the documents that the run kept out of training although they are in its shards.

    Returns:
        None if the run had no held-out file, or the file is gone, changed or unreadable. A remote
        file is not read, as a server that cannot be reached would delay the evaluation.
    """
    file = _resolve_held_out(run_data)
    if file.startswith(REMOTE_SCHEMES) or not os.path.isfile(file):
        return None
    if not _is_kept_out(run_data, run_data, saved):
        return None
    try:
        return read_held_out(run_data)
    except DataError:  # without a checkpoint, the file may have been replaced
        return None


def _compare_with_shards(
    evaluated: np.ndarray,
    shards: Sequence[LocalShard],
    held_out: HeldOutFingerprints | None,
    cache: Cache,
    overlap: TrainingOverlap,
) -> None:
    """Adds the positions of the training documents with the same fingerprints to `overlap`.

    Args:
        evaluated: uint64 [n], the fingerprints of the evaluated documents.
        held_out: Documents that the run kept out of training; None if there are none.
    """
    num_bytes_done = 0
    with show_progress_bar("training shards", sum(local.shard.size for local in shards)) as show:
        for local in shards:
            fingerprints = _load_fingerprints(local, cache, num_bytes_done, show)
            num_bytes_done += local.shard.size
            if fingerprints is None:
                overlap.add_gap(UNREADABLE, local.shard.name)
                continue

            overlap.add_shard(local.shard, fingerprints)
            path = str(local.shard.path)
            for value, number in fingerprints.find_first_lines(evaluated, held_out).items():
                overlap.positions.setdefault(value, Position(path, number))


def _load_fingerprints(
    local: LocalShard, cache: Cache, num_bytes_done: int, show: Show
) -> ShardFingerprints | None:
    """Loads the fingerprints of a shard; None if it cannot be read at all.

    Args:
        num_bytes_done: The size of the shards before it, for the progress bar.
    """

    def report(num_lines: int) -> None:
        show(num_bytes_done, f"{local.shard.name}, {num_lines:,} lines")

    try:
        return ShardFingerprints.load(local.shard.path, cache, local.columns, report)
    except (OSError, UserError):
        return None


def _refuse_training_shard(path: str | FileRef, shards: _RunShards) -> None:
    """Refuses a held-out file that is one of the training shards of a run.

    Local shards are identified by their content, shards on the Hub by name and size, objects in
    buckets by their ETag.

    Raises:
        DataError: If the held-out file was trained on.
    """
    held_out = Shard(os.path.basename(str(path)), path, measure_file(path))
    content = _identify_content(held_out)
    matching_names: list[str] = []
    for name, saved_content in shards.saved.get("shards", {}).items():
        has_same_name = os.path.basename(name) == held_out.name
        # A shard of the Hub is identified by its size alone: then the names must agree, too.
        if saved_content == content and (has_same_name or isinstance(saved_content, dict)):
            matching_names.append(name)
    for shard in (local.shard for local in shards.listed.local):
        if shard.size == held_out.size and _identify_content(shard) == content:
            matching_names.append(str(shard.path))

    if matching_names:
        run_file = shards.data.validation_file
        suggestion = f", such as validation_file={run_file}" if run_file else ""
        raise DataError(
            f"validation_file={path}: the run of checkpoint={shards.run.location.name} was "
            f"trained on it (as {matching_names[0]}); expected a file that it was not trained on"
            f"{suggestion}"
        )


def _identify_content(shard: Shard) -> Any:
    """Returns a shard's entry in the fingerprint of a run: its size, and a hash if it is local."""
    return fingerprint_shards(add_sample_hashes([shard]))[shard.name]

"""Lists the training shards of a run that can be read on this machine, and those that cannot.

A checkpoint names its shards and identifies their content, but not their folder. The configuration
of the run names the paths. So the local files of the configuration are matched with the checkpoint
by their content; a file that was changed or added since is not one of the run's shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bsmeta.config.data import DataConfig, build_source_configs, resolve_in_dataset
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.shards import (
    Shard,
    add_sample_hashes,
    list_entries,
    list_entry_files,
    list_shards,
)
from bsmeta.tasks.checkpoints import Location, iterate_saved_fingerprints

REMOTE = "remote"
MISSING = "missing"
UNREADABLE = "unreadable"
CHANGED = "missing or changed"
"""Reasons why a training shard cannot be read."""


@dataclass(frozen=True)
class LocalShard:
    """A training shard on this machine.

    Attributes:
        columns: The paths of text and metadata in its lines; {}: the default columns.
    """

    shard: Shard
    columns: Mapping[str, str]

    @property
    def content(self) -> str:
        """Identifies the content of the shard, if it has the hash of its samples."""
        return _format_content(self.shard.size, self.shard.samples_hash)


@dataclass(frozen=True)
class TrainingShards:
    """The training shards of a run.

    Attributes:
        local: The shards that can be read on this machine.
        absent: The reason why another shard cannot be read, by its name; without a checkpoint, by
            the entry of `train_file`, which may be a pattern or an address of several shards.
    """

    local: list[LocalShard]
    absent: dict[str, str]


def read_saved_fingerprint(location: Location) -> dict[str, Any]:
    """Returns the fingerprint of the data in the model's checkpoint, or else the newest of its run.

    Returns {} if there is none.
    """
    for fingerprint in iterate_saved_fingerprints(location):
        if isinstance(fingerprint.get("shards"), dict):
            return fingerprint
    return {}


def list_training_shards(data: DataConfig, saved_shards: Mapping[str, Any]) -> TrainingShards:
    """Lists the training shards of a run.

    Args:
        data: The data configuration of the run.
        saved_shards: The fingerprints of its shards by name, as in a checkpoint; {} if unknown.
    """
    local: list[LocalShard] = []
    absent: dict[str, str] = {}
    for source in build_source_configs(data).values():
        entries = _list_local_entries(source, absent)
        shards = _list_local_shards(source, entries, absent)
        if saved_shards:
            shards = _add_hashes(shards, Cache(source.cache_dir))
        local += [LocalShard(shard, source.columns) for shard in shards]
    return _match_shards(local, saved_shards) if saved_shards else TrainingShards(local, absent)


def _list_local_entries(source: DataConfig, absent: dict[str, str]) -> list[str]:
    """Lists the entries of `train_file` that name files of this machine; adds others to `absent`.

    Args:
        source: The data configuration of a source of a mixture, or of a run without a mixture.
    """
    try:
        entries = list_entries(source)
    except ConfigurationError:  # a model without the configuration of its run
        return []

    local_entries = []
    for entry in entries:
        if "://" in entry:
            absent[entry] = REMOTE
            continue
        try:
            list_entry_files(entry, source)
        except DataError:
            absent[entry] = MISSING
            continue
        local_entries.append(entry)
    return local_entries


def _list_local_shards(
    source: DataConfig, entries: Sequence[str], absent: dict[str, str]
) -> list[Shard]:
    """Lists the shards that entries of `train_file` name, without the held-out file of the run.

    If the entries name something else than shards, they are added to `absent`.
    """
    if not entries:
        return []
    held_out = source.validation_file and resolve_in_dataset(source.validation_file, source)
    resolved = replace(
        source, train_file=list(entries), validation_file=held_out, dataset_name=None
    )
    try:
        return list_shards(resolved)
    except UserError:
        absent |= dict.fromkeys(entries, UNREADABLE)
        return []


def _add_hashes(shards: Sequence[Shard], cache: Cache) -> list[Shard]:
    """Returns the shards that can be read, with the hashes of their samples."""
    try:
        return add_sample_hashes(shards, cache)
    except DataError:
        return [hashed for shard in shards for hashed in _add_hash_if_readable(shard)]


def _add_hash_if_readable(shard: Shard) -> list[Shard]:
    """Returns a shard with the hash of its samples; [] if it cannot be read."""
    try:
        return add_sample_hashes([shard])
    except DataError:
        return []


def _match_shards(
    candidates: Sequence[LocalShard], saved_shards: Mapping[str, Any]
) -> TrainingShards:
    """Selects the local files that a checkpoint lists, by their content.

    Args:
        candidates: Local files, with the hashes of their samples.
        saved_shards: The fingerprints of the run's shards by name.
    """
    contents: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, entry in saved_shards.items():
        if isinstance(entry, dict) and "sampled_xxh3" in entry:
            contents[name] = _format_content(entry.get("bytes"), entry["sampled_xxh3"])
        elif "://" not in name:  # otherwise it is the revision of a data set
            absent[name] = REMOTE

    saved_contents = set(contents.values())
    local = [candidate for candidate in candidates if candidate.content in saved_contents]
    local_contents = {candidate.content for candidate in local}
    absent |= {name: CHANGED for name, content in contents.items() if content not in local_contents}
    return TrainingShards(local, absent)


def _format_content(size: Any, samples_hash: Any) -> str:
    """Formats the size of a local file and the hash of its samples, of any type in a checkpoint."""
    return f"{size} {samples_hash}"

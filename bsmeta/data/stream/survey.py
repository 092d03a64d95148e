"""Surveys the data of a run before it starts.

The survey lists and samples the shards, checks the first documents (`columns`), and hashes the
held-out file. One process does this for all; the others receive the result, so the requests of a
start do not grow with their number. Facts that may differ between machines are left to each
process: where the shards are, and that they are the same files (`shards.check_is_listed`, when a
shard is opened).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bsmeta.config.data import DataConfig, build_source_configs, check_data
from bsmeta.core.errors import ConfigurationError, DataError, UserError, raise_problems
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.shard_lines import has_line, read_first_lines
from bsmeta.data.io.shards import (
    Shard,
    add_sample_hashes,
    find_validation_path,
    list_entries,
    list_shards,
    read_remote_settings,
    select_shards,
)
from bsmeta.data.stream.columns import find_document_problems, find_unknown_types, name_source_key
from bsmeta.data.stream.corpora import Corpus, deal_corpora, open_corpora
from bsmeta.data.stream.held_out import HeldOutFingerprints, identify_held_out, read_held_out
from bsmeta.data.stream.lost_text import LINES_PER_SHARD
from bsmeta.data.stream.plan import Share, order_sequences


@dataclass(frozen=True, slots=True)
class Survey:
    """The data of a run; picklable.

    Attributes:
        entries: Names the shards of each source, with absolute paths of the machine.
        held_out: Identifies the held-out file.
        remote_held_out: The held-out file, if it is not on a disk.
        shards: The shards of each source, sorted, with the hashes of their samples.
        kept_out: The documents that must not be trained on; None without a held-out file.
        lines: Some of the first lines of each source.
        failure: Why documents cannot be read, if their sequences are prepared; otherwise None.
    """

    entries: dict[str, list[str]]
    held_out: str
    remote_held_out: FileRef | None
    shards: dict[str, list[Shard]]
    kept_out: HeldOutFingerprints | None
    lines: dict[str, list[bytes]]
    failure: UserError | None = None

    def corpora(self, config: DataConfig) -> list[Corpus]:
        """Opens the corpora of a run for this process.

        Raises:
            DataError: If this machine has other shards.
        """
        entries = _make_entries_absolute(config)
        shards: dict[str, list[Shard]] = {}
        for name, data in build_source_configs(config).items():
            settings = read_remote_settings(data)  # the cache of this process may be elsewhere
            shards[name] = [
                replace(shard, path=replace(shard.path, settings=settings))
                if isinstance(shard.path, FileRef)
                else shard
                for shard in self.shards[name]
            ]
            if entries[name] != self.entries[name]:
                shards[name] = _set_local_paths(shards[name], data)
        return open_corpora(config, shards)


def survey_data(config: DataConfig) -> Survey:
    """Lists, samples and checks the data.

    Raises:
        ConfigurationError: If a key has an invalid value, or there are too many streams.
        DataError: If shards are missing, or the held-out documents cannot be read.
    """
    check_data(config)
    shards: dict[str, list[Shard]] = {}
    lines: dict[str, list[bytes]] = {}
    kept_out = None
    failure = None
    try:
        for name, data in build_source_configs(config).items():
            shards[name] = add_sample_hashes(list_shards(data), Cache(data.cache_dir))

        corpora = open_corpora(config, shards)
        raise_problems(
            find_unknown_types(config, {corpus.name: corpus.shards for corpus in corpora})
        )
        kept_out = read_held_out(config)
        for corpus, streams in zip(corpora, deal_corpora(config, corpora), strict=True):
            lines[corpus.name] = read_checked_lines(config, corpus)
            _check_streams_have_documents(corpus, streams, config)
    except UserError as error:
        if config.prepared is None:
            raise
        failure = error

    path = find_validation_path(config)
    return Survey(
        _make_entries_absolute(config),
        identify_held_out(config),
        path if isinstance(path, FileRef) else None,
        shards,
        kept_out,
        lines,
        failure,
    )


def _make_entries_absolute(config: DataConfig) -> dict[str, list[str]]:
    """Returns the entries of each source that name its shards; paths are made absolute."""
    absolute: dict[str, list[str]] = {}
    for name, data in build_source_configs(config).items():
        absolute[name] = [
            entry if "://" in entry else os.path.abspath(entry) for entry in list_entries(data)
        ]
    return absolute


def _set_local_paths(shards: Sequence[Shard], config: DataConfig) -> list[Shard]:
    """Returns the shards with the paths that local ones have on this machine.

    Raises:
        DataError: If this machine has other shards.
    """
    paths = {shard.name: shard.path for shard in list_shards(config)}
    missing = [shard.name for shard in shards if shard.name not in paths]
    if missing or len(paths) > len(shards):
        differing = missing or sorted(paths.keys() - {shard.name for shard in shards})
        raise DataError(
            f"data_config.train_file={config.train_file} names {len(paths)} shards on "
            f"{socket.gethostname()}, and {len(shards)} for the first process; the first that only "
            f"one of them has: {differing[0]}; expected the same files on all machines"
        )

    return [
        shard
        if isinstance(shard.path, FileRef)  # as listed for all
        else replace(shard, path=paths[shard.name])
        for shard in shards
    ]


def read_checked_lines(config: DataConfig, corpus: Corpus) -> list[bytes]:
    """Reads some of the first lines of a corpus after checking its first documents.

    Raises:
        ConfigurationError: If there is no document, or none has a path of the columns.
    """
    raise_problems(find_document_problems(config, corpus.name, corpus.shards))
    lines: list[bytes] = []
    for shard in select_shards(corpus.shards):
        lines += read_first_lines(shard.path, LINES_PER_SHARD)
    return lines


def _check_streams_have_documents(
    corpus: Corpus, dealt: Sequence[Sequence[Share]], config: DataConfig
) -> None:
    """Checks that streams that do not own the beginning of a shard have at least one document.

    Raises:
        ConfigurationError: If there are too many streams.
        DataError: If a stream has none because its shards have none.
    """
    portions = order_sequences(config).count_portions(
        [*build_source_configs(config)].index(corpus.name)
    )
    for stream, (shares, portion) in enumerate(zip(dealt, portions, strict=True)):
        # The number in the shard of the stream's first document in each share.
        first_numbers = [share.list_documents(0, 1)[0] for share in shares]
        if portion == 0 or 0 in first_numbers:
            continue
        if any(
            has_line(share.shard.path, number, corpus.indexes)
            for share, number in zip(shares, first_numbers, strict=True)
        ):
            continue

        for share in shares:
            start = explain_no_document(share.shard.path)
            if start is not None:
                key = name_source_key(config, corpus.name, "train_file")
                raise DataError(f"{key}: {share.shard.path} {start}")

        parts = ", ".join(
            f"{share.shard.name} from document {number} on"
            for share, number in zip(shares, first_numbers, strict=True)
        )
        owned = f"some of {parts}" if parts else "nothing"
        raise ConfigurationError(
            f"data_config.num_streams={config.num_streams} is too many: no document is left "
            f"for stream {stream}, which would own {owned}; lower num_streams, or add shards"
        )

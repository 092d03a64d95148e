"""Surveys the data of a run before it starts.

The survey lists and samples the shards, checks the first documents (`columns`), and hashes the
held-out file. One process does this and sends the result to the others, so the number of requests
does not grow with the number of processes. Two things may differ between machines, so each process
does them itself: it locates the shards and, when it opens one, checks that it is the same file
(`shards.check_is_listed`).
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
from bsmeta.data.stream.columns import (
    find_document_problems,
    find_unknown_type_problems,
    name_source_key,
)
from bsmeta.data.stream.corpora import Corpus, deal_corpora, open_corpora
from bsmeta.data.stream.held_out import HeldOutFingerprints, identify_held_out, read_held_out
from bsmeta.data.stream.lost_text import LINES_PER_SHARD
from bsmeta.data.stream.plan import Share, order_sequences


@dataclass(frozen=True, slots=True)
class Survey:
    """The surveyed data of a run; picklable.

    Attributes:
        entries: The configured paths and globs of each source's shards, made absolute on the
            machine of the survey.
        held_out_id: Identifier of the held-out data; see `identify_held_out`.
        remote_held_out: The held-out file if it is remote; otherwise None.
        shards: The shards of each source, sorted by name, with the hashes of their samples.
        held_out_fingerprints: The documents that must not be trained on; None if there is no
            held-out file.
        lines: Some of the first lines of each source.
        failure: The error that ended the survey of a run with prepared sequences, which may still
            train on these; None if there was none.
    """

    entries: dict[str, list[str]]
    held_out_id: str
    remote_held_out: FileRef | None
    shards: dict[str, list[Shard]]
    held_out_fingerprints: HeldOutFingerprints | None
    lines: dict[str, list[bytes]]
    failure: UserError | None = None

    def open_corpora(self, config: DataConfig) -> list[Corpus]:
        """Opens the corpora of a run with the paths and settings of this machine.

        Raises:
            DataError: If the shards on this machine differ from the surveyed shards.
        """
        entries = _make_entries_absolute(config)
        shards: dict[str, list[Shard]] = {}
        for name, source_config in build_source_configs(config).items():
            shards[name] = _set_remote_settings(self.shards[name], source_config)
            if entries[name] != self.entries[name]:
                shards[name] = _set_local_paths(shards[name], source_config)
        return open_corpora(config, shards)


def survey_data(config: DataConfig) -> Survey:
    """Lists, samples and checks the data of a run.

    If `prepared` is set, an error in the data is returned as `failure` instead of raised, because
    the run may still train on its prepared sequences.

    Raises:
        ConfigurationError: If a key has an invalid value, or there are too many streams.
        DataError: If shards are missing, or the held-out documents cannot be read.
    """
    check_data(config)
    shards: dict[str, list[Shard]] = {}
    lines: dict[str, list[bytes]] = {}
    held_out_fingerprints = None
    failure = None
    try:
        for name, source_config in build_source_configs(config).items():
            cache = Cache(source_config.cache_dir)
            shards[name] = add_sample_hashes(list_shards(source_config), cache)

        corpora = open_corpora(config, shards)
        raise_problems(
            find_unknown_type_problems(config, {corpus.name: corpus.shards for corpus in corpora})
        )
        held_out_fingerprints = read_held_out(config)
        for corpus, shares_by_stream in zip(corpora, deal_corpora(config, corpora), strict=True):
            lines[corpus.name] = read_checked_lines(config, corpus)
            _check_streams_have_documents(corpus, shares_by_stream, config)
    except UserError as error:
        if config.prepared is None:
            raise
        failure = error

    held_out_path = find_validation_path(config)
    return Survey(
        entries=_make_entries_absolute(config),
        held_out_id=identify_held_out(config),
        remote_held_out=held_out_path if isinstance(held_out_path, FileRef) else None,
        shards=shards,
        held_out_fingerprints=held_out_fingerprints,
        lines=lines,
        failure=failure,
    )


def _make_entries_absolute(config: DataConfig) -> dict[str, list[str]]:
    """Returns the configured entries of each source: absolute paths and globs, and URLs."""
    entries: dict[str, list[str]] = {}
    for name, source_config in build_source_configs(config).items():
        entries[name] = [
            entry if "://" in entry else os.path.abspath(entry)
            for entry in list_entries(source_config)
        ]
    return entries


def _set_remote_settings(shards: Sequence[Shard], config: DataConfig) -> list[Shard]:
    """Returns the shards, with this machine's settings for reading remote shards."""
    settings = read_remote_settings(config)  # the cache folder may differ between machines
    return [
        replace(shard, path=replace(shard.path, settings=settings))
        if isinstance(shard.path, FileRef)
        else shard
        for shard in shards
    ]


def _set_local_paths(shards: Sequence[Shard], config: DataConfig) -> list[Shard]:
    """Returns the shards, with the paths of local shards on this machine.

    Raises:
        DataError: If this machine has other shards.
    """
    paths = {shard.name: shard.path for shard in list_shards(config)}
    missing_names = [shard.name for shard in shards if shard.name not in paths]
    additional_names = sorted(paths.keys() - {shard.name for shard in shards})
    differing_names = missing_names or additional_names
    if differing_names:
        raise DataError(
            f"data_config.train_file={config.train_file} names {len(paths)} shards on "
            f"{socket.gethostname()}, and {len(shards)} for the first process; the first that only "
            f"one of them has: {differing_names[0]}; expected the same files on all machines"
        )

    return [
        shard
        if isinstance(shard.path, FileRef)  # the same on all machines
        else replace(shard, path=paths[shard.name])
        for shard in shards
    ]


def read_checked_lines(config: DataConfig, corpus: Corpus) -> list[bytes]:
    """Checks the first documents of a corpus; returns some of its first lines.

    Raises:
        ConfigurationError: If there is no document, or a configured column is in none of them.
    """
    raise_problems(find_document_problems(config, corpus.name, corpus.shards))
    lines: list[bytes] = []
    for shard in select_shards(corpus.shards):
        lines += read_first_lines(shard.path, LINES_PER_SHARD)
    return lines


def _check_streams_have_documents(
    corpus: Corpus, shares_by_stream: Sequence[Sequence[Share]], config: DataConfig
) -> None:
    """Checks that each stream that yields sequences has at least one document.

    A stream that owns the first document of a shard needs no check.

    Raises:
        ConfigurationError: If there are too many streams.
        DataError: If a stream has no documents because a shard contains none.
    """
    source = list(build_source_configs(config)).index(corpus.name)
    portions = order_sequences(config).count_portions(source)
    for stream, (shares, portion) in enumerate(zip(shares_by_stream, portions, strict=True)):
        # The number in the shard of the stream's first document in each share.
        first_documents = [share.list_documents(0, 1)[0] for share in shares]
        if portion == 0 or 0 in first_documents:
            continue

        has_document = any(
            has_line(share.shard.path, document, corpus.indexes)
            for share, document in zip(shares, first_documents, strict=True)
        )
        if not has_document:
            raise _make_no_document_error(corpus, stream, shares, first_documents, config)


def _make_no_document_error(
    corpus: Corpus,
    stream: int,
    shares: Sequence[Share],
    first_documents: Sequence[int],
    config: DataConfig,
) -> UserError:
    """Returns the error for a stream without documents: an unusable shard, or too many streams.

    Args:
        stream: Number of the stream in its source.
        first_documents: The number in the shard of the stream's first document in each share.
    """
    for share in shares:
        start = explain_no_document(share.shard.path)
        if start is not None:
            key = name_source_key(config, corpus.name, "train_file")
            return DataError(f"{key}: {share.shard.path} {start}")

    parts = ", ".join(
        f"{share.shard.name} from document {document} on"
        for share, document in zip(shares, first_documents, strict=True)
    )
    owned = f"some of {parts}" if parts else "nothing"
    return ConfigurationError(
        f"data_config.num_streams={config.num_streams} is too many: no document is left "
        f"for stream {stream}, which would own {owned}; lower num_streams, or add shards"
    )

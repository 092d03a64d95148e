"""What one process finds out about the data of a run, for all of its processes.

It lists and samples the shards, reads the first documents, and hashes the held-out file. The others
receive the result, so the requests of a start do not grow with their number. What may differ from
machine to machine is left to each: where the shards are, and that they are the same files
(`samples.check_is_listed`, when one is opened).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bsmeta.config.data import DataConfig, source_configs
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.data.checks import check_data
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.remote import FileRef
from bsmeta.data.io.shards import (
    Shard,
    entries_of,
    remote_settings,
    some_of,
    validation_path,
    what_it_is,
)
from bsmeta.data.stream.dealing import Share, deal
from bsmeta.data.stream.fingerprint import held_out_fingerprint
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.plan import sequence_order
from bsmeta.data.stream.preview import check_columns, check_types
from bsmeta.data.stream.sources import Corpus, Source, open_corpora, source_of

SAMPLE_LINES = 8  # of a shard, on which tokenizers are compared


@dataclass(frozen=True, slots=True)
class Survey:
    """The data of a run; picklable.

    Attributes:
        entries: What names the shards of each source, with absolute paths of the machine.
        held_out: Identifies the held-out file.
        remote_held_out: That file, if it is not on a disk.
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


def survey_data(config: DataConfig) -> Survey:
    """Lists, samples and checks the data.

    Raises:
        ConfigurationError: If a key has an invalid value, or there are too many streams.
        DataError: If shards are missing, or what is held out cannot be read.
    """
    check_data(config)
    shards: dict[str, list[Shard]] = {}
    kept_out, lines, failure = None, dict[str, list[bytes]](), None
    try:
        shards = sampled_shards(config)
        corpora = open_corpora(config, shards)
        check_types(config, {one.name: (one.shards, one.source.first_lines) for one in corpora})
        kept_out = held_out(config)
        for corpus, dealt in zip(corpora, deal_corpora(config, corpora), strict=True):
            check_streams_have_documents(corpus.source, dealt, config)
            lines[corpus.name] = checked_lines(config, corpus)
    except UserError as error:
        if config.prepared is None:
            raise
        failure = error
    path = validation_path(config)
    return Survey(
        absolute_entries(config),
        held_out_fingerprint(config),
        path if isinstance(path, FileRef) else None,
        shards,
        kept_out,
        lines,
        failure,
    )


def sampled_shards(config: DataConfig) -> dict[str, list[Shard]]:
    """The shards of each source, with the hashes of their samples."""
    shards = {}
    for name, data in source_configs(config).items():
        source = source_of(data)
        shards[name] = source.with_samples(source.shards())
    return shards


def surveyed_corpora(config: DataConfig, survey: Survey) -> list[Corpus]:
    """The corpora of a run as this process reads them.

    Raises:
        DataError: If this machine has other shards.
    """
    entries = absolute_entries(config)
    shards = {}
    for name, data in source_configs(config).items():
        shards[name] = with_own_settings(survey.shards[name], data)
        if entries[name] != survey.entries[name]:
            shards[name] = with_own_paths(shards[name], data)
    return open_corpora(config, shards)


def absolute_entries(config: DataConfig) -> dict[str, list[str]]:
    """What names the shards of each source, with absolute paths."""
    return {
        name: [entry if "://" in entry else os.path.abspath(entry) for entry in entries_of(data)]
        for name, data in source_configs(config).items()
    }


def with_own_settings(shards: Sequence[Shard], config: DataConfig) -> list[Shard]:
    """The shards; remote ones are read as this process reads: its cache may be elsewhere."""
    settings = remote_settings(config)
    return [
        replace(shard, path=replace(shard.path, settings=settings))
        if isinstance(shard.path, FileRef)
        else shard
        for shard in shards
    ]


def with_own_paths(shards: Sequence[Shard], config: DataConfig) -> list[Shard]:
    """The shards; the local ones with the paths that they have on this machine."""
    paths = {shard.name: shard.path for shard in source_of(config).shards()}
    missing = [shard.name for shard in shards if shard.name not in paths]
    if missing or len(paths) > len(shards):
        named = missing or sorted(paths.keys() - {shard.name for shard in shards})
        raise DataError(
            f"data_config.train_file={config.train_file} names {len(paths)} shards on "
            f"{socket.gethostname()}, and {len(shards)} for the first process; the first that only "
            f"one of them has: {named[0]}; expected the same files on all machines"
        )
    return [
        shard
        if isinstance(shard.path, FileRef)  # as listed for all
        else replace(shard, path=paths[shard.name])
        for shard in shards
    ]


def deal_corpora(config: DataConfig, corpora: Sequence[Corpus]) -> list[list[list[Share]]]:
    """The shares of each stream of each corpus."""
    order = sequence_order(config)
    return [
        deal(corpus.shards, config.num_streams, order.portions(number))
        for number, corpus in enumerate(corpora)
    ]


def checked_lines(config: DataConfig, corpus: Corpus) -> list[bytes]:
    """Some of the first lines of a corpus, whose first documents are checked.

    Raises:
        ConfigurationError: If no document has a path of the columns.
    """
    check_columns(config, corpus.name, corpus.shards, corpus.source.first_lines)
    return [
        line
        for shard in some_of(corpus.shards)
        for line in corpus.source.first_lines(shard, SAMPLE_LINES)
    ]


def check_streams_have_documents(
    source: Source, dealt: Sequence[Sequence[Share]], config: DataConfig
) -> None:
    """Checks that streams that do not own the beginning of a shard have at least one document."""
    for stream, shares in enumerate(dealt):
        firsts = [(share, share.documents(0, 1)[0]) for share in shares]
        if not shares or any(first == 0 for _, first in firsts):
            continue
        if not any(source.has_line(share.shard, first) for share, first in firsts):
            where = ", ".join(f"{share.shard.name} from document {n} on" for share, n in firsts)
            raise ConfigurationError(
                f"data_config.num_streams={config.num_streams} is too many: no document is left "
                f"for stream {stream}, which would own some of {where}; lower num_streams, or add "
                "shards"
            )


def held_out(config: DataConfig) -> HeldOutFingerprints | None:
    """The documents that must not be trained on; None without a validation file.

    Raises:
        DataError: If the file is missing or cannot be read: what is in it would be trained on.
    """
    path = validation_path(config)
    if path is None:
        return None
    if not isinstance(path, FileRef) and not os.path.exists(path):
        raise DataError(
            f"data_config.validation_file: {path} is not there (from {os.getcwd()}), so its "
            "documents cannot be kept out of training; expected a file of documents, or null to "
            "train without a held-out file"
        )
    if not isinstance(path, FileRef) and not os.path.isfile(path):  # a pipe would block the run
        raise DataError(
            f"data_config.validation_file: {path} is {what_it_is(path)}; expected a file of "
            "documents"
        )
    try:
        return HeldOutFingerprints.of(path, Cache(config.cache_dir), config.columns)
    except OSError as error:
        raise DataError(f"data_config.validation_file: {path} cannot be read: {error}") from error

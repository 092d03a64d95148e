"""The sources of a run's lines, and what one process finds out about them for all of its processes.

`live` requests windows from a source; all sources return the same lines in the same windows. The
native source reads with `lines` and its access points, `tf_source` with TensorFlow's tf.data
(`data_config.reader`).

The survey lists and samples the shards, reads the first documents, and hashes the held-out file.
The other processes receive the result, so the requests of a start do not grow with their number.
What may differ from machine to machine is left to each: where the shards are, and that they are the
same files (`shards.check_is_listed`, when one is opened).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bsmeta.config.data import DataConfig, check_data, source_configs
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.data.io.files import Cache, FileRef
from bsmeta.data.io.lines import IndexCache, ShardReader, first_lines, has_line, open_shard
from bsmeta.data.io.shards import (
    Shard,
    check_is_listed,
    entries_of,
    list_shards,
    remote_settings,
    some_of,
    validation_path,
    what_it_is,
    with_samples,
)
from bsmeta.data.stream.fingerprint import held_out_fingerprint
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.plan import Share, deal, sequence_order
from bsmeta.data.stream.preview import check_columns, check_types
from bsmeta.data.stream.windows import PlacedWindow, Window
from bsmeta.metadata.decoding import make_decoder

SAMPLE_LINES = 8  # of a shard, on which tokenizers are compared


class Source(Protocol):
    """Shards, and windows of their lines."""

    def shards(self) -> list[Shard]:
        """The training shards, sorted by name; see `list_shards`."""

    def with_samples(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards with the hashes of their samples; see `shards.with_samples`."""

    def first_lines(self, shard: Shard, count: int) -> list[bytes]:
        """The first lines of a shard."""

    def has_line(self, shard: Shard, line: int) -> bool:
        """Whether a shard has a line of this number."""

    def windows(
        self, epoch: int, order: Sequence[Share], place: int, number: int
    ) -> Iterator[PlacedWindow]:
        """The windows of an epoch from a place on.

        The source drops a window's lines when the next window is requested.

        Args:
            order: The shares in the order of the epoch.
            place: The share to start with.
            number: The window of that share to start with.
        """


class NativeSource:
    """Reads with `open_shard`, whose readers can start anywhere in a shard at the same cost."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._cache = Cache(config.cache_dir)
        self._indexes = IndexCache(self._cache)
        self._decoder = make_decoder(config.metadata_config, config.columns, content=config.content)

    def shards(self) -> list[Shard]:
        return list_shards(self._config)

    def with_samples(self, shards: Sequence[Shard]) -> list[Shard]:
        return with_samples(shards, cache=self._cache)

    def first_lines(self, shard: Shard, count: int) -> list[bytes]:
        return first_lines(shard.path, count)

    def has_line(self, shard: Shard, line: int) -> bool:
        return has_line(shard.path, line, self._indexes)

    def windows(
        self, epoch: int, order: Sequence[Share], place: int, number: int
    ) -> Iterator[PlacedWindow]:
        for at in range(place, len(order)):
            share = order[at]
            reader = self._reader(share.shard)
            window = number if at == place else 0
            while not reader.ended:
                yield at, window, self._window(epoch, share, window, reader)
                window += 1
            reader.close()

    def _reader(self, shard: Shard) -> ShardReader:
        try:
            check_is_listed(shard)
            self._indexes.request(shard.path)
            decoder = self._decoder
            return open_shard(shard.path, self._indexes, decoder.columns, decoder.late)
        except OSError as error:
            raise DataError(f"{shard.path} cannot be read: {error}") from error

    def _window(self, epoch: int, share: Share, number: int, reader: ShardReader) -> Window:
        documents = share.documents(number, self._config.window_documents)
        lines = reader.take(documents)
        return Window(epoch, share.shard, documents, lines, reader.damage)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of one source of a mixture, or of a run without one.

    Attributes:
        name: Name of the source; "" without a mixture.
        config: Its data.
        source: Reads its shards.
        shards: The shards, sorted; in a mixture, their names begin with that of the source.
    """

    name: str
    config: DataConfig
    source: Source
    shards: list[Shard]


def open_corpora(
    config: DataConfig, shards: Mapping[str, Sequence[Shard]] | None = None
) -> list[Corpus]:
    """The corpora of a run, in the order of `data_config.sources`.

    Args:
        shards: The shards of each source, by its name; None lists them.
    """
    corpora = []
    for name, data in source_configs(config).items():
        source = source_of(data)
        own = source.shards() if shards is None else shards[name]
        if name:
            own = [replace(shard, name=f"{name}/{shard.name}") for shard in own]
        corpora.append(Corpus(name, data, source, [*own]))
    return corpora


def source_of(config: DataConfig) -> Source:
    """The source that `reader` names; TensorFlow is imported only for `tf`."""
    if config.reader == "tf":
        from bsmeta.data.stream.tf_source import TensorFlowSource

        return TensorFlowSource(config)
    return NativeSource(config)


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
    return [deal(corpus.shards, order.portions(number)) for number, corpus in enumerate(corpora)]


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

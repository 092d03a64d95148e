"""Sources of a stream's lines: the readers of `data_config.reader`.

`live` requests windows from a source; all sources return the same lines in the same windows. The
native source reads with `lines` and its access points, `tf_source` with TensorFlow's tf.data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bsmeta.config.data import DataConfig, source_configs
from bsmeta.core.errors import DataError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.index import IndexCache
from bsmeta.data.io.lines import ShardReader, first_lines, has_line, open_shard
from bsmeta.data.io.samples import check_is_listed, with_samples
from bsmeta.data.io.shards import Shard, list_shards
from bsmeta.data.stream.dealing import Share
from bsmeta.data.stream.windows import PlacedWindow, Window
from bsmeta.metadata.decoding import make_decoder


class Source(Protocol):
    """Shards, and windows of their lines."""

    def shards(self) -> list[Shard]:
        """The training shards, sorted by name; see `list_shards`."""

    def with_samples(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards with the hashes of their samples; see `samples.with_samples`."""

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

"""Where a stream's lines come from: the readers of `data_config.reader`.

`streams` asks a source for windows; it gives the same lines in the same windows as any other. The
native one reads with `lines` and its access points; `tf_source` with TensorFlow's tf.data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.cache import Cache
from bsmeta.data.dealing import Share
from bsmeta.data.index import IndexCache
from bsmeta.data.lines import LineReader, first_lines, has_line
from bsmeta.data.shards import Shard, list_shards, shards_fingerprint
from bsmeta.data.windows import Window

PlacedWindow = tuple[int, int, Window]
"""Place of the share in the order of its epoch, place of the window in its share, the window."""


class Source(Protocol):
    """Shards, and windows of their lines."""

    def shards(self) -> list[Shard]:
        """The training shards, sorted by name; see `list_shards`."""

    def fingerprint(self, shards: Sequence[Shard]) -> dict[str, Any]:
        """What a resumed run must find again; see `shards_fingerprint`."""

    def first_lines(self, shard: Shard, count: int) -> list[bytes]:
        """The first lines of a shard."""

    def has_line(self, shard: Shard, line: int) -> bool:
        """Whether a shard has a line of this number."""

    def windows(
        self, epoch: int, order: Sequence[Share], place: int, number: int
    ) -> Iterator[PlacedWindow]:
        """The windows of an epoch from a place on.

        Lines are held only until the next window is asked for, if the caller lets go of them.

        Args:
            epoch: Number of the epoch.
            order: The shares in the order of the epoch.
            place: The share to begin with.
            number: The window of that share to begin with.

        Raises:
            DataError: If a shard cannot be read for another reason than damaged data.
        """


class NativeSource:
    """Reads with `LineReader`, which enters a shard anywhere at the same cost.

    Args:
        config: Which shards, and how large windows are.
    """

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._indexes = IndexCache(Cache(config.cache_dir))

    def shards(self) -> list[Shard]:
        return list_shards(self._config)

    def fingerprint(self, shards: Sequence[Shard]) -> dict[str, Any]:
        return shards_fingerprint(shards)

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

    def _reader(self, shard: Shard) -> LineReader:
        try:
            self._indexes.request(shard.path)
            return LineReader(shard.path, self._indexes)
        except OSError as error:
            raise DataError(f"{shard.path} cannot be read: {error}") from error

    def _window(self, epoch: int, share: Share, number: int, reader: LineReader) -> Window:
        documents = share.documents(number, self._config.window_documents)
        lines = reader.take(documents)
        return Window(epoch, share.shard, documents, lines, reader.damage)


def source_of(config: DataConfig) -> Source:
    """The source that `reader` names; TensorFlow is imported only for `tf`."""
    if config.reader == "tf":
        from bsmeta.data.tf_source import TensorFlowSource

        return TensorFlowSource(config)
    return NativeSource(config)

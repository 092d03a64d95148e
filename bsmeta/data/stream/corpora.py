"""The corpora of a run: the shards of its sources, which are read in windows.

A run without a mixture has one corpus. `survey` opens the corpora to check the data before the run,
`live` to train on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bsmeta.config.data import DataConfig, build_source_configs
from bsmeta.core.errors import DataError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import Shard, check_is_listed, list_shards
from bsmeta.data.stream.plan import Share, deal_documents, order_sequences
from bsmeta.data.stream.window import PlacedWindow, Window
from bsmeta.metadata.decoding import make_decoder


class Corpus:
    """The documents of one source of a mixture, or of a run without a mixture.

    Attributes:
        name: Name of the source; "" without a mixture.
        config: The configuration of the source.
        shards: The shards, sorted by name; in a mixture, their names begin with the source's name.
        indexes: The access points of the shards.
    """

    def __init__(self, name: str, config: DataConfig, shards: Sequence[Shard]) -> None:
        self.name = name
        self.config = config
        if name:
            shards = [replace(shard, name=f"{name}/{shard.name}") for shard in shards]
        self.shards = list(shards)
        self.indexes = IndexCache(Cache(config.cache_dir))
        self._decoder = make_decoder(config.metadata_config, config.columns, content=config.content)

    def iterate_windows(
        self, epoch: int, shares: Sequence[Share], first_share: int, first_window: int
    ) -> Iterator[PlacedWindow]:
        """Yields the windows of an epoch, beginning at a given window.

        The iterator keeps no reference to the lines of a window after it was yielded.

        Args:
            shares: The shares in the order of the epoch.
            first_share: Index of the share to start with.
            first_window: Index of the window to start with in that share.

        Raises:
            DataError: If a shard cannot be read, or differs from its listing.
        """
        for share_index in range(first_share, len(shares)):
            share = shares[share_index]
            reader = self._open(share.shard)
            window_index = first_window if share_index == first_share else 0
            while not reader.ended:
                documents = share.list_documents(window_index, self.config.window_documents)
                # No local variable may hold the lines while the window is processed.
                yield PlacedWindow(
                    share_index,
                    window_index,
                    Window(epoch, share.shard, documents, reader.take(documents), reader.damage),
                )
                window_index += 1
            reader.close()

    def _open(self, shard: Shard) -> ShardReader:
        """Opens a shard, and requests its access points for later runs."""
        try:
            check_is_listed(shard)
            self.indexes.request(shard.path)
            decoder = self._decoder
            return open_shard(shard.path, self.indexes, decoder.columns, decoder.lazy_columns)
        except OSError as error:
            raise DataError(f"{shard.path} cannot be read: {error}") from error


def open_corpora(
    config: DataConfig, shards: Mapping[str, Sequence[Shard]] | None = None
) -> list[Corpus]:
    """Opens the corpora of a run, in the order of `data_config.sources`.

    Args:
        shards: The shards of each source, by its name; if None, they are listed.
    """
    corpora = []
    for name, source_config in build_source_configs(config).items():
        source_shards = list_shards(source_config) if shards is None else shards[name]
        corpora.append(Corpus(name, source_config, source_shards))
    return corpora


def deal_corpora(config: DataConfig, corpora: Sequence[Corpus]) -> list[list[list[Share]]]:
    """Deals the documents of each corpus to the logical streams of its source.

    Returns:
        For each corpus, the shares of each of its streams.
    """
    order = order_sequences(config)
    return [
        deal_documents(corpus.shards, order.count_portions(source))
        for source, corpus in enumerate(corpora)
    ]

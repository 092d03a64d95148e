"""One logical stream: the packed sequences of its windows, epoch after epoch.

Each sequence carries the position behind it. The position behind the last sequence that was trained
on is all that a resumed run needs: it makes that window again and goes on in it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.counts import TEST_OVERLAP, skipped_counts
from bsmeta.data.index import IndexCache
from bsmeta.data.lines import LineReader
from bsmeta.data.packed import PackedSequence
from bsmeta.data.plan import Position, Share, order_of
from bsmeta.data.windows import Window, WindowMaker


class LogicalStream:
    """The endless sequences of one stream.

    Args:
        stream: Number of the stream.
        shares: What it owns.
        maker: Makes windows into sequences.
        config: `window_documents` and `max_bad_documents` are used.
        seed: Seed of the run.
        indexes: Access points of the shards; wanted for each one that is read.
    """

    def __init__(
        self,
        stream: int,
        shares: Sequence[Share],
        maker: WindowMaker,
        config: DataConfig,
        seed: int,
        indexes: IndexCache,
    ) -> None:
        self._stream = stream
        self._shares = shares
        self._maker = maker
        self._config = config
        self._seed = seed
        self._indexes = indexes

    def sequences(self, position: Position) -> Iterator[PackedSequence]:
        """The sequences from a position on.

        Raises:
            DataError: If a whole epoch gives none, too many documents are bad, or one is bad where
                `bad_documents` is strict.
        """
        keys = self._config.metadata_config.metadata_list
        skipped: Counter[str] = Counter()  # not yet reported by a sequence
        while True:
            begin = position
            for share, number, window in self._epoch(begin):
                packed, bad = self._maker.make(window)
                here = position._replace(share=share, window=number)
                position = Position(
                    epoch=here.epoch,
                    share=share,
                    window=number + 1,
                    emitted=here.emitted + len(packed) - here.sequence,
                    bad=self._checked(here.bad + bad.total() - bad[TEST_OVERLAP], window),
                )
                if here.sequence == 0:  # otherwise reported before the run was resumed
                    skipped.update(bad)
                for index in range(here.sequence, len(packed)):
                    here = here._replace(sequence=index + 1, emitted=here.emitted + 1)
                    behind = here if index + 1 < len(packed) else position
                    sequence = packed.sequence(index, self._stream, behind)
                    if skipped:
                        sequence.counts += skipped_counts(skipped, keys)
                        skipped.clear()
                    yield sequence
            if begin.is_epoch_start() and position.emitted == begin.emitted:
                raise DataError(self._no_sequences())
            position = Position(epoch=position.epoch + 1, emitted=position.emitted)

    def _epoch(self, begin: Position) -> Iterator[tuple[int, int, Window]]:
        """What is left of an epoch: place of the share, place of the window in it, the window."""
        count = self._config.window_documents
        order = order_of(self._shares, self._seed, begin.epoch, self._stream)
        for place in range(begin.share, len(order)):
            share = order[place]
            self._indexes.request(share.shard.path)
            reader = LineReader(share.shard.path, self._indexes)
            for number in itertools.count(begin.window if place == begin.share else 0):
                first = share.first_document(number, count)
                lines = reader.read(first, count)
                if lines or reader.damage:
                    window = Window(begin.epoch, share.shard, first, lines, reader.damage)
                    yield place, number, window
                if len(lines) < count:
                    break
            reader.close()

    def _checked(self, bad: int, window: Window) -> int:
        most = self._config.max_bad_documents
        if bad > most:
            raise DataError(
                f"stream {self._stream} skipped {bad} bad documents by document {window.first} of "
                f"{window.shard.path}: more than data_config.max_bad_documents={most}"
            )
        return bad

    def _no_sequences(self) -> str:
        names = ", ".join(share.shard.name for share in self._shares)
        return f"stream {self._stream} has no usable document in its part of {names}"

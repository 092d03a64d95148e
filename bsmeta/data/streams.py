"""One logical stream: the packed sequences of its windows, epoch after epoch.

Each sequence carries the position after it. The position after the last trained sequence is all
that a resumed run needs: it rebuilds that window and continues in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.bad_documents import REASONS
from bsmeta.data.counts import HALF_USED, skipped_counts
from bsmeta.data.dealing import Share, order_of
from bsmeta.data.packed import PackedSequence, PackedWindow
from bsmeta.data.plan import Phases, Position
from bsmeta.data.sources import Source
from bsmeta.data.windows import Window, WindowMaker

Sequences = list[tuple[PackedWindow, int]]
"""The sequences of a window, each as a packed window and its index in it."""


class LogicalStream:
    """The endless sequences of one stream.

    Args:
        stream: Number of the stream.
        shares: What it owns.
        maker: Turns windows into sequences.
        config: `max_bad_documents` is used.
        seed: Seed of the run.
        source: Reads the shares.
        phases: When the metadata schedule switches phases.
    """

    def __init__(
        self,
        stream: int,
        shares: Sequence[Share],
        maker: WindowMaker,
        config: DataConfig,
        seed: int,
        source: Source,
        phases: Phases,
    ) -> None:
        self._stream = stream
        self._shares = shares
        self._maker = maker
        self._config = config
        self._seed = seed
        self._source = source
        self._phases = phases

    def sequences(self, position: Position, epochs: int | None = None) -> Iterator[PackedSequence]:
        """The sequences from a position on.

        Args:
            position: Where to start.
            epochs: Number of the epoch to stop before; None never stops.

        Raises:
            DataError: If a whole epoch yields none, too many documents are bad, or one is bad where
                `bad_documents` is strict.
        """
        keys = self._config.metadata_config.metadata_list
        skipped: Counter[str] = Counter()  # not yet reported by a sequence
        while epochs is None or position.epoch < epochs:
            begin = position
            for share, number, packed, bad in self._epoch(begin):
                here = position._replace(share=share, window=number)
                position = Position(
                    epoch=here.epoch,
                    share=share,
                    window=number + 1,
                    emitted=here.emitted + len(packed) - here.sequence,
                    bad=self._checked(here.bad + sum(bad[reason] for reason in REASONS)),
                )
                if here.sequence == 0:  # otherwise reported before the run was resumed
                    skipped.update(bad)
                for index in range(here.sequence, len(packed)):
                    here = here._replace(sequence=index + 1, emitted=here.emitted + 1)
                    behind = here if index + 1 < len(packed) else position
                    part, place = packed[index]
                    sequence = part.sequence(place, self._stream, behind)
                    if skipped:
                        sequence.counts += skipped_counts(skipped, keys)
                        skipped.clear()
                    yield sequence
            if begin.is_epoch_start() and position.emitted == begin.emitted:
                raise DataError(self._no_sequences())
            position = Position(epoch=position.epoch + 1, emitted=position.emitted)

    def _epoch(self, begin: Position) -> Iterator[tuple[int, int, Sequences, Counter[str]]]:
        """The rest of an epoch: share index, window index in the share, sequences, and skips.

        The skips count the documents of the window that were left out. The lines of a window are
        released before its sequences are yielded: they may be ten times as large.
        """
        emitted = begin.emitted - begin.sequence
        order = order_of(self._shares, self._seed, begin.epoch, self._stream)
        windows = self._source.windows(begin.epoch, order, begin.share, begin.window)
        for place, number, window in windows:
            packed, bad = self._made(window, emitted)
            del window
            yield place, number, packed, bad
            emitted += len(packed)

    def _made(self, window: Window, emitted: int) -> tuple[Sequences, Counter[str]]:
        """The sequences of a window, and how many documents were left out, by reason.

        If the schedule switches phases inside it, unused documents are rebuilt for the new phase,
        and the rest of partly used documents is dropped.

        Args:
            window: The window.
            emitted: Number of sequences that the stream yielded before the window.
        """
        made: Sequences = []
        documents, skipped = self._maker.documents(window, self._phases.of(self._stream, emitted))
        used: set[int] = set()
        while True:
            packed = self._maker.pack(window, documents)
            left = self._phases.left(self._stream, emitted)
            count = len(packed) if left is None else min(left, len(packed))
            made += [(packed, place) for place in range(count)]
            if count == len(packed):
                return made, skipped
            opened = packed.documents(0, count)
            skipped[HALF_USED] += len(opened & packed.documents(count, len(packed)))
            used |= opened
            emitted += count
            phase = self._phases.of(self._stream, emitted)
            documents, _ = self._maker.documents(window, phase, leave_out=used)

    def _checked(self, bad: int) -> int:
        most = self._config.max_bad_documents
        if bad > most:
            raise DataError(
                f"stream {self._stream} skipped {bad} bad documents in this epoch: more than "
                f"data_config.max_bad_documents={most}"
            )
        return bad

    def _no_sequences(self) -> str:
        names = ", ".join(share.shard.name for share in self._shares)
        return f"stream {self._stream} has no usable document in its part of {names}"

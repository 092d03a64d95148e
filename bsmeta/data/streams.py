"""One logical stream: the packed sequences of its windows, epoch after epoch.

Each sequence carries the position behind it. The position behind the last sequence that was trained
on is all that a resumed run needs: it makes that window again and goes on in it.
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
"""The sequences of a window, each as its part of the window and its place in that."""


class LogicalStream:
    """The endless sequences of one stream.

    Args:
        stream: Number of the stream.
        shares: What it owns.
        maker: Makes windows into sequences.
        config: `max_bad_documents` is used.
        seed: Seed of the run.
        source: Reads the shares.
        phases: When the metadata's schedule goes on to its next phase.
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
            position: Where to begin.
            epochs: Number of the epoch to stop before; None goes on for ever.

        Raises:
            DataError: If a whole epoch gives none, too many documents are bad, or one is bad where
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
        """What is left of an epoch: place of the share, place of the window in it, the window.

        And how many of its documents were left out. Lines are let go of before a window is given
        out: they may be ten times as large.
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

        Where the schedule switches inside it, the documents of which nothing was used yet are made
        again for the new phase; what is left of half-used ones is dropped.

        Args:
            window: The window.
            emitted: Sequences that the stream gave out before the window's first.
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

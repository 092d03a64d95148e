"""The logical streams, read from the shards during training.

A logical stream yields the packed sequences of its windows, epoch after epoch, each with the
position after it. To resume, a run needs only the position after the last trained sequence: it
rebuilds that window and continues in it. `train_stream` divides the sequences among ranks;
`prepare` replaces this module if sequences are prepared in advance.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import compute_phase_starts
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_progress
from bsmeta.data.io.lines import LONG_FRAME_BYTES, begins_with_long_frame
from bsmeta.data.io.shards import Shard, fingerprint_shards, select_shards
from bsmeta.data.stream.corpora import Corpus, deal_corpora
from bsmeta.data.stream.counts import count_skipped
from bsmeta.data.stream.fingerprint import collect_fingerprint
from bsmeta.data.stream.plan import Phases, Position, Share, draw_order, order_sequences
from bsmeta.data.stream.reasons import HALF_USED, count_bad
from bsmeta.data.stream.survey import Survey
from bsmeta.data.stream.window import Window
from bsmeta.data.stream.window_maker import WindowMaker
from bsmeta.data.text.chunks import PackedSequence, PackedWindow

logger = logging.getLogger(__name__)

SequenceRefs = list[tuple[PackedWindow, int]]
"""The sequences of a window, each as (packed window, index of the sequence in it)."""


class EpochWindow(NamedTuple):
    """The sequences of one window, and its position in the epoch.

    Attributes:
        share_index: Index of the share in the order of its epoch.
        window_index: Index of the window in its share.
        sequences: The sequences of the window.
        skipped: Number of documents of the window that were left out, by reason.
    """

    share_index: int
    window_index: int
    sequences: SequenceRefs
    skipped: Counter[str]


@dataclass(frozen=True, slots=True)
class LogicalStream:
    """The endless sequences of one stream, from its shares of a corpus.

    Attributes:
        number: Number of the stream among the streams of all sources.
        shares: The documents that the stream owns; empty if it yields no sequences.
        maker: Turns the windows of the corpus into sequences.
        seed: Seed of the run.
    """

    number: int
    shares: Sequence[Share]
    corpus: Corpus
    maker: WindowMaker
    config: DataConfig
    seed: int
    phases: Phases

    def iterate_sequences(
        self, position: Position, epochs: int | None = None
    ) -> Iterator[PackedSequence]:
        """Yields the sequences from a position on.

        Args:
            epochs: Number of epochs since the beginning of the run after which the stream ends;
                None is endless.

        Raises:
            DataError: If an epoch yields no sequence, too many documents are bad, or one is bad and
                `bad_documents` is strict.
        """
        if not self.shares:  # a stream of a mixture that has no sequences
            return

        unreported: Counter[str] = Counter()  # skipped documents that no sequence has counted yet
        while epochs is None or position.epoch < epochs:
            start = position
            for share_index, window_index, packed, skipped in self._pack_epoch(start):
                window_start = position._replace(share=share_index, window=window_index)
                position = Position(
                    epoch=window_start.epoch,
                    share=share_index,
                    window=window_index + 1,
                    emitted=window_start.emitted + len(packed) - window_start.sequence,
                    bad=self._check_limit(window_start.bad + count_bad(skipped)),
                )
                if window_start.sequence == 0:  # otherwise reported before the run was resumed
                    unreported.update(skipped)
                yield from self._make_sequences(packed, window_start, position, unreported)

            if start.is_epoch_start() and position.emitted == start.emitted:
                names = ", ".join(share.shard.name for share in self.shares)
                raise DataError(
                    f"stream {self.number} has no usable document in its part of {names}; add "
                    "documents, or begin a run with a smaller data_config.num_streams"
                )
            position = Position(epoch=position.epoch + 1, emitted=position.emitted)

    def _make_sequences(
        self,
        packed: SequenceRefs,
        start: Position,
        position_after_window: Position,
        unreported: Counter[str],
    ) -> Iterator[PackedSequence]:
        """Yields the sequences of a window, each with the position after it.

        Args:
            packed: All sequences of the window.
            start: The position to begin at. A run that resumes within a window packs the window
                again and skips its first sequences.
            unreported: Number of skipped documents, by reason; added to the counts of the first
                sequence, and cleared.
        """
        keys = self.config.metadata_config.metadata_list
        current = start
        for index in range(start.sequence, len(packed)):
            current = current._replace(sequence=index + 1, emitted=current.emitted + 1)
            position_after = current if index + 1 < len(packed) else position_after_window
            packed_window, row = packed[index]
            sequence = packed_window.make_sequence(row, self.number, position_after)
            if unreported:
                sequence.counts += count_skipped(unreported, keys)
                unreported.clear()
            yield sequence

    def _pack_epoch(self, start: Position) -> Iterator[EpochWindow]:
        """Yields the packed windows of an epoch, beginning with the window of a position.

        The lines of a window are released before its sequences are yielded, because they may take
        ten times as much memory.
        """
        emitted = start.emitted - start.sequence
        shares = draw_order(self.shares, self.seed, start.epoch, self.number)
        windows = self.corpus.iterate_windows(start.epoch, shares, start.share, start.window)
        for share_index, window_index, window in windows:
            sequences, skipped = self._pack_window(window, emitted)
            del window
            report_progress()
            yield EpochWindow(share_index, window_index, sequences, skipped)
            emitted += len(sequences)

    def _pack_window(self, window: Window, emitted: int) -> tuple[SequenceRefs, Counter[str]]:
        """Packs a window.

        If the metadata schedule switches phases inside the window, unused documents are rendered
        again for the new phase, and the unused parts of other documents are dropped. Under
        `row_budget=text`, the sequences of all phases differ only in their metadata, and nothing is
        dropped.

        Args:
            emitted: Number of sequences that the stream yielded before the window.

        Returns:
            The sequences, and the number of documents that were left out, by reason.
        """
        by_text = self.config.row_budget == BY_TEXT
        sequences: SequenceRefs = []
        used_documents: set[int] = set()
        phase = self.phases.find_phase(self.number, emitted)
        documents, skipped = self.maker.prepare_documents(window, phase)
        while True:
            packed = self.maker.pack(window, documents)
            first = len(sequences) if by_text else 0
            remaining = self.phases.count_left(self.number, emitted)
            last = len(packed) if remaining is None else min(first + remaining, len(packed))
            sequences += [(packed, index) for index in range(first, last)]
            if last == len(packed):
                return sequences, skipped

            # The next phase begins inside the window.
            if not by_text:
                used_in_phase = packed.list_documents(0, last)
                unused_in_phase = packed.list_documents(last, len(packed))
                skipped[HALF_USED] += len(used_in_phase & unused_in_phase)
                used_documents |= used_in_phase
            emitted += last - first
            phase = self.phases.find_phase(self.number, emitted)
            documents, _ = self.maker.prepare_documents(window, phase, leave_out=used_documents)

    def _check_limit(self, num_bad: int) -> int:
        """Checks the number of bad documents in an epoch, and returns it.

        Raises:
            DataError: If it exceeds `max_bad_documents`.
        """
        limit = self.config.max_bad_documents
        if num_bad > limit:
            raise DataError(
                f"stream {self.number} skipped {num_bad} bad documents in this epoch: more than "
                f"data_config.max_bad_documents={limit}; correct the shards, or raise the limit"
            )
        return num_bad


class LiveStreams:
    """All logical streams of a run, read from the shards.

    Args:
        tokenizer: A fast tokenizer with an EOS token and the special tokens of the metadata.
        survey: The survey of the data, which one process of the run made for all.

    Raises:
        ConfigurationError: If the tokenizer or a key of the metadata cannot be used.
        DataError: If the survey failed, or the shards on this machine differ from the surveyed
            shards.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        phases: Phases,
        survey: Survey,
    ) -> None:
        if survey.failure is not None:
            raise survey.failure

        corpora = survey.open_corpora(config)
        self.shards: list[Shard] = []
        for corpus in corpora:
            self.shards += corpus.shards

        self._streams: list[LogicalStream] = []
        for corpus, shares_by_stream in zip(corpora, deal_corpora(config, corpora), strict=True):
            maker = WindowMaker(
                corpus.config,
                tokenizer,
                seed,
                source=corpus.name,
                held_out=survey.held_out_fingerprints,
                sample=survey.lines[corpus.name],
            )
            for shares in shares_by_stream:
                number = len(self._streams)
                self._streams.append(
                    LogicalStream(number, shares, corpus, maker, config, seed, phases)
                )

        shard_fingerprints = fingerprint_shards(self.shards)
        self.fingerprint = collect_fingerprint(
            config, tokenizer, seed, phases, shard_fingerprints, survey.held_out_id
        )

    def __len__(self) -> int:
        """Returns the number of streams of all sources."""
        return len(self._streams)

    def iterate_sequences(
        self, stream: int, position: Position, epochs: int | None = None
    ) -> Iterator[PackedSequence]:
        """Yields the sequences of a stream; see `LogicalStream.iterate_sequences`."""
        return self._streams[stream].iterate_sequences(position, epochs)

    def warn_of_slow_resumes(self) -> None:
        """Logs a warning if a sampled Zstandard shard begins with a very long frame."""
        zst_shards = [shard for shard in self.shards if str(shard.path).endswith(".zst")]
        slow_names = [
            shard.name for shard in select_shards(zst_shards) if begins_with_long_frame(shard.path)
        ]
        if slow_names:
            logger.warning(
                "%s: the first Zstandard frame is longer than %d MB, and a frame can only be read "
                "from its beginning: a resumed run reads such a shard again up to its position "
                "(pzstd writes several frames; .gz, plain lines and Parquet allow random access)",
                ", ".join(slow_names),
                LONG_FRAME_BYTES >> 20,
            )


def find_phases(
    config: DataConfig, max_train_steps: int, global_batch_size: int, decay_start: int | None = None
) -> Phases:
    """Computes the sequences at which the metadata schedule switches phases.

    Args:
        max_train_steps: Number of steps of the run, which the schedule divides into shares.
        global_batch_size: Number of sequences per step.
        decay_start: Number of steps before the decay of the learning rate; None without a decay.

    Raises:
        ConfigurationError: If the decay begins before the phase that precedes it in the schedule.
    """
    starts = compute_phase_starts(config.metadata_config, max_train_steps, decay_start)
    if starts != sorted(starts):
        raise ConfigurationError(
            f"data_config.metadata_config.schedule: the phase at_decay would begin after step "
            f"{starts[-1]}, before the one that comes first (after step {starts[-2]}); expected "
            "phases in their order: change the shares, or the decay"
        )
    return Phases(tuple(start * global_batch_size for start in starts), order_sequences(config))

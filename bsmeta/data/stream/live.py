"""The logical streams, produced from the shards during training, and their fingerprint.

A logical stream yields the packed sequences of its windows, epoch after epoch, each with the
position after it. The position after the last trained sequence is all that a resumed run needs: it
rebuilds that window and continues in it. `train_stream` divides the sequences among ranks;
`prepare` has the role of this module for sequences prepared in advance.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, source_configs
from bsmeta.config.metadata import MetadataConfig, phase_starts
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import report_progress
from bsmeta.data.io.files import Cache
from bsmeta.data.io.lines import LONG_FRAME, IndexCache, begins_with_long_frame
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import (
    Shard,
    check_is_listed,
    list_shards,
    shards_fingerprint,
    some_of,
)
from bsmeta.data.stream.plan import Phases, Position, Share, deal, order_of, sequence_order
from bsmeta.data.stream.windows import (
    HALF_USED,
    PlacedWindow,
    Window,
    WindowMaker,
    number_bad,
    skipped_counts,
)
from bsmeta.data.text.chunks import PackedSequence, PackedWindow
from bsmeta.data.text.tokenizer import tokenizer_fingerprint
from bsmeta.metadata.decoding import make_decoder

if TYPE_CHECKING:
    from bsmeta.data.stream.survey import Survey

log = logging.getLogger(__name__)

Sequences = list[tuple[PackedWindow, int]]
"""The sequences of a window, each as a packed window and its index in it."""


class Corpus:
    """The documents of one source of a mixture, or of a run without one.

    Attributes:
        name: Name of the source; "" without a mixture.
        shards: The shards, sorted; in a mixture, their names begin with that of the source.
    """

    def __init__(self, name: str, config: DataConfig, shards: Sequence[Shard]) -> None:
        self.name = name
        self.config = config
        self.shards = [replace(one, name=f"{name}/{one.name}") if name else one for one in shards]
        self.indexes = IndexCache(Cache(config.cache_dir))
        self._decoder = make_decoder(config.metadata_config, config.columns, content=config.content)

    def windows(
        self, epoch: int, order: Sequence[Share], place: int, number: int
    ) -> Iterator[PlacedWindow]:
        """The windows of an epoch from a place on.

        A window's lines are dropped when the next window is requested.

        Args:
            order: The shares in the order of the epoch.
            place: The share to start with.
            number: The window of that share to start with.
        """
        for at in range(place, len(order)):
            share = order[at]
            reader = self._reader(share.shard)
            window = number if at == place else 0
            while not reader.ended:
                documents = share.documents(window, self.config.window_documents)
                # Nothing here may keep the lines while the window is processed.
                yield (
                    at,
                    window,
                    Window(epoch, share.shard, documents, reader.take(documents), reader.damage),
                )
                window += 1
            reader.close()

    def _reader(self, shard: Shard) -> ShardReader:
        try:
            check_is_listed(shard)
            self.indexes.request(shard.path)
            decoder = self._decoder
            return open_shard(shard.path, self.indexes, decoder.columns, decoder.late)
        except OSError as error:
            raise DataError(f"{shard.path} cannot be read: {error}") from error


def open_corpora(
    config: DataConfig, shards: Mapping[str, Sequence[Shard]] | None = None
) -> list[Corpus]:
    """The corpora of a run, in the order of `data_config.sources`.

    Args:
        shards: The shards of each source, by its name; None lists them.
    """
    return [
        Corpus(name, data, list_shards(data) if shards is None else shards[name])
        for name, data in source_configs(config).items()
    ]


def deal_corpora(config: DataConfig, corpora: Sequence[Corpus]) -> list[list[list[Share]]]:
    """The shares of each stream of each corpus."""
    order = sequence_order(config)
    return [deal(corpus.shards, order.portions(number)) for number, corpus in enumerate(corpora)]


@dataclass(frozen=True, slots=True)
class LogicalStream:
    """The endless sequences of one stream, from its shares of the shards of a corpus."""

    stream: int
    shares: Sequence[Share]
    corpus: Corpus
    maker: WindowMaker
    config: DataConfig
    seed: int
    phases: Phases

    def sequences(self, position: Position, epochs: int | None = None) -> Iterator[PackedSequence]:
        """The sequences from a position on.

        Args:
            epochs: Number of the epoch to stop before; None never stops.

        Raises:
            DataError: If a whole epoch yields none, too many documents are bad, or one is bad where
                `bad_documents` is strict.
        """
        if not self.shares:  # a stream of a mixture that has no sequences
            return
        keys = self.config.metadata_config.metadata_list
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
                    bad=self._checked(here.bad + number_bad(bad)),
                )
                if here.sequence == 0:  # otherwise reported before the run was resumed
                    skipped.update(bad)
                for index in range(here.sequence, len(packed)):
                    here = here._replace(sequence=index + 1, emitted=here.emitted + 1)
                    position_after = here if index + 1 < len(packed) else position
                    part, place = packed[index]
                    sequence = part.sequence(place, self.stream, position_after)
                    if skipped:
                        sequence.counts += skipped_counts(skipped, keys)
                        skipped.clear()
                    yield sequence
            if begin.is_epoch_start() and position.emitted == begin.emitted:
                names = ", ".join(share.shard.name for share in self.shares)
                raise DataError(
                    f"stream {self.stream} has no usable document in its part of {names}"
                )
            position = Position(epoch=position.epoch + 1, emitted=position.emitted)

    def _epoch(self, begin: Position) -> Iterator[tuple[int, int, Sequences, Counter[str]]]:
        """The rest of an epoch: share index, window index in the share, sequences, and skips.

        The skips count the documents of the window that were left out. The lines of a window are
        released before its sequences are yielded: they may be ten times as large.
        """
        emitted = begin.emitted - begin.sequence
        order = order_of(self.shares, self.seed, begin.epoch, self.stream)
        windows = self.corpus.windows(begin.epoch, order, begin.share, begin.window)
        for place, number, window in windows:
            packed, bad = self._made(window, emitted)
            del window
            report_progress()
            yield place, number, packed, bad
            emitted += len(packed)

    def _made(self, window: Window, emitted: int) -> tuple[Sequences, Counter[str]]:
        """The sequences of a window, and how many documents were left out, by reason.

        If the schedule switches phases inside it, unused documents are rebuilt for the new phase,
        and the rest of partly used documents is dropped. Under `row_budget=text`, all phases have
        the same sequences, but for their metadata, and nothing is dropped.

        Args:
            emitted: Number of sequences that the stream yielded before the window.
        """
        by_text = self.config.row_budget == BY_TEXT
        made: Sequences = []
        documents, skipped = self.maker.documents(window, self.phases.of(self.stream, emitted))
        used: set[int] = set()
        while True:
            packed = self.maker.pack(window, documents)
            first = len(made) if by_text else 0
            left = self.phases.left(self.stream, emitted)
            last = len(packed) if left is None else min(first + left, len(packed))
            made += [(packed, place) for place in range(first, last)]
            if last == len(packed):
                return made, skipped
            if not by_text:
                opened = packed.documents(0, last)
                skipped[HALF_USED] += len(opened & packed.documents(last, len(packed)))
                used |= opened
            emitted += last - first
            phase = self.phases.of(self.stream, emitted)
            documents, _ = self.maker.documents(window, phase, leave_out=used)

    def _checked(self, bad: int) -> int:
        most = self.config.max_bad_documents
        if bad > most:
            raise DataError(
                f"stream {self.stream} skipped {bad} bad documents in this epoch: more than "
                f"data_config.max_bad_documents={most}"
            )
        return bad


class LiveStreams:
    """All logical streams of a run, read from the shards.

    Args:
        tokenizer: A fast tokenizer with an EOS token, special tokens of the metadata added.
        survey: The data, as one process of the run found it.

    Raises:
        ConfigurationError: If the tokenizer or a key of the metadata cannot be used.
        DataError: If this machine has other shards.
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
        corpora = survey.corpora(config)
        self.shards = [shard for corpus in corpora for shard in corpus.shards]
        self._streams: list[LogicalStream] = []
        for corpus, dealt in zip(corpora, deal_corpora(config, corpora), strict=True):
            maker = WindowMaker(
                corpus.config,
                tokenizer,
                seed,
                source=corpus.name,
                held_out=survey.kept_out,
                sample=survey.lines[corpus.name],
            )
            for shares in dealt:
                number = len(self._streams)
                self._streams.append(
                    LogicalStream(number, shares, corpus, maker, config, seed, phases)
                )
        facts = shards_fingerprint(self.shards)
        self.fingerprint = fingerprint(config, tokenizer, seed, phases, facts, survey.held_out)

    def __len__(self) -> int:
        """Number of streams, of all sources."""
        return len(self._streams)

    def sequences(
        self, stream: int, position: Position, epochs: int | None = None
    ) -> Iterator[PackedSequence]:
        """The sequences of a stream; see `LogicalStream.sequences`."""
        return self._streams[stream].sequences(position, epochs)

    def warn_of_slow_resumes(self) -> None:
        """Logs a warning if Zstandard shards, of which a few are sampled, have very long frames."""
        zst = [shard for shard in self.shards if str(shard.path).endswith(".zst")]
        slow = [shard.name for shard in some_of(zst) if begins_with_long_frame(shard.path)]
        if slow:
            log.warning(
                "%s: the first Zstandard frame is longer than %d MB, and a frame can only be read "
                "from its beginning: a resumed run reads such a shard again up to its place "
                "(pzstd writes several frames; .gz, plain lines and Parquet are entered anywhere)",
                ", ".join(slow),
                LONG_FRAME >> 20,
            )


def phases_of(
    config: DataConfig, max_train_steps: int, global_batch_size: int, decay_start: int | None = None
) -> Phases:
    """When the metadata schedule switches phases.

    Args:
        max_train_steps: Steps of the run, which the schedule's shares divide.
        decay_start: Steps before the decay of the learning rate; None without one.

    Raises:
        ConfigurationError: If the decay begins before a phase that comes before it.
    """
    starts = phase_starts(config.metadata_config, max_train_steps, decay_start)
    if starts != sorted(starts):
        raise ConfigurationError(
            f"data_config.metadata_config.schedule: the phase at_decay would begin after step "
            f"{starts[-1]}, before the one that comes first (after step {starts[-2]}); expected "
            "phases in their order: change the shares, or the decay"
        )
    return Phases(tuple(start * global_batch_size for start in starts), sequence_order(config))


def fingerprint(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    phases: Phases,
    shards: Mapping[str, Any],
    held_out: str,
) -> dict[str, Any]:
    """Everything that determines the sequences of a run; JSON-serializable.

    It is saved with checkpoints and prepared data, which are rejected for other data.

    Args:
        shards: See `shards.shards_fingerprint`.
        held_out: See `held_out_fingerprint`.
    """
    found: dict[str, Any] = {
        "seed": seed,
        "num_streams": config.num_streams,
        "window_documents": config.window_documents,
        "packing": config.packing,
        "bad_documents": config.bad_documents,
        "max_document_chars": config.max_document_chars,
        "on_test_overlap": config.on_test_overlap,
        "held_out": held_out,
        "phase_starts": list(phases.starts),
    }
    if config.row_budget == BY_TEXT:  # what decides the length of rows
        found["row_budget"] = {"of": config.row_budget, "metadata": config.row_metadata_budget}
    if config.columns:
        found["columns"] = config.columns
    if config.content != "all":
        found["content"] = config.content
    if config.sources:
        found["sources"] = [
            {"name": source.name, "weight": source.weight, "columns": source.columns}
            for source in config.sources
        ]
    return found | {
        "metadata_config": dataclasses.asdict(config.metadata_config),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "shards": dict(shards),
    }


def saved_fingerprint(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved fingerprint; a metadata setting that is newer has its default, hence no effect."""
    settings = dataclasses.asdict(MetadataConfig()) | saved["metadata_config"]
    return saved | {"metadata_config": settings}

"""Selects the documents to show, and the windows of the training data that contain them.

`bsmeta.data` builds the windows exactly as for training, so a document is shown as a run trains on
it (its metadata, its chunks, the sequences that they share with other documents). The only
exception is `types`, which replaces the drawing of metadata.
"""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import itertools
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, check_data, train_files
from bsmeta.config.explaining import ExplainConfig
from bsmeta.config.metadata import MetadataConfig, phase_starts
from bsmeta.config.steps import decay_start
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.corpora import deal_corpora, open_corpora
from bsmeta.data.stream.held_out import held_out
from bsmeta.data.stream.plan import Share
from bsmeta.data.stream.survey import checked_lines
from bsmeta.data.stream.windows import Window, WindowDocument, WindowMaker
from bsmeta.data.text.chunks import Chunk
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import column_keys, type_of
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered

NAMES_SHOWN = 5

log = logging.getLogger(__name__)


def with_types(metadata: MetadataConfig, types: Sequence[str]) -> MetadataConfig:
    """The configuration under which every document gets exactly those of `types` that it has.

    Raises:
        ConfigurationError: Types are not in `metadata_list`; the message names them.
    """
    known = metadata.metadata_list
    unknown = [name for name in types if name not in known]
    if unknown:
        keys = column_keys()
        hints = [f"{name} is the column of {keys[name]}" for name in unknown if name in keys]
        raise ConfigurationError(
            f"types={list(types)}: {', '.join(unknown)} not in data_config.metadata_config."
            f"metadata_list; expected some of {', '.join(known)}, or add to that list"
            + "".join(f" ({hint})" for hint in hints)
        )
    rates: dict[str, Any] = {
        rate: 1.0 for name in known if (rate := type_of(name).sample_rate_key) is not None
    }
    return dataclasses.replace(
        metadata,
        schedule=[],
        metadata_probability=1.0 if types else 0.0,
        random_sample_metadata=False,
        metadata_dropout={name: 1.0 for name in known if name not in types},
        **rates,
    )


def find(document: str, shards: Sequence[Shard], data: DataConfig) -> tuple[int, int]:
    """The index of a document's shard in the list, and the document's number in the shard.

    Raises:
        ConfigurationError: The name is not `<shard>:<number>`, or training has no such shard.
    """
    names = [shard.name for shard in shards]
    parts = re.fullmatch(r"(.+):([0-9]{1,15})", document)
    if parts is None:
        raise ConfigurationError(
            f"document={document}: expected <shard>:<number>, such as {names[0]}:0"
        )
    name = parts[1]
    if name in names:
        return names.index(name), int(parts[2])
    problem = f"document={document}: training reads no shard of the name {name}"
    if data.validation_file and name == os.path.basename(data.validation_file):
        raise ConfigurationError(
            f"{problem}: it is the held-out file; data_config.validation_file=null would not "
            "leave it out"
        )
    near = difflib.get_close_matches(name, names, n=NAMES_SHOWN, cutoff=0.0)
    more = f" or {len(names) - len(near)} others" if len(names) > len(near) else ""
    raise ConfigurationError(
        f"{problem}; expected {', '.join(near)}{more} (data_config.train_file={train_files(data)})"
    )


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """A chunk in a sequence: number `place` (from 0) of the `count` chunks of document `number`.

    Attributes:
        length: Its tokens.
        counted: Those that count as the sequence's length: under `row_budget=text`, of text.
    """

    number: int
    place: int
    count: int
    length: int
    counted: int

    @property
    def label(self) -> str:
        """`17 (1/3): 256`: number of the document, chunk and number of chunks, tokens."""
        part = f" ({self.place + 1}/{self.count})" if self.count > 1 else ""
        return f"{self.number}{part}: {self.length}"


@dataclass(frozen=True, slots=True)
class ExplainedDocument:
    """A document to show.

    Attributes:
        name: `<shard>:<number>`.
        chunks: The chunks that are trained on, in order.
        sequences: For each chunk, the index of its sequence in the window.
        present: Types of `metadata_list` that the document has records of.
        lacking: Requested types that could not be rendered for this document.
    """

    name: str
    rendered: Rendered
    chunks: list[Chunk]
    sequences: list[int]
    present: tuple[str, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedWindow:
    """A window with documents to show.

    Attributes:
        first, last: Numbers of its first and its last document.
        count: Number of documents in it; fewer than from `first` to `last` if streams share it.
        sequences: All of its sequences, in the order in which the stream yields them.
        capacity: Tokens of a sequence.
        by_text: Whether these are tokens of text, and metadata has room of its own.
    """

    shard: str
    first: int
    last: int
    count: int
    documents: list[ExplainedDocument]
    sequences: list[list[PackedChunk]]
    capacity: int
    by_text: bool

    @property
    def shown(self) -> set[int]:
        """Numbers of the documents to show."""
        return {int(document.name.rpartition(":")[2]) for document in self.documents}

    def padding(self, sequence: int) -> int:
        """Number of tokens that would still fit into a sequence."""
        return self.capacity - sum(chunk.counted for chunk in self.sequences[sequence])


class Selection:
    """The windows with the documents that a configuration requests.

    Args:
        tokenizer: The tokenizer of the run, with the special tokens of the metadata.

    Raises:
        ConfigurationError: A value is not possible, or names a shard or a type that the
            configuration does not have.
        DataError: Shards are missing.
    """

    def __init__(self, config: ExplainConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        check_data(config.data_config)
        self._config = config
        self._data = config.data_config
        if config.types is not None:
            metadata = with_types(config.data_config.metadata_config, config.types)
            self._data = dataclasses.replace(config.data_config, metadata_config=metadata)
        steps = config.max_train_steps
        starts = phase_starts(self._data.metadata_config, steps, decay_start(config, steps))
        self._phase = bisect.bisect_left(starts, config.step) - 1
        corpora = open_corpora(self._data)
        self._shards = [shard for corpus in corpora for shard in corpus.shards]
        self._place, self._number = 0, 0
        if config.document is not None:
            self._place, self._number = find(config.document, self._shards, self._data)
        self._indexes = IndexCache(Cache(self._data.cache_dir))
        kept_out = held_out(self._data)
        self._makers: dict[str, WindowMaker] = {}
        self._shares: dict[str, list[Share]] = {shard.name: [] for shard in self._shards}
        for corpus, dealt in zip(corpora, deal_corpora(self._data, corpora), strict=True):
            maker = WindowMaker(
                corpus.config,
                tokenizer,
                config.seed,
                source=corpus.name,
                held_out=kept_out,
                sample=checked_lines(self._data, corpus),
            )
            self._makers |= dict.fromkeys((shard.name for shard in corpus.shards), maker)
            for own in dealt:
                for share in own:
                    self._shares[share.shard.name].append(share)

    def __iter__(self) -> Iterator[ExplainedWindow]:
        """Yield the windows, each with at least one document to show.

        Raises:
            ConfigurationError: The requested document does not exist, or training skips it.
            DataError: A document of a window is bad and `bad_documents` is strict.
        """
        left = self._config.limit
        for shard in self._shards[self._place :]:
            start = self._number if shard is self._shards[self._place] else 0
            for window in self._windows(shard, start):
                shown = self._explain(window, start, left)
                left -= len(shown.documents)
                if shown.documents:
                    yield shown
                if not left:
                    return
        log.warning(
            "limit=%d: the data ends after %d documents",
            self._config.limit,
            self._config.limit - left,
        )

    def _windows(self, shard: Shard, start: int) -> Iterator[Window]:
        """Yield the windows of a shard from document `start`, first the one that contains it.

        If streams share the shard, each window has documents of only one stream.
        """
        size = self._data.window_documents

        def first_window(share: Share) -> Sequence[int]:
            return share.documents(share.window_from(start, size), size)

        shares = self._shares[shard.name]
        shares = sorted(shares, key=lambda share: start not in first_window(share))
        reader = open_shard(shard.path, self._indexes)
        for share in shares:
            for number in itertools.count(share.window_from(start, size)):
                numbers = share.documents(number, size)
                lines = reader.take(numbers)
                missing = start in numbers[len(lines) :] and not reader.damage
                if missing and self._is_asked_for(shard):
                    expected = (
                        f"{reader.line} documents; expected a number from 0 to {reader.line - 1}"
                    )
                    raise ConfigurationError(
                        f"document={shard.name}:{start}: the shard has "
                        f"{expected if reader.line else 'no documents'}"
                    )
                if lines or reader.damage:
                    yield Window(self._config.epoch, shard, numbers, lines, reader.damage)
                if len(lines) < size:
                    break
        reader.close()

    def _explain(self, window: Window, start: int, limit: int) -> ExplainedWindow:
        maker = self._makers[window.shard.name]
        documents, skipped = maker.documents(window, self._phase)
        for reason, count in skipped.items():
            log.warning("%s: %d documents skipped: %s", window.shard.name, count, reason)
        packed = maker.pack(window, documents)
        sequence_of = {chunk: place for place, row in enumerate(packed.packing) for chunk in row}
        chunks = iter(packed.chunks)
        by_text = self._data.row_budget == BY_TEXT
        table: list[PackedChunk] = []
        shown: list[ExplainedDocument] = []
        for document in documents:
            count, first = len(document.chunks), len(table)
            document.chunks = list(itertools.islice(chunks, count))  # as they are trained on
            for place, chunk in enumerate(document.chunks):
                counted = len(chunk) - (chunk.metadata_length if by_text else 0)
                table.append(PackedChunk(document.number, place, count, len(chunk), counted))
            if document.number >= start and len(shown) < limit:
                sequences = [sequence_of[number] for number in range(first, len(table))]
                shown.append(self._document(window, document, sequences))
        last = window.numbers[max(len(window.lines), 1) - 1]  # that was read
        is_asked = self._is_asked_for(window.shard) and start in window.numbers
        if is_asked and all(document.number != start for document in documents):
            reasons = ", ".join(f"{count} for {reason}" for reason, count in skipped.items())
            raise ConfigurationError(
                f"document={window.shard.name}:{start}: training skips it (of documents "
                f"{window.numbers[0]} to {last} it skips {reasons}); "
                "data_config.bad_documents=strict and on_test_overlap=error say what is wrong"
            )
        return ExplainedWindow(
            shard=window.shard.name,
            first=window.numbers[0],
            last=last,
            count=len(window.lines),
            documents=shown,
            sequences=[[table[chunk] for chunk in row] for row in packed.packing],
            capacity=self._data.metadata_config.max_seq_len,
            by_text=by_text,
        )

    def _document(
        self, window: Window, document: WindowDocument, sequences: list[int]
    ) -> ExplainedDocument:
        metadata, rendered = self._data.metadata_config, document.rendered
        if metadata.without_metadata_same_context:
            rendered = rendered.without_metadata()
        line = window.lines[window.numbers.index(document.number)]
        try:
            decoded = self._makers[window.shard.name].decoder.decode(line)
        except BadDocument:  # its text alone is trained on
            decoded = Document("", None, {})
        return ExplainedDocument(
            name=f"{window.shard.name}:{document.number}",
            rendered=rendered,
            chunks=document.chunks,
            sequences=sequences,
            present=tuple(key for key in metadata.metadata_list if decoded.has(key)),
            lacking=tuple(key for key in self._config.types or () if key not in rendered.types),
        )

    def _is_asked_for(self, shard: Shard) -> bool:
        return self._config.document is not None and shard is self._shards[self._place]

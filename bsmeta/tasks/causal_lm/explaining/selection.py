"""Selects the documents to show, and the windows of the training data that contain them.

`bsmeta.data` builds the windows exactly as for training, so a document is shown as a run trains on
it: its metadata, its chunks, and the sequences that they share with other documents. The only
exception is `types`, which replaces the random choice of metadata.
"""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, check_data, describe_train_files
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.metadata import MetadataConfig, compute_phase_starts
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.corpora import Corpus, deal_corpora, open_corpora
from bsmeta.data.stream.held_out import read_held_out
from bsmeta.data.stream.plan import Share
from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.stream.survey import read_checked_lines
from bsmeta.data.stream.window import Window
from bsmeta.data.stream.window_maker import WindowMaker
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type, map_columns
from bsmeta.metadata.records import BadDocument
from bsmeta.tasks.causal_lm.explaining.windows import (
    ExplainedDocument,
    ExplainedWindow,
    PackedChunk,
)

MAX_NAMES_SHOWN = 5
"""Maximum number of shards that a message names."""

logger = logging.getLogger(__name__)


def select_types(metadata: MetadataConfig, types: Sequence[str]) -> MetadataConfig:
    """Returns the configuration under which a document gets all of `types` that it has.

    Raises:
        ConfigurationError: If types are not in `metadata_list`; the message names them.
    """
    all_types = metadata.metadata_list
    unknown = [name for name in types if name not in all_types]
    if unknown:
        keys = map_columns()
        hints = [f"{name} is the column of {keys[name]}" for name in unknown if name in keys]
        raise ConfigurationError(
            f"types={list(types)}: {', '.join(unknown)} not in data_config.metadata_config."
            f"metadata_list; expected some of {', '.join(all_types)}, or add to that list"
            + "".join(f" ({hint})" for hint in hints)
        )

    rates: dict[str, Any] = {}
    for name in all_types:
        rate_key = find_type(name).sample_rate_key
        if rate_key is not None:
            rates[rate_key] = 1.0
    return dataclasses.replace(
        metadata,
        schedule=[],
        metadata_probability=1.0 if types else 0.0,
        random_sample_metadata=False,
        metadata_dropout={name: 1.0 for name in all_types if name not in types},
        **rates,
    )


class Start(NamedTuple):
    """The first document to show: the index of its shard, and its number in the shard."""

    shard: int = 0
    document: int = 0


def find_document(name: str, shards: Sequence[Shard], data: DataConfig) -> Start:
    """Finds a document by its name.

    Raises:
        ConfigurationError: If the name is not `<shard>:<number>`, or training has no such shard.
    """
    shard_names = [shard.name for shard in shards]
    match = re.fullmatch(r"(.+):([0-9]{1,15})", name)
    if match is None:
        raise ConfigurationError(
            f"document={name}: expected <shard>:<number>, such as {shard_names[0]}:0"
        )

    shard_name, number = match.groups()
    if shard_name in shard_names:
        return Start(shard_names.index(shard_name), int(number))

    problem = f"document={name}: training reads no shard of the name {shard_name}"
    if data.validation_file and shard_name == os.path.basename(data.validation_file):
        raise ConfigurationError(
            f"{problem}: it is the held-out file; data_config.validation_file=null would not "
            "leave it out"
        )
    similar = difflib.get_close_matches(shard_name, shard_names, n=MAX_NAMES_SHOWN, cutoff=0.0)
    others = ""
    if len(shard_names) > len(similar):
        others = f" or {len(shard_names) - len(similar)} others"
    raise ConfigurationError(
        f"{problem}; expected {', '.join(similar)}{others} "
        f"(data_config.train_file={describe_train_files(data)})"
    )


def _find_start(name: str | None, shards: Sequence[Shard], data: DataConfig) -> Start:
    """Returns the first document to show; None: the first of all."""
    return Start() if name is None else find_document(name, shards, data)


def _set_types(data: DataConfig, types: Sequence[str] | None) -> DataConfig:
    """Returns the configuration with `types` selected (see `select_types`); None: as it is."""
    if types is None:
        return data
    return dataclasses.replace(data, metadata_config=select_types(data.metadata_config, types))


def _find_phase(config: ExplainConfig, metadata: MetadataConfig) -> int:
    """Returns the index of the metadata phase in which `config.step` is."""
    steps = config.max_train_steps
    starts = compute_phase_starts(metadata, steps, RatePlan.of(config, steps).decay_start)
    return bisect.bisect_left(starts, config.step) - 1


def _group_shares(data: DataConfig, corpora: Sequence[Corpus]) -> dict[str, list[Share]]:
    """Returns the shares of each shard among the streams, by the shard's name."""
    shares: dict[str, list[Share]] = {
        shard.name: [] for corpus in corpora for shard in corpus.shards
    }
    for streams in deal_corpora(data, corpora):
        for share in itertools.chain.from_iterable(streams):
            shares[share.shard.name].append(share)
    return shares


def _build_makers(
    data: DataConfig, corpora: Sequence[Corpus], tokenizer: PreTrainedTokenizerBase, seed: int
) -> dict[str, WindowMaker]:
    """Reads the held-out file and the first lines of each corpus, and builds its window maker.

    Returns:
        The window maker of each shard, by the shard's name; all shards of a corpus share one.

    Raises:
        ConfigurationError: If a corpus has no document, or a configured column is in none of its
            first documents.
        DataError: If the held-out documents cannot be read.
    """
    held_out = read_held_out(data)
    makers: dict[str, WindowMaker] = {}
    for corpus in corpora:
        maker = WindowMaker(
            corpus.config,
            tokenizer,
            seed,
            source=corpus.name,
            held_out=held_out,
            sample=read_checked_lines(data, corpus),
        )
        for shard in corpus.shards:
            makers[shard.name] = maker
    return makers


class Selection:
    """Iterates over the windows that contain the documents to show.

    Args:
        tokenizer: The tokenizer of the run, with the special tokens of the metadata.

    Raises:
        ConfigurationError: If a value is invalid, or names a shard or a type that the
            configuration does not have.
        DataError: If shards are missing.
    """

    def __init__(self, config: ExplainConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        check_data(config.data_config)
        self._config = config
        self._data = _set_types(config.data_config, config.types)
        self._phase = _find_phase(config, self._data.metadata_config)

        corpora = open_corpora(self._data)
        self._shards = [shard for corpus in corpora for shard in corpus.shards]
        self._start = _find_start(config.document, self._shards, self._data)

        self._indexes = IndexCache(Cache(self._data.cache_dir))
        self._shares = _group_shares(self._data, corpora)
        self._makers = _build_makers(self._data, corpora, tokenizer, config.seed)

    def __iter__(self) -> Iterator[ExplainedWindow]:
        """Yields the windows, each with at least one document to show.

        Raises:
            ConfigurationError: If the requested document does not exist, or training skips it.
            DataError: If a document of a window is bad and `bad_documents` is strict.
        """
        remaining = self._config.limit
        for index, shard in enumerate(self._shards[self._start.shard :]):
            first_document = self._start.document if index == 0 else 0
            for window in self._iterate_windows(shard, first_document):
                explained_window = self._explain_window(window, first_document, remaining)
                remaining -= len(explained_window.documents)
                if explained_window.documents:
                    yield explained_window
                if not remaining:
                    return

        logger.warning(
            "limit=%d: the data ends after %d documents",
            self._config.limit,
            self._config.limit - remaining,
        )

    def _iterate_windows(self, shard: Shard, start: int) -> Iterator[Window]:
        """Yields the windows of a shard from document `start` on, beginning with its window.

        If streams share the shard, each window has documents of only one stream.
        """
        size = self._data.window_documents

        def starts_elsewhere(share: Share) -> bool:
            return start not in share.list_documents(share.find_window(start, size), size)

        reader = open_shard(shard.path, self._indexes)
        for share in sorted(self._shares[shard.name], key=starts_elsewhere):
            for number in itertools.count(share.find_window(start, size)):
                numbers = share.list_documents(number, size)
                lines = reader.take(numbers)
                is_missing = start in numbers[len(lines) :] and not reader.damage
                if is_missing and self._is_requested(shard):
                    self._refuse_missing(shard, start, reader.line)
                if lines or reader.damage:
                    yield Window(self._config.epoch, shard, numbers, lines, reader.damage)
                if len(lines) < size:
                    break
        reader.close()

    def _refuse_missing(self, shard: Shard, number: int, count: int) -> None:
        """Raises an error for a document that is not in its shard.

        Args:
            count: The number of documents in the shard.

        Raises:
            ConfigurationError: Always.
        """
        problem = f"document={shard.name}:{number}: the shard has "
        if not count:
            raise ConfigurationError(f"{problem}no documents")
        raise ConfigurationError(
            f"{problem}{count} documents; expected a number from 0 to {count - 1}"
        )

    def _explain_window(self, window: Window, start: int, limit: int) -> ExplainedWindow:
        """Packs a window, and selects up to `limit` of its documents from number `start`."""
        maker = self._makers[window.shard.name]
        documents, skip_counts = maker.prepare_documents(window, self._phase)
        for reason, count in skip_counts.items():
            logger.warning("%s: %d documents skipped: %s", window.shard.name, count, reason)

        packed_window = maker.pack(window, documents)
        sequence_by_chunk: dict[int, int] = {}
        for sequence, chunk_indices in enumerate(packed_window.packing):
            for chunk_index in chunk_indices:
                sequence_by_chunk[chunk_index] = sequence

        chunks = iter(packed_window.chunks)
        packed_chunks: list[PackedChunk] = []
        explained_documents: list[ExplainedDocument] = []
        for document in documents:
            # Packing may have cut the chunks; these are trained on.
            document.chunks = list(itertools.islice(chunks, len(document.chunks)))
            first = len(packed_chunks)
            packed_chunks += self._describe_chunks(document)
            if document.number >= start and len(explained_documents) < limit:
                sequences = [sequence_by_chunk[index] for index in range(first, len(packed_chunks))]
                explained_documents.append(self._explain_document(window, document, sequences))

        last_read = window.numbers[max(len(window.lines), 1) - 1]
        is_requested = self._is_requested(window.shard) and start in window.numbers
        if is_requested and all(document.number != start for document in documents):
            self._refuse_skipped(window, start, last_read, skip_counts)

        packed_sequences = []
        for chunk_indices in packed_window.packing:
            packed_sequences.append([packed_chunks[index] for index in chunk_indices])
        return ExplainedWindow(
            shard=window.shard.name,
            first=window.numbers[0],
            last=last_read,
            count=len(window.lines),
            documents=explained_documents,
            sequences=packed_sequences,
            capacity=self._data.metadata_config.max_seq_len,
            by_text=self._data.row_budget == BY_TEXT,
        )

    def _describe_chunks(self, document: WindowDocument) -> Iterator[PackedChunk]:
        """Yields the numbers and lengths of a document's chunks."""
        for index, chunk in enumerate(document.chunks):
            budgeted_length = len(chunk)
            if self._data.row_budget == BY_TEXT:
                budgeted_length -= chunk.metadata_length
            yield PackedChunk(
                number=document.number,
                index=index,
                count=len(document.chunks),
                length=len(chunk),
                budgeted_length=budgeted_length,
            )

    def _refuse_skipped(
        self, window: Window, number: int, last: int, skipped: Counter[str]
    ) -> None:
        """Raises an error for a requested document that training skips.

        Args:
            number: Number of the document in its shard.
            last: Number of the last document of the window.
            skipped: Number of documents of the window that are skipped, by reason.

        Raises:
            ConfigurationError: Always.
        """
        reasons = ", ".join(f"{count} for {reason}" for reason, count in skipped.items())
        raise ConfigurationError(
            f"document={window.shard.name}:{number}: training skips it (of documents "
            f"{window.numbers[0]} to {last} it skips {reasons}); "
            "data_config.bad_documents=strict and on_test_overlap=error say what is wrong"
        )

    def _explain_document(
        self, window: Window, document: WindowDocument, sequences: list[int]
    ) -> ExplainedDocument:
        """Collects what is shown of a document, whose chunks are in these sequences."""
        metadata = self._data.metadata_config
        rendered = document.rendered
        if metadata.without_metadata_same_context:
            rendered = rendered.without_metadata()

        line = window.lines[window.numbers.index(document.number)]
        try:
            decoded = self._makers[window.shard.name].decoder.decode(line)
        except BadDocument:  # only its text is trained on
            decoded = Document("", None, {})
        return ExplainedDocument(
            name=f"{window.shard.name}:{document.number}",
            rendered=rendered,
            chunks=document.chunks,
            sequences=sequences,
            present=tuple(key for key in metadata.metadata_list if decoded.has(key)),
            lacking=tuple(key for key in self._config.types or () if key not in rendered.types),
        )

    def _is_requested(self, shard: Shard) -> bool:
        """Whether the configuration names a document of this shard."""
        return self._config.document is not None and shard is self._shards[self._start.shard]

"""The encoded sentences of a file: an Arrow store, built once and memory-mapped by all processes.

    lines -> rows (chunks) -> tokens -> Arrow

A row is a sentence, or a part of one that fits the limits (`divide_sentence`). Its columns are
`sentence` (`sent_idx_unq`), `line` (in the file), `document` (a hash of its name) and `input_ids`
(without special tokens); and for each mention `start` and `end` (in tokens of the row), `alias`
(its number in the table), `entities` (the numbers of its meanings), `gold` (False for a weak
label), `position` (among the mentions of the line) and `slices` (names). A store for a mention
detector also has the `tags` of all tokens (`tagging`).

Lines are encoded in groups. An interrupted build keeps completed groups.
"""

from __future__ import annotations

import json
import logging
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import hash_file
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import show_file_bar, show_progress_bar
from bsmeta.core.signals import reset_signals_of_children
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import MIN_INDEXED_BYTES, IndexCache, LineReader
from bsmeta.data.table.store import open_store, read_saved_key
from bsmeta.data.text.tokenizer import fingerprint_tokenizer, tokenize_with_spans
from bsmeta.tasks.disambiguation.entities import (
    MAX_EXAMPLES,
    EntityTable,
    describe_versions,
    format_examples,
)
from bsmeta.tasks.disambiguation.lines import (
    FileScan,
    Line,
    Problems,
    find_word_spans,
    read_part,
    scan_lines,
    warn_of_unused_fields,
)
from bsmeta.tasks.disambiguation.tagging import LineTagger
from bsmeta.tasks.disambiguation.texts import (
    Chunk,
    Limits,
    Row,
    divide_sentence,
    find_overlaps,
    pad_sequences,
)

if TYPE_CHECKING:
    from datasets import Dataset, Features

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the store; increment it when the same lines and settings give other rows."""
_ENTITIES_KEY = "data_config.entity_table"
LINES_PER_PART = 500
"""Number of lines that are encoded together."""
PARTS_PER_GROUP = 40
"""Number of parts per process in a group; an interrupted build loses the parts of one group."""
_HASHED_ROWS = 10_000  # rows that are read at a time to hash their tokens
_REMEDY = "build it again with data_config.overwrite_prep=true"
_MAX_NAMED_LINES = 5  # with lost mentions, in a warning

_ROW_COLUMNS = {"sentence": "int64", "line": "uint32", "document": "int64", "lost": "uint32"}
_MENTION_COLUMNS = {
    "start": "uint16",
    "end": "uint16",
    "alias": "int32",
    "gold": "bool",
    "position": "uint32",
}


class Meanings(NamedTuple):
    """The meanings of mentions, int64 [meanings] each; a mention may have several."""

    entities: np.ndarray
    documents: np.ndarray  # of the mention
    aliases: np.ndarray  # of the mention


@dataclass(frozen=True)
class Sentences:
    """The encoded sentences of a file.

    Attributes:
        path: The file.
        rows: The rows; see the module for their columns.
        facts: `sentences`, `rows`, `mentions`, `lost` (number of mentions that fit no row),
            `bytes_per_mention`, and `slices` (names of slices that lines define).
        key: Hashes and settings that determine the rows.
        is_gold_only: Whether weak labels are left out of the rows.
    """

    path: Path
    rows: Dataset
    facts: dict[str, Any]
    key: dict[str, Any]
    is_gold_only: bool = False

    def __str__(self) -> str:
        return (
            "{sentences:,} sentences, {rows:,} rows, {mentions:,} mentions ({lost:,} left out), "
            "{bytes_per_mention:.0f} bytes a mention"
        ).format(**self.facts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, int64 [rows]."""
        lengths = self._read_column("input_ids").value_lengths()
        return np.asarray(lengths.to_numpy()).astype(np.int64)

    def read(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """Reads rows by their numbers in the store."""
        columns = self.rows[[int(number) for number in numbers]]
        rows = []
        for number, *values in zip(numbers, *columns.values(), strict=True):
            record = dict(zip(columns, values, strict=True))

            row = Row(
                number=int(number),
                sentence=record["sentence"],
                document=record["document"],
                tokens=np.array(record["input_ids"], np.int64),
                starts=np.array(record["start"], np.int64),
                ends=np.array(record["end"], np.int64),
                aliases=np.array(record["alias"], np.int64),
                entities=pad_sequences(record["entities"], -1),
                is_gold=np.array(record["gold"], bool),
                positions=np.array(record["position"], np.int64),
                slices=[tuple(names) for names in record["slices"]],
                tags=np.array(record["tags"], np.uint8) if "tags" in record else None,
            )
            rows.append(_drop_weak_labels(row) if self.is_gold_only else row)
        return rows

    def read_gold(self) -> list[Row]:
        """Reads all rows with a gold mention, without weak labels.

        Raises:
            DataError: If there are none.
        """
        all_rows = (_drop_weak_labels(row) for row in self.read(range(len(self.rows))))
        rows = [row for row in all_rows if len(row.aliases)]
        if not rows:
            raise DataError(f"{self.path} has no gold mention to score, only weak labels")
        return rows

    def select_gold(self) -> Sentences:
        """Returns the rows with a gold mention, without their weak labels.

        Raises:
            DataError: If there are none.
        """
        gold = self._read_column("gold")
        rows_of_mentions = np.repeat(np.arange(len(gold)), gold.value_lengths().to_numpy())
        is_gold = gold.flatten().to_numpy(zero_copy_only=False)
        numbers = np.unique(rows_of_mentions[is_gold])
        if not len(numbers):
            raise DataError(
                f"{self.path} has no gold mention to train on, only weak labels; expected some "
                "with data_config.use_weak_labels=false. Fix: data_config.use_weak_labels=true"
            )
        key = {**self.key, "data_config.use_weak_labels": False}
        return replace(self, rows=self.rows.select(numbers), key=key, is_gold_only=True)

    def hash_rows(self) -> np.ndarray:
        """Hashes the tokens of each row, uint64 [rows]."""
        hashes = array("Q")
        rows = self.rows.select_columns(["input_ids"]).with_format("arrow")
        for batch in rows.iter(_HASHED_ROWS):
            tokens = batch["input_ids"].combine_chunks()
            ends = np.cumsum(tokens.value_lengths().to_numpy())
            hashes.extend(map(_hash_tokens, np.split(tokens.flatten().to_numpy(), ends[:-1])))
        return np.frombuffer(hashes, np.uint64)

    def read_aliases(self) -> np.ndarray:
        """Reads the aliases of all mentions as int64."""
        values = self._read_column("alias").flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).astype(np.int64)[self._select_mentions()]

    def read_meanings(self) -> Meanings:
        """Reads the entities of all mentions, with weak labels unless they are left out."""
        is_selected = self._select_mentions()
        entities_per_mention = self._read_column("entities").flatten()
        entities_per_mention = entities_per_mention.filter(pa.array(is_selected))
        counts = entities_per_mention.value_lengths().to_numpy()
        entities = entities_per_mention.flatten().to_numpy().astype(np.int64)

        mentions_per_row = self._read_column("alias").value_lengths().to_numpy()
        row_documents = self._read_column("document").to_numpy().astype(np.int64)
        documents = np.repeat(row_documents, mentions_per_row)[is_selected]
        return Meanings(
            entities=entities,
            documents=np.repeat(documents, counts),
            aliases=np.repeat(self.read_aliases(), counts),
        )

    def _select_mentions(self) -> np.ndarray:
        """Returns which mentions of the rows are used, bool [mentions]."""
        gold = self._read_column("gold").flatten().to_numpy(zero_copy_only=False)
        return gold.astype(bool) if self.is_gold_only else np.ones(len(gold), bool)

    def _read_column(self, name: str) -> Any:
        return self.rows.with_format("arrow")[:][name].combine_chunks()


def count_shared_sentences(rows: Sequence[Row], other: Sentences) -> int:
    """Counts the sentences of rows whose tokens are also in another file.

    Of a sentence that is divided into rows, it suffices that the file has one of them.
    """
    hashes = np.array([_hash_tokens(row.tokens) for row in rows], np.uint64)
    is_shared = np.isin(hashes, other.hash_rows())
    return len({row.sentence for row, shared in zip(rows, is_shared, strict=True) if shared})


def _hash_tokens(tokens: np.ndarray) -> int:
    """Returns a 64-bit hash of the tokens of a row, of any integer type."""
    return xxhash.xxh3_64_intdigest(tokens.astype(np.int64).tobytes())


def _drop_weak_labels(row: Row) -> Row:
    """Returns a row with only its gold mentions."""
    if row.is_gold.all():
        return row
    names = ("starts", "ends", "aliases", "entities", "is_gold", "positions")
    arrays: dict[str, Any] = {name: getattr(row, name)[row.is_gold] for name in names}
    gold_slices = [
        slices for slices, is_gold in zip(row.slices, row.is_gold, strict=True) if is_gold
    ]
    return replace(row, **arrays, slices=gold_slices)


def open_prep(
    path: Path,
    table: EntityTable,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    limits: Limits,
    *,
    by_content: bool = False,
    tagger: LineTagger | None = None,
    workers: int = 1,
    overwrite: bool = False,
) -> Sentences:
    """Opens the encoded sentences of a file; builds the store first if it does not exist.

    Every process of a run calls this function: one per machine builds the store while the others
    wait. A store that was built before entities were added to the table remains valid.

    Args:
        by_content: Whether to append a hash of the file's content and the settings to the name of
            the folder, so that any file has its own store, which is never stale.
        tagger: Tags the tokens; None: the store has no tags.
        workers: Number of processes that encode.
        overwrite: Whether to rebuild a store that was built from another file or with other
            settings.

    Raises:
        ConfigurationError: If the store was built from another file or with other settings, or has
            mentions that the table has lost.
        DataError: If lines are invalid, or the store is damaged or cannot be written.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected lines of sentences")

    encoder = Encoder(path, table, tokenizer, limits, tagger)
    key = {
        "format": FORMAT,
        "file": hash_file(path),
        "tokenizer": fingerprint_tokenizer(tokenizer),
        _ENTITIES_KEY: table.fingerprint,
        "data_config.max_mentions": limits.mentions,
        "data_config.max_words": limits.words,
        "max_tokens": limits.tokens,
    }
    if tagger is not None:
        key |= tagger.key
    if by_content:
        folder = folder.with_name(f"{folder.name}-{_hash_key(key)}")

    open_sentences = partial(_open_sentences, encoder, folder, workers=workers, overwrite=overwrite)
    # A store that was built with an earlier version of the table is valid unless its mentions have
    # been removed since, so its key is kept.
    saved_entities = read_saved_key(folder).get(_ENTITIES_KEY, "")
    changes = table.list_changes(saved_entities)
    if changes is None:
        sentences = open_sentences(key)
    else:
        sentences = open_sentences({**key, _ENTITIES_KEY: saved_entities})
        lost = _describe_lost_mentions(sentences, table)
        if lost and overwrite:
            sentences = open_sentences(key)
        elif lost:
            raise ConfigurationError(
                f"{folder} was built before {table.folder} was edited (since then: "
                f"{describe_versions(changes)}), and has {lost}; take them out of {path}, or add "
                f"the entities again; then {_REMEDY}"
            )
    logger.info("%s: %s", path, sentences)
    return sentences


def _open_sentences(
    encoder: Encoder, folder: Path, key: dict[str, Any], *, workers: int, overwrite: bool
) -> Sentences:
    """Opens a store of encoded sentences; builds it first if it does not exist.

    Args:
        key: The settings of the store.
        workers: Number of processes that encode.
        overwrite: Whether to rebuild a store with another key.

    Raises:
        ConfigurationError: If the store has another key.
        DataError: If lines are invalid, or the store is damaged or cannot be written.
    """
    work = folder.with_name(f"{folder.name}.work")
    with reset_signals_of_children():  # the processes of `Dataset.map`
        rows = open_store(
            folder,
            key,
            lambda: _encode_sentences(encoder, work, _hash_key(key), workers),
            overwrite=overwrite,
            remedy=_REMEDY,
        )
    shutil.rmtree(work, ignore_errors=True)

    facts = parse_json(rows.info.description)
    size = sum(file.stat().st_size for file in folder.glob("*.arrow"))
    facts["bytes_per_mention"] = size / facts["mentions"]
    return Sentences(encoder.path, rows, facts, read_saved_key(folder))


def _describe_lost_mentions(sentences: Sentences, table: EntityTable) -> str:
    """Describes the mentions of removed entities, or of aliases without candidates; "" if none."""
    entities = sentences.read_meanings().entities
    removed = entities[np.isin(entities, table.removed)]
    if len(removed):
        names = [table.ids[entity] for entity in np.unique(removed).tolist()]
        examples = format_examples(names[:MAX_EXAMPLES], len(names))
        return f"{len(removed):,} mentions of removed entities ({examples})"

    aliases = sentences.read_aliases()
    without = aliases[~table.has_candidates(aliases)]
    if len(without):
        names = [table.aliases[alias] for alias in np.unique(without).tolist()]
        examples = format_examples(names[:MAX_EXAMPLES], len(names))
        return f"{len(without):,} mentions of aliases without an entity ({examples})"
    return ""


def _hash_key(key: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(key).encode())


def _encode_sentences(encoder: Encoder, work: Path, digest: str, workers: int) -> Dataset:
    """Encodes all lines in groups; completed groups are read from `work`.

    Args:
        work: Folder of the groups.
        digest: Hash of the settings, for the names of the groups.

    Raises:
        DataError: If lines are invalid, or there is no mention.
    """
    from datasets import Dataset, concatenate_datasets, disable_progress_bars

    disable_progress_bars()  # they would fill log files
    path = encoder.path
    encoder.index_folder = _build_index(path, work / "index")
    scan = _scan_and_warn(path)

    features = _build_features(encoder)
    first_lines = range(0, scan.lines, LINES_PER_PART)
    work.mkdir(parents=True, exist_ok=True)
    groups = []
    with show_progress_bar(f"encoding {path.name}", scan.lines) as show:
        encoder.advance = lambda lines: show(min(lines, scan.lines))
        for start in range(0, len(first_lines), PARTS_PER_GROUP * workers):
            group = first_lines[start : start + PARTS_PER_GROUP * workers]
            name = f"{digest}-{group[0]}-{len(group)}"
            groups.append(
                Dataset.from_dict({"first": list(group)}).map(
                    encoder,
                    batched=True,
                    batch_size=1,
                    num_proc=workers if workers > 1 else None,
                    features=features,
                    remove_columns=["first"],
                    cache_file_name=str(work / f"{name}.arrow"),
                    load_from_cache_file=True,
                    new_fingerprint=name,
                )
            )
            encoder.advance(group[-1] + LINES_PER_PART)

    if not groups:
        raise DataError(f"{path} is empty; expected lines of sentences")
    return _finish_rows(concatenate_datasets(groups), path, scan)


def _build_features(encoder: Encoder) -> Features:
    """Returns the types of the columns of a store."""
    from datasets import Features, List, Value

    features = {name: Value(dtype) for name, dtype in _ROW_COLUMNS.items()}
    small = len(encoder.tokenizer) <= 1 << 16
    features["input_ids"] = List(Value("uint16" if small else "int32"))
    features |= {name: List(Value(dtype)) for name, dtype in _MENTION_COLUMNS.items()}
    features["entities"] = List(List(Value("int32")))
    features["slices"] = List(List(Value("string")))
    if encoder.has_tags:
        features["tags"] = List(Value("uint8"))
    return Features(features)


def _scan_and_warn(path: Path) -> FileScan:
    """Scans a file; warns about unused fields, and about aliases that are not caseless."""
    with show_file_bar(path, f"reading {path.name}") as advance:
        scan = scan_lines(path, advance)
    warn_of_unused_fields(path, scan.unused)
    if scan.respelled:
        logger.warning(
            "%s: aliases that are looked up in lower case, composed, with single spaces: %d",
            path,
            scan.respelled,
        )
    return scan


def _build_index(path: Path, folder: Path) -> Path | None:
    """Builds an index of a large file, so that reading can start at any line quickly.

    Returns:
        The folder of the index; None for a small file.
    """
    if path.stat().st_size < MIN_INDEXED_BYTES:
        return None
    try:
        IndexCache(Cache(str(folder))).build(str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return folder


def _finish_rows(rows: Dataset, path: Path, scan: FileScan) -> Dataset:
    """Checks rows, drops those without a mention, and attaches facts about them."""
    counts = pc.list_value_length(rows.data.column("alias")).to_numpy()
    if not counts.sum():
        raise DataError(f"{path} has no mention of an entity that can be used")

    lines = rows.data.column("line").to_numpy()
    lost = rows.data.column("lost").to_numpy()
    _refuse_repeated_sentences(path, rows.data.column("sentence").to_numpy(), lines)
    if lost.any():
        first_lines = ", ".join(map(str, lines[lost > 0][:_MAX_NAMED_LINES]))
        logger.warning(
            "%s: mentions left out because a row cannot hold them, or they have no token: %d "
            "(first lines: %s)",
            path,
            lost.sum(),
            first_lines,
        )

    facts = {
        "sentences": len(np.unique(lines[counts > 0])),
        "rows": int((counts > 0).sum()),
        "mentions": int(counts.sum()),
        "lost": int(lost.sum()),
        "slices": scan.slices,
    }
    if not counts.all():
        rows = rows.select(np.flatnonzero(counts))
    rows = rows.remove_columns("lost")
    rows.info.description = json.dumps(facts)
    return rows


def _refuse_repeated_sentences(path: Path, sentences: np.ndarray, lines: np.ndarray) -> None:
    """Raises DataError if two lines have the same `sent_idx_unq`."""
    order = np.lexsort((lines, sentences))
    sentences = sentences[order]
    lines = lines[order]

    is_repeated = (sentences[1:] == sentences[:-1]) & (lines[1:] != lines[:-1])
    problems = Problems(path)
    for index in np.flatnonzero(is_repeated):
        reason = f"sent_idx_unq {sentences[index]} is that of line {lines[index]:,}, too"
        problems.add(int(lines[index + 1]), reason)
    problems.close()


def _ignore(_: float) -> None:
    """Shows no progress."""


class Encoder:
    """Encodes lines of a file; called by `Dataset.map`, in any process.

    Attributes:
        index_folder: The index of the file; None for a small file.
        advance: Called with the number of encoded lines after each part, in the process that builds
            the store; in those of a pool it does nothing.
    """

    def __init__(
        self,
        path: Path,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        tagger: LineTagger | None = None,
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.index_folder: Path | None = None
        self.advance: Callable[[float], None] = _ignore
        self._table = table
        self._limits = limits
        self._tagger = tagger
        self._reader: LineReader | None = None

        # Encoding switches off truncation, which is part of the tokenizer's fingerprint.
        list(tokenize_with_spans(tokenizer, [""]))

    @property
    def has_tags(self) -> bool:
        """Whether rows have the tags of their tokens."""
        return self._tagger is not None

    def __getstate__(self) -> dict[str, Any]:
        # Each process opens the file, and only one shows the progress.
        return {**self.__dict__, "_reader": None, "advance": _ignore}

    def __call__(self, parts: dict[str, list[int]]) -> dict[str, list[Any]]:
        """Encodes parts of the file.

        Args:
            parts: `first`: the first line of each part, from 0.

        Returns:
            The columns of the rows.
        """
        if self._reader is None:
            indexes = IndexCache(Cache(str(self.index_folder))) if self.index_folder else None
            self._reader = LineReader(str(self.path), indexes)

        rows: list[dict[str, Any]] = []
        for first in parts["first"]:
            rows += self.encode_part(self._reader, first)
            self.advance(first + LINES_PER_PART)

        names = [*_ROW_COLUMNS, "input_ids", *_MENTION_COLUMNS, "entities", "slices"]
        if self.has_tags:
            names.append("tags")
        return {name: [row[name] for row in rows] for name in names}

    def encode_part(self, reader: LineReader, first: int) -> Iterator[dict[str, Any]]:
        """Encodes `LINES_PER_PART` lines from line `first` on; yields rows.

        Raises:
            DataError: Lists the problems of these lines.
        """
        problems = Problems(self.path)
        lines = list(read_part(reader, problems, first, LINES_PER_PART))
        numbers = [self._find_numbers(line, problems) for line in lines]
        problems.close()

        encoded = tokenize_with_spans(self.tokenizer, [line.text for line in lines])
        for line, (aliases, entities), (ids, tokens) in zip(lines, numbers, encoded, strict=True):
            tags = None if self._tagger is None else self._tagger.tag(line, tokens)
            for row in self._divide_line(line, tokens):
                token_range = row.pop("tokens")
                row["input_ids"] = ids[token_range]
                if tags is not None:
                    row["tags"] = tags[token_range].tolist()
                row["alias"] = [aliases[position] for position in row["position"]]
                row["entities"] = [entities[position] for position in row["position"]]
                yield row

    def _find_numbers(self, line: Line, problems: Problems) -> tuple[list[int], list[list[int]]]:
        """Returns the numbers of the alias and of the entities of each mention of a line."""
        aliases = []
        entities = []
        for mention in line.mentions:
            alias = self._table.find_alias(mention.alias)
            if alias < 0:
                problems.add(line.number, f"no entity has the alias {mention.alias!r}")
            aliases.append(alias)

            meanings = [self._table.find_entity(entity_id) for entity_id in mention.entities]
            for entity_id, entity in zip(mention.entities, meanings, strict=True):
                if entity < 0:
                    is_removed = self._table.ids.find(entity_id) >= 0
                    reason = f"entity {entity_id!r} was removed from the table"
                    if not is_removed:
                        reason = f"there is no entity {entity_id!r}"
                    problems.add(line.number, reason)
            entities.append(meanings)
        return aliases, entities

    def _divide_line(self, line: Line, tokens: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields the rows of a line, with a range of tokens in place of `input_ids`."""
        spans = [(mention.start, mention.end) for mention in line.mentions]
        span_array = np.array(spans, np.int64).reshape(-1, 2)
        chunks, lost = divide_sentence(span_array, find_word_spans(line.text), tokens, self._limits)
        if lost:
            chunks.append(Chunk(0, 0, []))  # a row without mentions reports it, and is removed

        in_tokens = find_overlaps(span_array, tokens)
        document = xxhash.xxh3_64_intdigest(line.document.encode()) >> 1  # a positive int64
        for chunk in chunks:
            mentions = [line.mentions[position] for position in chunk.mentions]
            token_ranges = in_tokens[chunk.mentions] - chunk.start
            yield {
                "sentence": line.sentence,
                "line": line.number,
                "document": document,
                "lost": 0 if mentions else lost,
                "tokens": slice(chunk.start, chunk.end),
                "start": token_ranges[:, 0].tolist(),
                "end": token_ranges[:, 1].tolist(),
                "gold": [mention.is_gold for mention in mentions],
                "position": chunk.mentions,
                "slices": [list(mention.slices) for mention in mentions],
            }

"""Examples of a table: chunks of texts, which any process reads from a database by their ids.

One process of a machine builds the database once (`store`) while the others wait. A database that
was built with other settings is refused. `prep_only=true` builds it, prints a summary, and stops.

A text that exceeds the sequence length is folded: it continues in further chunks, and nothing is
truncated. Joined without special tokens, the tokens of the chunks are the tokens of the text; their
texts join to the text.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError, describe_differences, raise_problems
from bsmeta.core.files import hash_file
from bsmeta.core.log_once import log_once
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import hold_lock, report_opaque_work
from bsmeta.core.rank import read_rank
from bsmeta.core.signals import release_signals
from bsmeta.core.terminal import Console
from bsmeta.data.table.text_file import is_sqlite, open_bytes
from bsmeta.data.text.tokenizer import (
    find_special_tokens,
    fingerprint_tokenizer,
    load_tokenizer_from,
    tokenize_with_spans,
)
from bsmeta.tasks.classification import store
from bsmeta.tasks.classification.config import (
    AUTO,
    ONE,
    SEVERAL,
    ClassificationConfig,
    ClassificationDataConfig,
    find_fraction_problems,
)
from bsmeta.tasks.classification.label_sets import Labels, make_truth
from bsmeta.tasks.classification.store import CONTENT_KEY, ID_TYPE, SPLITS, Fold

FORMAT = 2
"""Version of the database; increment it when the same table and settings give other content."""

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet", ".sqlite")

_CONTENT_KEYS = (
    "text_column",
    "label_column",
    "csv_separator",
    "csv_encoding",
    "on_bad_row",
    "fold_by",
    "max_length",
    "split_by",
    "split_column",
    "split_fractions",
    "split_seed",
)
"""Keys of `data_config` that determine the content of the database."""

DEFAULT_TOKEN_LIMIT = 512
"""Maximum tokens of a chunk of words if the tokenizer states no limit of its model."""

_OPTIONAL_KEYS = ("label_separator",)
"""Keys of `data_config` that the database records only if they are set."""

_MIN_UNLIMITED_LENGTH = 10**6  # model_max_length is 1e30 for tokenizers without a limit
_WORD = re.compile(r"\S+")
_BUSY_TIMEOUT_S = 60  # for another process that writes to the database
_SUPER_JOURNAL_MAGIC = bytes.fromhex(
    "d9d505f920a163d7"
)  # ends a journal that names a super-journal
_MAX_SHOWN_LABELS = 20

# Fields in the header of an SQLite file, https://www.sqlite.org/fileformat2.html, section 1.3.
_MAGIC = b"SQLite format 3\0"
_HEADER_SIZE = 100
_PAGE_SIZE = slice(16, 18)
_PAGE_COUNT = slice(28, 32)

logger = logging.getLogger(__name__)


class Folding:
    """Cuts texts into chunks, by tokens or by words.

    Args:
        tokenizer: A fast tokenizer; its special tokens surround each chunk.
        fold_by: `tokens`: a chunk has at most `max_length` tokens, including special tokens, and
            may end within a word. `words`: a chunk has at most `max_length` words (separated by
            white space), and at most the tokens that `compute_words_limit` returns; only a word
            that exceeds this limit is cut.
        max_length: See `fold_by`.

    Raises:
        ConfigurationError: If the tokenizer does not report positions in the text, or `max_length`
            leaves no room beside the special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, fold_by: str, max_length: int) -> None:
        if not tokenizer.is_fast:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is a slow tokenizer, which does not "
                "give the positions of its tokens; expected one with a tokenizer.json"
            )

        self._tokenizer = tokenizer
        self._prefix, self._suffix = find_special_tokens(tokenizer)
        special_count = len(self._prefix) + len(self._suffix)

        self._max_words: int | None = None
        if fold_by == "words":
            self._max_words = max_length
            self._max_tokens = compute_words_limit(tokenizer) - special_count
        else:
            self._max_tokens = max_length - special_count

        if self._max_tokens < 1:
            raise ConfigurationError(
                f"data_config.max_length={max_length}: expected at least {special_count + 1}, "
                f"because each chunk has {special_count} special tokens"
            )

    def fold(self, texts: Sequence[str]) -> list[list[Fold]]:
        """Cuts each text into chunks, in their order; a text without tokens has none."""
        encoded = tokenize_with_spans(self._tokenizer, texts)
        return [
            self._cut(text, ids, spans) if ids else []
            for text, (ids, spans) in zip(texts, encoded, strict=True)
        ]

    def _cut(self, text: str, ids: list[int], spans: np.ndarray) -> list[Fold]:
        """Cuts a text into chunks.

        Args:
            ids: The tokens of the text.
            spans: int [tokens, 2], start and end of each token in the text, in characters.
        """
        # Some tokenizers report a start before the start of the preceding token.
        starts = np.maximum.accumulate(spans[:, 0])
        token_cuts = self._find_cuts(text, starts)
        text_cuts = [0, *(int(starts[cut]) for cut in token_cuts[1:-1]), len(text)]

        folds: list[Fold] = []
        bounds = zip(pairwise(token_cuts), pairwise(text_cuts), strict=True)
        for (first_token, end_token), (begin, end) in bounds:
            chunk_ids = [*self._prefix, *ids[first_token:end_token], *self._suffix]
            folds.append(Fold(chunk_ids, text[begin:end]))
        return folds

    def _find_cuts(self, text: str, starts: np.ndarray) -> list[int]:
        """Returns the index of the first token of each chunk, followed by the number of tokens.

        Args:
            starts: int [tokens], where each token starts in the text.
        """
        total = len(starts)
        if self._max_words is None:
            return [*range(0, total, self._max_tokens), total]

        word_ends = np.array([match.end() for match in _WORD.finditer(text)], np.int64)
        # White space belongs to the word after it; at the end of the text, to the last word.
        words = np.searchsorted(word_ends[:-1], starts, side="right")
        cuts = [0]
        while cuts[-1] < total:
            first_token = cuts[-1]
            end = np.searchsorted(words, words[first_token] + self._max_words)
            limit = first_token + self._max_tokens
            if end > limit:
                # End after the last whole word within the limit; cut a first word beyond it.
                word_begin = np.searchsorted(words, words[limit])
                end = word_begin if word_begin > first_token else limit
            cuts.append(int(end))
        return cuts


def compute_words_limit(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the maximum tokens of a chunk of words, including special tokens."""
    stated = int(tokenizer.model_max_length)
    return stated if stated < _MIN_UNLIMITED_LENGTH else DEFAULT_TOKEN_LIMIT


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a source text that fits into the model, and the label of the text."""

    ids: list[int]  # tokens, with the special tokens of the model
    label: Labels  # index in `Examples.labels`; or indexes, if a text may have several labels
    source: int  # number of the source row in the table, from 1
    number: int  # index among the chunks of the text
    text: str


def make_chunks(folds: Sequence[Fold], label: Labels, source: int) -> list[Chunk]:
    """Makes the chunks of a text."""
    return [Chunk(fold.ids, label, source, n, fold.text) for n, fold in enumerate(folds)]


def open_examples(config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase) -> Examples:
    """Opens the examples of a table; builds the database first if there is none.

    Every process of a run calls this function: one per machine builds the database while the
    others wait.

    Raises:
        ConfigurationError: If the database was built from another CSV file or with other settings,
            or a column is missing.
        DataError: If the CSV file cannot be used, or the database is damaged.
    """
    if config.csv is None:
        raise ConfigurationError(
            "data_config.csv is not set; expected a CSV file with a text and a label column",
            ["data_config.csv"],
        )
    csv = Path(config.csv)
    raise_problems(find_fraction_problems(config.split_fractions))

    # `Folding` encodes a text, which switches truncation off. Truncation is part of the tokenizer's
    # fingerprint, so the order matters.
    folding = Folding(tokenizer, config.fold_by, config.max_length)
    key = _make_key(config, tokenizer)
    if is_sqlite(csv):
        return _check_settings(Examples(csv), key, "", config)

    name = shorten_table_name(csv)
    database = Path(config.database or csv.with_name(f"{name}.sqlite"))
    if not csv.exists() and database.exists():
        raise DataError(
            f"{csv}: there is no such file; data_config.csv={database} uses the database that was "
            "built from it"
        )
    open_bytes(csv)[1].close()  # raises an error that explains why the file cannot be read

    key = {CONTENT_KEY: hash_file(csv), **key}
    if not database.exists():
        _build_database(csv, database, config, folding, key)
    return _check_settings(Examples(database), key, f" from {csv}", config)


def _make_key(
    config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Returns the settings that determine the content of a database."""
    values = dataclasses.asdict(config)
    key = {
        "format": FORMAT,
        "tokenizer": fingerprint_tokenizer(tokenizer),
        **{f"data_config.{name}": values[name] for name in _CONTENT_KEYS},
    }
    for name in _OPTIONAL_KEYS:
        if values[name] is not None:
            key[f"data_config.{name}"] = values[name]
    return key


def shorten_table_name(path: Path) -> str:
    """Returns the name of a table's file without `.gz` and the suffix of its format."""
    name = path.name.removesuffix(".gz")
    suffix = next((suffix for suffix in TABLE_SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def _build_database(
    csv: Path,
    database: Path,
    config: ClassificationDataConfig,
    folding: Folding,
    key: dict[str, Any],
) -> None:
    """Builds the database under a lock, unless another process has built it by then."""
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(f"{database}.lock", f"the table {database}"), report_opaque_work():
            if not database.exists():
                store.build_database(csv, database, config, folding.fold, key)
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"{database} cannot be written: {error}; data_config.database=FILE names another place"
        ) from error


def _check_settings(
    examples: Examples, key: dict[str, Any], source: str, config: ClassificationDataConfig
) -> Examples:
    """Returns the examples if their database was built with the settings of `key`.

    Args:
        source: " from FILE" for the table that the database can be built from, for the message.

    Raises:
        ConfigurationError: Lists the settings that differ.
    """
    saved = {name: examples.key.get(name, "absent") for name in key}
    for name in (f"data_config.{name}" for name in _OPTIONAL_KEYS):
        if name in key or name in examples.key:
            saved[name] = examples.key.get(name)
            key = {**key, name: key.get(name)}
    if config.labels != AUTO and (config.labels == SEVERAL) != examples.has_several:
        saved["data_config.labels"] = SEVERAL if examples.has_several else ONE
        key = {**key, "data_config.labels": config.labels}
    differences = "\n".join(describe_differences(saved, key, "in the database"))
    if differences:
        raise ConfigurationError(
            f"{examples.database} was built with other settings or from another file; restore "
            f"them, name another database (data_config.database=FILE), or delete it to build it "
            f"again{source}:\n{differences}"
        )

    if read_rank() == 0:
        for warning in examples.facts["warnings"]:
            log_once(logger, logging.WARNING, f"{examples.facts['csv']}: {warning}")
    return examples


def prepare_examples(config: ClassificationConfig) -> None:
    """Builds or opens the database, and prints a table of its splits and labels."""
    release_signals()  # a signal may end the process at once, because nothing is saved in between
    tokenizer = load_tokenizer_from(config.tokenizer_name or config.model_name)
    examples = open_examples(config.data_config, tokenizer)
    if read_rank() != 0:
        return

    facts = examples.facts
    lines = [f"{facts['csv']} -> {examples.database}", *facts["notes"]]
    if facts["skipped"]:
        lines.append(f"{facts['skipped']:,} bad rows left out")
    console = Console()
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    console.print(_make_split_table(examples))


def _make_split_table(examples: Examples) -> Table:
    """Makes a table of source rows and chunks by split, and of source rows by label."""
    table = Table(title=f"{len(examples.labels):,} labels")
    for heading in ("", *SPLITS):
        table.add_column(heading, justify="right" if heading else "left")

    sizes = {
        "source rows": [len(examples.list_sources(split)) for split in SPLITS],
        "chunks": [len(examples.list_chunks(split)) for split in SPLITS],
    }
    if examples.key["data_config.split_by"] is not None:
        sizes["groups"] = [len({*examples.list_groups(split)}) for split in SPLITS]
    for name, values in sizes.items():
        table.add_row(name, *(f"{value:,}" for value in values))

    table.add_section()
    counts = [examples.count_labels(split) for split in SPLITS]
    for label in examples.labels[:_MAX_SHOWN_LABELS]:
        table.add_row(label, *(f"{count[label]:,}" for count in counts))
    if len(examples.labels) > _MAX_SHOWN_LABELS:
        table.add_row(f"and {len(examples.labels) - _MAX_SHOWN_LABELS:,} more labels")
    return table


class SourceText(NamedTuple):
    """The whole text of a source row.

    Attributes:
        row: Number of the row in the table, from 1.
        label: Index of its label; or indexes, if a text may have several labels.
    """

    row: int
    text: str
    label: Labels


class Examples:
    """A database of examples, opened for reading.

    It can be used in forked loader processes, each of which opens its own connection.

    Attributes:
        database: The path of the SQLite file.
        facts: Facts about its creation: the table (csv), how it was read (notes), the number of bad
            rows (skipped), and warnings about repeated texts and labels.
        key: The settings that determine its content.
        labels: The labels in the order of their indexes.
        has_several: Whether a text may have several labels.

    Raises:
        DataError: If it is not a database of this task, or is damaged.
    """

    def __init__(self, database: Path) -> None:
        self.database = database
        self._connections: dict[int, sqlite3.Connection] = {}
        _check_file(database)

        self.facts = {name: parse_json(value) for name, value in self._query("SELECT * FROM facts")}
        self.key: dict[str, Any] = self.facts.pop("key")
        names = self._query("SELECT name FROM labels ORDER BY number")
        self.labels = tuple(name for (name,) in names)
        self._sets = _read_sets(database, self.facts.pop("label_sets", None), len(self.labels))
        self.has_several = self._sets is not None

    def list_sources(self, split: str) -> np.ndarray:
        """Returns the numbers of a split's source rows, ascending, int64 [rows]."""
        return self._read_column("row", split)

    def list_groups(self, split: str) -> list[str]:
        """Returns the group of each source row of a split, in the order of the rows.

        Without `split_by`, the group is the number of the first row with the same text.
        """
        sql = "SELECT coalesce(group_name, row) FROM sources WHERE split = ? ORDER BY row"
        return [str(group) for (group,) in self._query(sql, (SPLITS.index(split),))]

    def list_chunks(self, split: str) -> np.ndarray:
        """Returns the ids of a split's chunks, ascending, int64 [chunks]."""
        first_chunks = self._read_column("first_chunk", split)
        counts = self._read_column("chunks", split)

        # The ids of a text are consecutive: its first id, plus the index within the text.
        preceding = np.cumsum(counts) - counts
        return np.repeat(first_chunks - preceding, counts) + np.arange(counts.sum())

    def count_labels(self, split: str) -> dict[str, int]:
        """Counts the source rows of a split with each label."""
        numbers = self._read_column("label", split)
        rows = None  # weight of each entry of `numbers`; None: 1
        if self._sets is not None:
            rows_by_set = np.bincount(numbers, minlength=len(self._sets))
            if len(rows_by_set) > len(self._sets):
                raise _make_damaged_error(self.database, "a row has a set that is not there")
            numbers = np.fromiter(chain.from_iterable(self._sets), np.int64)
            rows = np.repeat(rows_by_set, [len(labels) for labels in self._sets])
        counts = np.bincount(numbers, rows, len(self.labels)).astype(np.int64)
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def read(self, chunk_ids: Sequence[int] | np.ndarray) -> list[Chunk]:
        """Reads the chunks with these ids, in this order."""
        ordered_ids = [int(chunk_id) for chunk_id in chunk_ids]
        sql = (
            "SELECT id, ids, sources.label, source, number, text FROM chunks JOIN sources "
            "ON sources.row = chunks.source WHERE id IN (SELECT value FROM json_each(?))"
        )

        chunks: dict[int, Chunk] = {}
        for chunk_id, ids, label, source, number, text in self._query(
            sql, (json.dumps(ordered_ids),)
        ):
            chunks[chunk_id] = Chunk(
                np.frombuffer(ids, ID_TYPE).tolist(), self._find_labels(label), source, number, text
            )
        return [chunks[chunk_id] for chunk_id in ordered_ids]

    def read_texts(self, split: str) -> Iterator[SourceText]:
        """Yields the whole text of each source row of a split."""
        sql = (
            "SELECT source, text, sources.label FROM chunks JOIN sources "
            "ON sources.row = chunks.source WHERE sources.split = ? ORDER BY chunks.id"
        )
        rows = self._query(sql, (SPLITS.index(split),))
        for (source, label), chunks in groupby(rows, itemgetter(0, 2)):
            whole_text = "".join(text for _, text, _ in chunks)
            yield SourceText(source, whole_text, self._find_labels(label))

    def read_truth(self, split: str) -> np.ndarray:
        """Reads the labels of a split's texts: int64 [texts], or bool [texts, labels]."""
        labels = [
            self._find_labels(number) for number in self._read_column("label", split).tolist()
        ]
        return make_truth(labels, len(self.labels), has_several=self.has_several)

    def _find_labels(self, number: int) -> Labels:
        """Returns the labels of a row from the `label` that the database stores.

        Args:
            number: Index of the label, or of the set of labels.
        """
        if self._sets is None:
            return number
        if not 0 <= number < len(self._sets):
            raise _make_damaged_error(self.database, f"there is no set of labels {number}")
        return self._sets[number]

    def save_results(self, run: str, results: dict[str, Any]) -> None:
        """Saves the results of a run in the database; to be called in one process only.

        If the database cannot be written, a warning is logged: the run folder has the results, too.

        Args:
            run: The path of the run folder.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with closing(sqlite3.connect(self.database, _BUSY_TIMEOUT_S)) as connection, connection:
                connection.execute(
                    "INSERT INTO results (run, time, results) VALUES (?, ?, ?)",
                    (run, time, json.dumps(results)),
                )
        except sqlite3.Error as error:
            logger.warning("%s does not keep the results of the run: %s", self.database, error)

    def _read_column(self, name: str, split: str) -> np.ndarray:
        """Reads a column of the table of sources, int64 [rows of the split]."""
        sql = f"SELECT {name} FROM sources WHERE split = ? ORDER BY row"
        values = (value for (value,) in self._query(sql, (SPLITS.index(split),)))
        return np.fromiter(values, np.int64)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a query; raises DataError if the database is damaged."""
        try:
            process = os.getpid()
            if process not in self._connections:
                # SQLite forbids both using and closing the parent's connection after a fork.
                uri = f"{self.database.resolve().as_uri()}?mode=ro"
                self._connections[process] = sqlite3.connect(uri, _BUSY_TIMEOUT_S, uri=True)
            yield from self._connections[process].execute(sql, values)
        except sqlite3.Error as error:
            raise _make_damaged_error(self.database, str(error)) from error


def _read_sets(database: Path, sets: Any, label_count: int) -> list[tuple[int, ...]] | None:
    """Validates the sets of labels of a database; None if its texts have one label each.

    Raises:
        DataError: If they are damaged.
    """
    if sets is None:
        return None
    try:
        label_sets = msgspec.convert(sets, list[tuple[int, ...]])
    except msgspec.ValidationError as error:
        raise _make_damaged_error(database, f"its sets of labels: {error}") from error

    for numbers in label_sets:
        for number in numbers:
            if not 0 <= number < label_count:
                reason = f"a set of labels has the number {number}, expected 0 to {label_count - 1}"
                raise _make_damaged_error(database, reason)
    return label_sets


def _make_damaged_error(database: Path, reason: str) -> DataError:
    return DataError(
        f"{database} is damaged, or not a database of this task ({reason}); delete it to build it "
        "again from the CSV file, or name another file with data_config.database"
    )


def _refuse_other_journals(database: Path, journal: Path) -> None:
    """Refuses a journal of a transaction on several databases, which this program never makes.

    Such a journal names a super-journal, which SQLite deletes together with the journals listed
    in it, so a database from someone else could have any file deleted.
    https://www.sqlite.org/fileformat2.html, section 3, and atomiccommit.html, section 5.
    """
    with journal.open("rb") as file:
        file.seek(max(journal.stat().st_size - len(_SUPER_JOURNAL_MAGIC), 0))
        if file.read() == _SUPER_JOURNAL_MAGIC:
            raise _make_damaged_error(database, f"{journal.name} names a file of other journals")


def _check_file(database: Path) -> None:
    """Rolls back an interrupted write, and refuses a file that is not a database or is truncated.

    A read-only connection cannot roll back the write of a killed process, and SQLite only notices
    missing pages when it reads them.

    Raises:
        DataError: If the file cannot be read as a database.
    """
    journal = database.with_name(f"{database.name}-journal")
    try:
        if journal.exists():
            _refuse_other_journals(database, journal)
            with closing(sqlite3.connect(database, _BUSY_TIMEOUT_S)) as connection:
                connection.execute("SELECT count(*) FROM results")  # rolls back
        size = database.stat().st_size
        with open(database, "rb") as file:
            header = file.read(_HEADER_SIZE)
    except sqlite3.Error as error:
        raise _make_damaged_error(database, str(error)) from error
    except OSError as error:
        raise DataError(f"{database} cannot be read: {error.strerror}") from error

    if not header.startswith(_MAGIC):
        raise _make_damaged_error(database, "it is not an SQLite file")

    page_size = int.from_bytes(header[_PAGE_SIZE], "big")
    if page_size == 1:  # stands for 65,536, which does not fit into two bytes
        page_size = 65536
    expected_size = page_size * int.from_bytes(header[_PAGE_COUNT], "big")
    if size < expected_size:
        raise _make_damaged_error(database, f"{size:,} bytes instead of {expected_size:,}")

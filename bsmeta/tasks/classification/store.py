"""The SQLite database of a table: its texts in chunks, with labels and splits; built once.

    CSV -> rows (bsmeta.data.table.csv_file) -> chunks (folding) -> splits -> database -> Examples

It is built row by row in bounded memory, by one process of a machine while the others wait; written
to a temporary file, and renamed. It holds everything that determines its content, and is refused
for other settings. `prep_only=true` builds it, shows what is in it, and stops.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError, differing, nearest, refuse
from bsmeta.core.files import building, file_hash, sync
from bsmeta.core.process import log_once, rank, release_signals
from bsmeta.core.progress import exclusively, file_bar, opaque_work
from bsmeta.data.stream.fingerprint import tokenizer_fingerprint
from bsmeta.data.table.csv_file import BadRows, CSVFormat, Row, find_format, read_rows
from bsmeta.data.table.text_file import is_sqlite, open_bytes
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.tasks.classification.config import (
    ClassificationConfig,
    ClassificationDataConfig,
    fraction_problems,
)
from bsmeta.tasks.classification.examples import IDS, Examples, Folding
from bsmeta.tasks.classification.splits import (
    LEFT_OUT,
    NAMES,
    SPLITS,
    TRAIN,
    first_rows,
    leaks,
    repeats,
    similar_labels,
    split_rows,
    text_key,
)

log = logging.getLogger(__name__)

CONTENT = "content of the CSV file"
"""The setting of a database that is the hash of its CSV file."""

BATCH_ROWS, BATCH_CHARACTERS = 1000, 2_000_000  # that are encoded and written at one time
_LONGEST_LABEL = 200  # characters
_LISTED = 5
_LISTED_LABELS = 20

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE labels (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE sources (
    row INTEGER PRIMARY KEY, label INTEGER NOT NULL, split INTEGER NOT NULL,
    first_chunk INTEGER NOT NULL, chunks INTEGER NOT NULL, group_name TEXT
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL, number INTEGER NOT NULL,
    ids BLOB NOT NULL, text TEXT NOT NULL
);
CREATE TABLE results (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, time TEXT NOT NULL, results TEXT NOT NULL
);
CREATE TEMP TABLE group_names (row INTEGER PRIMARY KEY, name TEXT NOT NULL);
"""

FORMAT = 2
_SHAPES_ROWS = (
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


def open_examples(config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase) -> Examples:
    """The examples of a table; its database is built first if there is none.

    Every process of a run calls it: one process per machine builds while the others wait.

    Raises:
        ConfigurationError: If the database was built from another CSV file or with other settings,
            or a column is missing.
        DataError: If the CSV file cannot be used, or the database is damaged.
    """
    csv = _path_of(config)
    refuse(fraction_problems(config.split_fractions))
    if is_sqlite(csv):
        return _checked(Examples(csv), _settings(config, tokenizer), "")
    database = database_of(config)
    if not csv.exists() and database.exists():
        raise DataError(
            f"{csv}: there is no such file; data_config.csv={database} uses the database that was "
            "built from it"
        )
    open_bytes(csv)[1].close()  # says what is wrong with it
    key = {CONTENT: file_hash(csv), **_settings(config, tokenizer)}
    if not database.exists():
        _build_once(csv, database, config, tokenizer, key)
    return _checked(Examples(database), key, f" from {csv}")


def database_of(config: ClassificationDataConfig) -> Path:
    """Where the database of a table is, or will be.

    Raises:
        ConfigurationError: If no table is named.
    """
    csv = _path_of(config)
    if config.database is not None:
        return Path(config.database)
    if is_sqlite(csv):
        return csv
    name = csv.name.removesuffix(".gz").removesuffix(".csv")
    return csv.with_name(f"{name}.sqlite")


def _path_of(config: ClassificationDataConfig) -> Path:
    if config.csv is None:
        raise ConfigurationError(
            "data_config.csv is not set; expected a CSV file with a text and a label column",
            ["data_config.csv"],
        )
    return Path(config.csv)


def _settings(
    config: ClassificationDataConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    # Folding encodes a text, which switches truncation off; truncation is part of the tokenizer's
    # fingerprint.
    Folding(tokenizer, config.fold_by, config.max_length)
    return {
        "format": FORMAT,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        **{f"data_config.{name}": values[name] for name in _SHAPES_ROWS},
    }


def _checked(examples: Examples, key: dict[str, Any], source: str) -> Examples:
    saved = {name: examples.key.get(name, "absent") for name in key}
    differences = "\n".join(differing(saved, key, "in the database"))
    if differences:
        raise ConfigurationError(
            f"{examples.database} was built with other settings or from another file; restore "
            f"them, name another database (data_config.database=FILE), or delete it to build it "
            f"again{source}:\n{differences}"
        )
    if rank() == 0:
        for warning in examples.facts["warnings"]:
            log_once(log, logging.WARNING, f"{examples.facts['csv']}: {warning}")
    return examples


def _build_once(
    csv: Path,
    database: Path,
    config: ClassificationDataConfig,
    tokenizer: PreTrainedTokenizerBase,
    key: dict[str, Any],
) -> None:
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{database}.lock", f"the table {database}"), opaque_work():
            if not database.exists():
                build(csv, database, config, tokenizer, key)
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"{database} cannot be written: {error}; data_config.database=FILE names another place"
        ) from error


def prepare(config: ClassificationConfig) -> None:
    """Builds the database, or opens it, and prints a table of its splits and labels.

    Raises:
        UserError: See `open_examples`.
    """
    release_signals()  # nothing to save: a signal ends the process, and the next build starts over
    tokenizer = tokenizer_of(config.tokenizer_name or config.model_name)
    examples = open_examples(config.data_config, tokenizer)
    if rank() == 0:
        console = Console()
        for line in facts(examples):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(split_table(examples))


def facts(examples: Examples) -> list[str]:
    """What there is to know about a database, beside its splits."""
    skipped = examples.facts["skipped"]
    return [
        f"{examples.facts['csv']} -> {examples.database}",
        *examples.facts["notes"],
        *([f"{skipped:,} bad rows left out"] if skipped else []),
    ]


def split_table(examples: Examples) -> Table:
    """Source rows and chunks of each split, and the source rows of each label."""
    table = Table(title=f"{len(examples.labels):,} labels")
    for heading in ("", *SPLITS):
        table.add_column(heading, justify="right" if heading else "left")
    sizes = {
        "source rows": [len(examples.sources(split)) for split in SPLITS],
        "chunks": [len(examples.chunks(split)) for split in SPLITS],
    }
    if examples.key["data_config.split_by"] is not None:
        sizes["groups"] = [len({*examples.groups(split)}) for split in SPLITS]
    for name, values in sizes.items():
        table.add_row(name, *(f"{value:,}" for value in values))
    table.add_section()
    counts = [examples.label_counts(split) for split in SPLITS]
    for label in examples.labels[:_LISTED_LABELS]:
        table.add_row(escape(label), *(f"{count[label]:,}" for count in counts))
    if len(examples.labels) > _LISTED_LABELS:
        table.add_row(f"and {len(examples.labels) - _LISTED_LABELS:,} more labels")
    return table


def build(
    csv: Path,
    database: Path,
    config: ClassificationDataConfig,
    tokenizer: PreTrainedTokenizerBase,
    key: dict[str, Any],
) -> None:
    """Builds the database of a CSV file; it appears only when it is complete.

    Args:
        csv: The CSV file.
        database: The file to write.
        config: How the table is read, folded and split.
        tokenizer: The tokenizer.
        key: What determines the content; stored with it.

    Raises:
        DataError: If the CSV file cannot be used.
        ConfigurationError: If a column is missing.
    """
    columns = [config.text_column, config.label_column]
    columns += [name for name in (config.split_by, config.split_column) if name is not None]
    form = find_format(csv, columns, separator=config.csv_separator, encoding=config.csv_encoding)
    with building(database) as part:
        with closing(sqlite3.connect(part)) as connection, connection:
            connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
            table = _Table(connection, csv, form, config, Folding(
                tokenizer, config.fold_by, config.max_length
            ))  # fmt: skip
            table.read()
            table.finish(key)
            if file_hash(csv) != key[CONTENT]:
                raise DataError(f"{csv} has changed while it was read; start again")
        sync(part)


class _Table:
    """A table that is being read into a database."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        csv: Path,
        form: CSVFormat,
        config: ClassificationDataConfig,
        folding: Folding,
    ) -> None:
        self._connection = connection
        self._csv = csv
        self._form = form
        self._config = config
        self._folding = folding
        self._bad = BadRows(csv, config.on_bad_row, "data_config.on_bad_row")
        self._text, self._label = map(form.columns.index, (config.text_column, config.label_column))
        self._group = None if config.split_by is None else form.columns.index(config.split_by)
        self._split = (
            None if config.split_column is None else form.columns.index(config.split_column)
        )
        self._labels: dict[str, int] = {}  # in the order of their appearance
        self._groups, self._texts = array("Q"), array("Q")
        # Of each source row: number, label, declared split, first chunk, number of chunks.
        self._columns: tuple[array[int], ...] = tuple(array(code) for code in "qibqi")
        self._next_chunk = 0

    def read(self) -> None:
        """Reads all rows and writes their chunks.

        Raises:
            DataError: About bad rows, or if there are none at all.
        """
        batch: list[Row] = []
        characters = 0
        with file_bar(self._csv, f"reading {self._csv.name}") as advance:
            for row in read_rows(self._csv, self._form, advance):
                problem = row.problem or self._problem(row)
                if problem is not None:
                    self._bad.add(row, problem)
                    continue
                batch.append(row)
                characters += len(row.cells[self._text])
                if len(batch) == BATCH_ROWS or characters >= BATCH_CHARACTERS:
                    self._write(batch)
                    batch, characters = [], 0
            self._write(batch)
        self._bad.close()
        if not self._columns[0]:
            skipped = f", but {self._bad.count:,} that were left out" if self._bad.count else ""
            raise DataError(f"{self._csv} has a header and no rows{skipped}")

    def _problem(self, row: Row) -> str | None:
        wanted = {
            self._config.text_column: row.cells[self._text],
            self._config.label_column: row.cells[self._label],
        }
        if self._group is not None:
            wanted[self._config.split_by or ""] = row.cells[self._group]
        missing = [name for name, cell in wanted.items() if not cell.strip()]
        if missing:
            return f"nothing in column {' and '.join(map(repr, missing))}"
        if len(row.cells[self._label]) > _LONGEST_LABEL:
            return f"a label of more than {_LONGEST_LABEL} characters"
        if self._split is not None:
            split = row.cells[self._split].strip().lower()
            if split not in NAMES:
                return (
                    f"{split!r} in column {self._config.split_column!r}; expected train, "
                    f"validation or test{nearest(split, NAMES)}"
                )
        return None

    def _write(self, rows: list[Row]) -> None:
        numbers, labels, splits, first_chunks, counts = self._columns
        written: list[tuple[Any, ...]] = []
        names: list[tuple[int, str]] = []
        folded = self._folding.fold([row.cells[self._text] for row in rows])
        for row, folds in zip(rows, folded, strict=True):
            if not folds:
                self._bad.add(row, f"no token in column {self._config.text_column!r}")
                continue
            first = self._next_chunk
            self._next_chunk += len(folds)
            label = row.cells[self._label].strip()
            numbers.append(row.number)
            labels.append(self._labels.setdefault(label, len(self._labels)))
            first_chunks.append(first)
            counts.append(len(folds))
            self._texts.append(text_key(row.cells[self._text]))
            splits.append(
                TRAIN if self._split is None else NAMES[row.cells[self._split].strip().lower()]
            )
            if self._group is not None:
                group = row.cells[self._group].strip()
                self._groups.append(xxhash.xxh3_64_intdigest(group.encode()))
                names.append((row.number, group))
            written += (
                (first + n, row.number, n, np.array(fold.ids, IDS).tobytes(), fold.text)
                for n, fold in enumerate(folds)
            )
        insert = self._connection.executemany
        insert("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", written)
        insert("INSERT INTO group_names VALUES (?, ?)", names)

    def finish(self, key: dict[str, Any]) -> None:
        """Numbers the labels, divides the rows, and writes what is known about them.

        Raises:
            DataError: If the labels cannot be learned, or the rows not divided.
        """
        names = sorted(self._labels, key=_order_of_labels)
        if len(names) < 2:
            raise DataError(
                f"{self._csv}: all rows have the label {names[0]!r} in column "
                f"{self._config.label_column!r}; expected at least two labels"
            )
        renumbered = np.empty(len(names), np.int64)
        renumbered[[self._labels[name] for name in names]] = np.arange(len(names))
        numbers, labels, splits, first_chunks, counts = map(np.asarray, self._columns)
        labels = renumbered[labels]
        texts = np.unique(np.asarray(self._texts), return_inverse=True)[1]
        splits, warnings = self._divide(numbers, labels, splits, texts, names)
        insert = self._connection.executemany
        rows = (numbers, labels, splits, first_chunks, counts)
        insert("INSERT INTO sources VALUES (?, ?, ?, ?, ?, NULL)", _tuples(rows))
        if self._group is None:
            shared = first_rows(texts)
            pairs = ((int(numbers[row]), str(numbers[first])) for row, first in shared.items())
            insert("INSERT INTO group_names VALUES (?, ?)", pairs)
        self._connection.execute(
            "UPDATE sources SET group_name = group_names.name FROM group_names "
            "WHERE group_names.row = sources.row"
        )
        insert("INSERT INTO labels VALUES (?, ?)", enumerate(names))
        facts = {
            "key": key,
            "csv": str(self._csv),
            "notes": self._form.notes,
            "skipped": self._bad.count,
            "warnings": [
                *similar_labels(names), *repeats(numbers, texts, labels, names), *warnings,
            ],
        }  # fmt: skip
        insert("INSERT INTO facts VALUES (?, ?)", ((n, json.dumps(v)) for n, v in facts.items()))
        self._connection.execute("DROP TABLE group_names")

    def _divide(
        self,
        numbers: np.ndarray,
        labels: np.ndarray,
        declared: np.ndarray,
        texts: np.ndarray,
        names: list[str],
    ) -> tuple[np.ndarray, list[str]]:
        """The split of each row, and what the user must know about texts of several splits."""
        groups = None
        if self._group is not None:
            groups = np.unique(np.asarray(self._groups), return_inverse=True)[1]
        if self._split is not None:
            self._check_declared(numbers, labels, declared, groups, names)
            return declared, leaks(declared, texts)
        fractions, seed = self._config.split_fractions, self._config.split_seed
        splits = split_rows(labels, groups, texts, fractions, names, seed)
        missing = int((splits == LEFT_OUT).sum())
        if not missing:
            return splits, []
        return splits, [
            f"{missing:,} rows are in no split: their texts are also in a later one (of training, "
            f"validation, test), in another group of data_config.split_by={self._config.split_by}"
        ]

    def _check_declared(
        self,
        numbers: np.ndarray,
        labels: np.ndarray,
        splits: np.ndarray,
        groups: np.ndarray | None,
        names: list[str],
    ) -> None:
        """Refuses a split column that divides a group, or leaves a label out of the training."""
        where = f"{self._csv}: column {self._config.split_column!r}"
        if groups is not None:
            order = np.lexsort((splits, groups))
            same = groups[order][1:] == groups[order][:-1]
            divided = np.flatnonzero(same & (splits[order][1:] != splits[order][:-1]))
            if len(divided):
                first, second = order[divided[0]], order[divided[0] + 1]
                raise DataError(
                    f"{where} divides a group of data_config.split_by={self._config.split_by}: "
                    f"row {numbers[first]:,} is in {SPLITS[splits[first]]}, row "
                    f"{numbers[second]:,} of the same group in {SPLITS[splits[second]]}"
                )
        trained = np.bincount(labels[splits == TRAIN], minlength=len(names))
        unseen = [names[n] for n in np.flatnonzero(trained == 0)]
        if unseen:
            raise DataError(
                f"{where} leaves no row for training with the label "
                f"{', '.join(map(repr, unseen[:_LISTED]))}"
            )


def _tuples(columns: Sequence[np.ndarray]) -> Iterator[tuple[int, ...]]:
    """The rows of some columns, a part at a time."""
    for first in range(0, len(columns[0]), BATCH_ROWS):
        part = (column[first : first + BATCH_ROWS].tolist() for column in columns)
        yield from zip(*part, strict=True)


def _order_of_labels(name: str) -> tuple[bool, float, str]:
    """Numbers by their value, before all else by its letters."""
    is_number = name.removeprefix("-").isdecimal() and name.isascii()
    return (not is_number, int(name) if is_number else 0, name)

"""Builds the SQLite database of a table: its texts in chunks, with labels and splits.

    table -> rows (bsmeta.data.table) -> labels -> chunks (folding) -> splits -> database

The database is built row by row in bounded memory, written to a temporary file, and renamed. It
records every setting that determines its content.

The rows are divided into training, validation and test. All rows with equal texts, or all rows of a
group, are in the same split. The division is stratified by label and determined by the seed. The
database stores the result, so it does not change with the version of scikit-learn.

If a row may have several labels, the database stores each set of labels once, and the index of its
set as the label of a row (`label_sets`).

Texts that differ only in white space are equal. A text in both the training and the test split
would inflate the scores; a text with two different labels cannot be predicted right both times.
Warnings describe both cases, as well as labels that are nearly equal.

Arrays of rows, texts and groups have indexes without gaps; equal texts share an index.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from scipy.sparse import csr_array

from bsmeta.core.errors import DataError, suggest_nearest
from bsmeta.core.files import build_atomically, hash_file, sync_to_disk
from bsmeta.core.progress import show_file_bar
from bsmeta.data import derive_seed
from bsmeta.data.table.csv_file import BadRows, Row, detect_format, read_rows
from bsmeta.data.table.records import is_record_file, read_record_rows
from bsmeta.data.text.same_text import hash_text
from bsmeta.tasks.classification.config import ClassificationDataConfig
from bsmeta.tasks.classification.label_cells import (
    MAX_LABEL_CHARS,
    BadLabelsError,
    LabelCells,
    RowLabels,
)
from bsmeta.tasks.classification.label_sets import make_membership, split_label_sets

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
LEFT_OUT = 3
"""In place of a split, for a row whose text is also in a later split, in another group."""

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""Splits by the values of a split column, in lower case."""

_EFFECTS_OF_LEAKS = {
    VALIDATION: "systems, settings and thresholds are chosen on scores that are too high",
    TEST: "scores on them are too high",
}
"""The effect of training texts in each held-out split, for warnings."""

CONTENT_KEY = "content of the CSV file"
"""Name of the setting in the database with the hash of the table."""

ID_TYPE = np.dtype("<i4")
"""Type in which the database stores the tokens of a chunk."""

# A batch of rows is encoded and written when it reaches either limit.
MAX_BATCH_ROWS = 1000
MAX_BATCH_CHARS = 2_000_000

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,3})?", re.ASCII)
_MAX_FOLDS = 100
_MAX_STRATIFIED_GROUPS = 2000  # scikit-learn takes about a millisecond per group
_MAX_LABELS_IN_ERROR = 10
_MAX_EXAMPLES_IN_NOTE = 5
_MIN_NAMED_LABEL_CHARS = 3  # shorter labels are in many texts by chance
_MAX_NAMING_SHARE = 0.5  # of texts that contain one of their labels, without a warning

_SCHEMA = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
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
"""


class Fold(NamedTuple):
    """A chunk of a text."""

    ids: list[int]  # tokens, with the special tokens of the model
    text: str


FoldTexts = Callable[[Sequence[str]], list[list[Fold]]]
"""A function that cuts each text into chunks; a text without tokens has none."""


def build_database(
    csv: Path,
    database: Path,
    config: ClassificationDataConfig,
    fold: FoldTexts,
    key: dict[str, Any],
) -> None:
    """Builds the database of a table in a temporary file, and renames it when it is complete.

    Args:
        csv: The table: CSV, JSON lines or Parquet.
        fold: Cuts texts into chunks.
        key: The settings that determine the content of the database.

    Raises:
        DataError: If the table cannot be used, or changes while it is read.
        ConfigurationError: If a column is missing.
    """
    table = open_table(csv, config)
    with build_atomically(database) as part:
        with closing(sqlite3.connect(part)) as connection, connection:
            connection.executescript(_SCHEMA)
            builder = _TableBuilder(connection, csv, table, config, fold)
            builder.read()
            builder.finish(key)
            if hash_file(csv) != key[CONTENT_KEY]:
                raise DataError(f"{csv} has changed while it was read; start again")

        sync_to_disk(part)


class SourceTable(NamedTuple):
    """An opened table."""

    notes: tuple[str, ...]  # for the user, on detected settings
    read: Callable[[Callable[[int], None]], Iterator[tuple[Row, Mapping[str, Any]]]]
    """Yields each row with its values by column; {} for a row with a problem. The argument is a
    function that is called periodically with the number of bytes read."""


def open_table(path: Path, config: ClassificationDataConfig) -> SourceTable:
    """Opens a table: CSV, JSON lines or Parquet.

    Raises:
        DataError: If it cannot be read.
        ConfigurationError: If a CSV file lacks a column, or has it several times.
    """
    columns = [config.text_column, config.label_column, config.split_by, config.split_column]
    used_columns = [name for name in columns if name is not None]
    if is_record_file(path):
        return SourceTable(
            (),
            lambda _: read_record_rows(
                path, (), separator=config.csv_separator, encoding=config.csv_encoding
            ),
        )

    csv_format = detect_format(
        path, used_columns, separator=config.csv_separator, encoding=config.csv_encoding
    )
    indexes = {name: csv_format.columns.index(name) for name in used_columns}

    def read(advance: Callable[[int], None]) -> Iterator[tuple[Row, Mapping[str, Any]]]:
        for row in read_rows(path, csv_format, advance):
            has_cells = row.problem is None
            yield row, {name: row.cells[n] for name, n in indexes.items()} if has_cells else {}

    return SourceTable(csv_format.notes, read)


class _Source(NamedTuple):
    """A row with its values; `group` and `split` are "" without such columns."""

    row: Row
    text: str
    labels: RowLabels
    group: str
    split: str


class _SourceArrays:
    """Compact columns with an entry for each source row that is written to the database."""

    def __init__(self) -> None:
        self.rows = array("q")  # numbers of the rows in the table
        self.labels = array("i")  # index of the label or the set, in order of appearance
        self.splits = array("b")  # by the split column
        self.text_keys = array("Q")  # hashes of the texts
        self.group_keys = array("Q")  # hashes of the groups


class _TableBuilder:
    """Reads a table into a database."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        csv: Path,
        table: SourceTable,
        config: ClassificationDataConfig,
        fold: FoldTexts,
    ) -> None:
        self._insert = connection.executemany
        self._csv = csv
        self._table = table
        self._config = config
        self._fold = fold

        self._bad_rows = BadRows(csv, config.on_bad_row, "data_config.on_bad_row")
        self._label_cells = LabelCells(csv, config)
        self._label_numbers: dict[str, int] = {}  # in order of appearance
        self._set_numbers: dict[tuple[int, ...], int] = {}  # of sets of these, in the same order
        self._named = _NamedLabels()
        self._arrays = _SourceArrays()
        self._next_chunk = 0

    def read(self) -> None:
        """Reads all rows and writes their chunks in batches; `finish` must be called next.

        Raises:
            DataError: If no row is valid, or a bad row is refused.
        """
        batch: list[_Source] = []
        characters = 0

        with show_file_bar(self._csv, f"reading {self._csv.name}") as advance:
            for row, values in self._table.read(advance):
                source, problem = self._read_source(row, values)
                if source is None or problem is not None:
                    self._bad_rows.add(row, problem or "")
                    continue

                batch.append(source)
                characters += len(source.text)
                if len(batch) == MAX_BATCH_ROWS or characters >= MAX_BATCH_CHARS:
                    self._write_batch(batch)
                    batch = []
                    characters = 0

            self._write_batch(batch)

        self._bad_rows.close()
        if not self._arrays.rows:
            count = self._bad_rows.count
            skipped = f", but {count:,} that were left out" if count else ""
            raise DataError(f"{self._csv} has a header and no rows{skipped}")

    def _read_source(
        self, row: Row, values: Mapping[str, Any]
    ) -> tuple[_Source | None, str | None]:
        """Parses a row; returns it, and the problem if it is invalid."""
        if row.problem is not None:
            return None, row.problem

        config = self._config
        try:
            labels = self._label_cells.read(values.get(config.label_column), row)
        except BadLabelsError as error:
            return None, str(error)

        source = _Source(
            row=row,
            text=_read_text(values, config.text_column),
            labels=labels,
            group=_read_text(values, config.split_by).strip(),
            split=_read_text(values, config.split_column).strip().lower(),
        )
        return source, self._find_problem(source)

    def _find_problem(self, source: _Source) -> str | None:
        """Returns the problem of a parsed row; None if it is valid."""
        config = self._config
        required = {config.text_column: source.text.strip()}
        if isinstance(source.labels, str):
            required[config.label_column] = source.labels
        if config.split_by is not None:
            required[config.split_by] = source.group

        missing = [repr(name) for name, cell in required.items() if not cell]
        if missing:
            return f"nothing in column {' and '.join(missing)}"

        if isinstance(source.labels, str) and len(source.labels) > MAX_LABEL_CHARS:
            return f"a label of more than {MAX_LABEL_CHARS} characters"

        if config.split_column is not None and source.split not in SPLIT_NAMES:
            return (
                f"{source.split!r} in column {config.split_column!r}; expected train, validation "
                f"or test{suggest_nearest(source.split, SPLIT_NAMES)}"
            )
        return None

    def _write_batch(self, batch: list[_Source]) -> None:
        """Writes the chunks of rows, and appends the rows to the arrays."""
        source_rows: list[tuple[Any, ...]] = []
        chunk_rows: list[tuple[Any, ...]] = []

        folds_of_texts = self._fold([source.text for source in batch])
        for source, folds in zip(batch, folds_of_texts, strict=True):
            if not folds:
                problem = f"no token in column {self._config.text_column!r}"
                self._bad_rows.add(source.row, problem)
                continue

            row = source.row.number
            label = self._number_labels(source)
            split = SPLIT_NAMES.get(source.split, TRAIN)

            self._arrays.rows.append(row)
            self._arrays.labels.append(label)
            self._arrays.splits.append(split)
            self._arrays.text_keys.append(hash_text(source.text))
            self._arrays.group_keys.append(xxhash.xxh3_64_intdigest(source.group.encode()))

            # `finish` updates the label and the split.
            group = source.group or None
            source_rows.append((row, label, split, self._next_chunk, len(folds), group))
            for number, fold in enumerate(folds):
                ids = np.array(fold.ids, ID_TYPE).tobytes()
                chunk_rows.append((self._next_chunk + number, row, number, ids, fold.text))
            self._next_chunk += len(folds)

        self._insert("INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?)", source_rows)
        self._insert("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", chunk_rows)

    def _number_labels(self, source: _Source) -> int:
        """Returns the index of a row's label, or of its set of labels, in order of appearance."""
        numbers = self._label_numbers
        if isinstance(source.labels, str):
            return numbers.setdefault(source.labels, len(numbers))

        self._named.add(source.text, source.labels)
        labels = {numbers.setdefault(name, len(numbers)) for name in source.labels}
        return self._set_numbers.setdefault(tuple(sorted(labels)), len(self._set_numbers))

    def finish(self, key: dict[str, Any]) -> None:
        """Numbers the labels, divides the rows into splits, and writes facts about the table.

        Args:
            key: The settings that determine the content of the database.

        Raises:
            DataError: If there are too few labels or rows, or the split column is invalid.
        """
        rows = np.asarray(self._arrays.rows)
        texts = _number_keys(self._arrays.text_keys)
        groups = None
        if self._config.split_by is not None:
            groups = _number_keys(self._arrays.group_keys)
        labeling = self._number_sorted_labels()

        if self._config.split_column is None:
            splits = self._divide_rows(rows, texts, groups, labeling)
            split_warnings = self._warn_of_left_out(splits)
        else:
            splits = np.asarray(self._arrays.splits)
            self._check_splits(rows, labeling, splits, groups)
            split_warnings = describe_leaks(splits, texts)

        updates = zip(map(int, labeling.labels), map(int, splits), map(int, rows), strict=True)
        self._insert("UPDATE sources SET label = ?, split = ? WHERE row = ?", updates)
        if groups is None:
            self._group_equal_texts(rows, texts)
        self._insert("INSERT INTO labels VALUES (?, ?)", enumerate(labeling.names))

        repeats = describe_repeats(
            rows,
            texts,
            labeling.labels,
            labeling.list_set_names(),
            has_several=labeling.has_several,
        )
        warnings = [*describe_similar_labels(labeling.names), *repeats, *split_warnings]
        notes = [*self._table.notes]
        if labeling.has_several:
            warnings += describe_absent_labels(labeling.membership, splits, labeling.names)
            warnings += self._named.warn()
            notes.append(_describe_label_counts(labeling.membership))

        facts = {
            "key": key,
            "csv": str(self._csv),
            "notes": notes,
            "skipped": self._bad_rows.count,
            "warnings": warnings,
        }
        if labeling.sets is not None:
            facts["label_sets"] = labeling.sets
        fact_rows = ((name, json.dumps(value)) for name, value in facts.items())
        self._insert("INSERT INTO facts VALUES (?, ?)", fact_rows)

    def _number_sorted_labels(self) -> _Labeling:
        """Renumbers the labels: in sorted order instead of the order of appearance."""
        names = sorted(self._label_numbers, key=_make_label_sort_key)
        if len(names) < 2:
            only_label = f"have the label {names[0]!r}" if names else "have no label"
            raise DataError(
                f"{self._csv}: all rows {only_label} in column "
                f"{self._config.label_column!r}; expected at least two labels"
            )

        new_numbers = np.argsort([self._label_numbers[name] for name in names])
        labels = np.asarray(self._arrays.labels)
        if self._label_cells.has_several:
            sets = [sorted(new_numbers[list(numbers)].tolist()) for numbers in self._set_numbers]
            membership = make_membership(sets, len(names))[labels]
            return _Labeling(names, labels, membership, sets)

        labels = new_numbers[labels]
        membership = make_membership(([label] for label in labels.tolist()), len(names))
        return _Labeling(names, labels, membership, None)

    def _divide_rows(
        self,
        rows: np.ndarray,
        texts: np.ndarray,
        groups: np.ndarray | None,
        labeling: _Labeling,
    ) -> np.ndarray:
        """Divides the rows by `split_fractions`; returns int8 [rows]."""
        fractions = self._config.split_fractions
        seed = self._config.split_seed
        if not labeling.has_several:
            return split_rows(labeling.labels, groups, texts, fractions, labeling.names, seed)

        splits = split_set_rows(labeling.membership, groups, texts, fractions, seed)
        self._check_splits(rows, labeling, splits, None)
        return splits

    def _group_equal_texts(self, rows: np.ndarray, texts: np.ndarray) -> None:
        """Makes rows with equal texts a group, which is named after its first row."""
        _, first_rows = np.unique(texts, return_index=True)
        repeated = np.flatnonzero(np.bincount(texts)[texts] > 1)
        updates = ((str(rows[first_rows[texts[index]]]), int(rows[index])) for index in repeated)
        self._insert("UPDATE sources SET group_name = ? WHERE row = ?", updates)

    def _warn_of_left_out(self, splits: np.ndarray) -> list[str]:
        """Returns a warning if rows are in no split; otherwise []."""
        count = int((splits == LEFT_OUT).sum())
        if not count:
            return []
        return [
            f"{count:,} rows are in no split: their texts are also in a later one (of training, "
            f"validation, test), in another group of data_config.split_by={self._config.split_by}"
        ]

    def _check_splits(
        self,
        rows: np.ndarray,
        labeling: _Labeling,
        splits: np.ndarray,
        groups: np.ndarray | None,
    ) -> None:
        """Refuses splits that divide a group, or leave no training row with a label.

        Args:
            rows: int64 [rows], numbers of the rows in the table.
            splits: int8 [rows].
            groups: int64 [rows]; None: groups are not checked.

        Raises:
            DataError: Names the rows or the labels.
        """
        column = f"{self._csv}: the division by data_config.split_fractions"
        if self._config.split_column is not None:
            column = f"{self._csv}: column {self._config.split_column!r}"

        if groups is not None:
            first_of_group = np.unique(groups, return_index=True)[1][groups]
            divided = np.flatnonzero(splits != splits[first_of_group])
            if len(divided):
                outside_row = divided[0]
                first_row = first_of_group[outside_row]
                raise DataError(
                    f"{column} divides a group of data_config.split_by={self._config.split_by}: "
                    f"row {rows[first_row]:,} is in {SPLITS[splits[first_row]]}, "
                    f"row {rows[outside_row]:,} of the same group in {SPLITS[splits[outside_row]]}"
                )

        counts = np.asarray(labeling.membership[splits == TRAIN].sum(0))
        unseen = [repr(labeling.names[label]) for label in np.flatnonzero(counts == 0)]
        if unseen:
            examples = ", ".join(unseen[:_MAX_EXAMPLES_IN_NOTE])
            raise DataError(f"{column} leaves no row for training with the label {examples}")


class _Labeling(NamedTuple):
    """The labels of the rows, with indexes in the sorted order of the labels."""

    names: list[str]  # of the labels, sorted
    labels: np.ndarray  # int64 [rows], index of the label, or in `sets`
    membership: csr_array  # int64 [rows, labels], 1 for each label of a row
    sets: list[list[int]] | None  # distinct sets of labels, if a row may have several

    @property
    def has_several(self) -> bool:
        """Whether a row may have several labels."""
        return self.sets is not None

    def list_set_names(self) -> list[str]:
        """Names the sets of labels, or the labels if rows have one each."""
        if self.sets is None:
            return self.names
        return [", ".join(self.names[number] for number in numbers) for numbers in self.sets]


def _read_text(values: Mapping[str, Any], column: str | None) -> str:
    """Returns the text of a column; integers are converted, and other values are "".

    Args:
        column: None for a column that is not configured.
    """
    value = values.get(column) if column is not None else None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, str) else ""


class _NamedLabels:
    """Counts texts that contain the name of one of their labels."""

    def __init__(self) -> None:
        self._labeled = 0  # texts with labels that are long enough to search for
        self._naming = 0  # those of them that contain such a label

    def add(self, text: str, labels: Sequence[str]) -> None:
        """Counts a text."""
        names = [label for label in labels if len(label) >= _MIN_NAMED_LABEL_CHARS]
        if not names:
            return

        words = f" {' '.join(_WORD.findall(text.casefold()))} "
        self._labeled += 1
        self._naming += any(
            f" {' '.join(_WORD.findall(name.casefold()))} " in words for name in names
        )

    def warn(self) -> list[str]:
        """Returns a warning if most texts contain one of their labels; otherwise []."""
        if self._naming <= _MAX_NAMING_SHARE * self._labeled:
            return []
        return [
            f"{self._naming:,} of {self._labeled:,} texts contain one of their labels, word for "
            "word: are the labels a part of the texts? New texts may lack them"
        ]


def _describe_label_counts(membership: csr_array) -> str:
    """Describes the number of labels per row, in a note."""
    counts = np.asarray(membership.sum(1))
    return (
        f"several labels: {counts.mean():.2f} a row, at most {counts.max():,}; "
        f"{int((counts == 0).sum()):,} rows have none"
    )


def _number_keys(keys: array[int]) -> np.ndarray:
    """Replaces keys by indexes of distinct keys, int64 [rows]."""
    return np.unique(np.asarray(keys), return_inverse=True)[1]


def _make_label_sort_key(name: str) -> tuple[bool, float, str]:
    """Returns a sort key: integers come first, by value, then all other labels as strings."""
    is_number = name.removeprefix("-").isdecimal() and name.isascii()
    return (not is_number, int(name) if is_number else 0, name)


def split_rows(
    labels: np.ndarray,
    groups: np.ndarray | None,
    texts: np.ndarray,
    fractions: Sequence[float],
    names: Sequence[str],
    seed: int,
) -> np.ndarray:
    """Assigns each source row to a split, stratified by label.

    Args:
        labels: int [rows], index of the label of each row.
        groups: int [rows], index of the group; rows of a group are in the same split. None: rows
            of a text are in the same split.
        texts: int [rows], index of the text.
        fractions: The shares of training, validation and test.
        names: The labels.
        seed: Seed of the division.

    Returns:
        int8 [rows]: TRAIN, VALIDATION or TEST; LEFT_OUT for a row whose text is in a later split,
        in another group.

    Raises:
        DataError: If a label has fewer texts (or groups) than there are splits.
    """
    used_splits = [split for split in range(3) if fractions[split] > 0]
    if groups is None:
        _check_counts(labels, texts, "text", len(used_splits), names)
    else:
        _check_counts(labels, groups, "group", len(used_splits), names)
    if len(used_splits) == 1:
        return np.zeros(len(labels), np.int8)

    state = derive_seed(seed, "splits") % 2**32
    if groups is not None:
        divide = _split_by_group if groups.max() < _MAX_STRATIFIED_GROUPS else _split_by_many_groups
        splits = leave_out_duplicates(divide(labels, groups, fractions, state), texts)
    elif texts.max() + 1 < len(texts):
        splits = _split_by_many_groups(labels, texts, fractions, state)
    else:
        splits = _split_by_row(labels, fractions, state)

    missing = [SPLITS[split] for split in used_splits if not (splits == split).any()]
    if missing:
        raise _make_too_few_error(labels, fractions, f"no row for {' and '.join(missing)}")
    return splits


def split_set_rows(
    membership: csr_array,
    groups: np.ndarray | None,
    texts: np.ndarray,
    fractions: Sequence[float],
    seed: int,
) -> np.ndarray:
    """Assigns each source row, which may have several labels, to a split.

    Args:
        membership: int64 [rows, labels], 1 for each label of a row.
        groups, texts, fractions, seed: See `split_rows`.

    Returns:
        int8 [rows], as from `split_rows`.

    Raises:
        DataError: If there are too few rows.
    """
    state = derive_seed(seed, "splits") % 2**32
    units = texts if groups is None else groups
    splits = split_label_sets(membership, units, fractions, state)
    if groups is not None:
        splits = leave_out_duplicates(splits, texts)

    used_splits = [split for split in range(3) if fractions[split] > 0]
    missing = [SPLITS[split] for split in used_splits if not (splits == split).any()]
    if missing:
        raise _make_too_few_error(texts, fractions, f"no row for {' and '.join(missing)}")
    return splits


def _split_by_row(labels: np.ndarray, fractions: Sequence[float], state: int) -> np.ndarray:
    """Divides rows with distinct texts, stratified by label."""
    # Imported here because importing scikit-learn takes seconds, and only a new database needs it.
    from sklearn.model_selection import StratifiedShuffleSplit

    splits = np.zeros(len(labels), np.int8)
    unassigned = np.arange(len(labels))
    for split in (TEST, VALIDATION):
        if fractions[split] == 0:
            continue

        # At least one row for each label, so that a small table does not lose a label.
        size = max(math.floor(fractions[split] * len(labels) + 0.5), len(np.unique(labels)))
        splitter = StratifiedShuffleSplit(1, test_size=size, random_state=state)
        try:
            remaining, taken = next(splitter.split(unassigned, labels[unassigned]))
        except ValueError as error:
            raise _make_too_few_error(labels, fractions, str(error)) from error

        splits[unassigned[taken]] = split
        unassigned = np.sort(unassigned[remaining])
    return splits


def _split_by_group(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Divides whole groups into stratified folds, and assigns each fold to a split."""
    from sklearn.model_selection import StratifiedGroupKFold

    # The smallest number of folds that every fraction divides evenly.
    exact_folds = math.lcm(
        *(Fraction(share).limit_denominator(_MAX_FOLDS).denominator for share in fractions)
    )
    folds = min(exact_folds, _MAX_FOLDS, len(np.unique(groups)), int(np.bincount(labels).min()))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=state)
    remaining_folds = splitter.split(np.zeros(len(labels)), labels, groups)

    splits = np.zeros(len(labels), np.int8)
    for split in (TEST, VALIDATION):
        count = max(1, round(fractions[split] * folds)) if fractions[split] > 0 else 0
        for _, taken in islice(remaining_folds, count):
            splits[taken] = split
    return splits


def _split_by_many_groups(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Assigns whole groups, the largest first, each to the split that most lacks its label.

    The label of a group is its most frequent one. A group with more rows than any split lacks goes
    to the split that lacks most rows, usually training. The last groups of a label go to splits
    that have none of its groups.
    """
    group_labels = _find_most_common_labels(labels, groups)
    sizes = np.bincount(groups)
    shuffled = np.random.default_rng(state).permutation(len(sizes))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]

    groups_left = np.bincount(group_labels, minlength=labels.max() + 1).tolist()  # of each label
    label_rows = np.bincount(group_labels, sizes, minlength=len(groups_left)).tolist()
    targets: list[dict[int, int]] = []  # for each label, the rows to assign to each split
    for rows in label_rows:
        target = {
            split: max(round(share * rows), 1) for split, share in enumerate(fractions) if share > 0
        }
        targets.append(target)

    lacking = [dict(target) for target in targets]
    splits_of_groups = np.zeros(len(sizes), np.int8)
    for group in order.tolist():
        label = int(group_labels[group])
        size = int(sizes[group])
        split = _choose_neediest_split(lacking[label], targets[label], size, groups_left[label])

        splits_of_groups[group] = split
        lacking[label][split] -= size
        groups_left[label] -= 1
    return splits_of_groups[groups]


def _choose_neediest_split(
    lacking: Mapping[int, int], target: Mapping[int, int], size: int, groups_left: int
) -> int:
    """Chooses the split for the next group of a label.

    Args:
        lacking: Rows that each split still lacks.
        target: Rows to assign to each split.
        size: Number of rows of the group.
        groups_left: Number of unassigned groups of the label, including this one.
    """
    empty = [split for split in lacking if lacking[split] == target[split]]
    if groups_left <= len(empty):
        return max(empty, key=lacking.__getitem__)

    fitting = [split for split in lacking if lacking[split] >= size]
    if fitting:
        return max(fitting, key=lambda split: lacking[split] / target[split])
    return max(lacking, key=lacking.__getitem__)


def _find_most_common_labels(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Returns the most common label of each group (on a tie the lowest), int64 [groups]."""
    label_count = int(labels.max()) + 1
    # A cell is a pair of a group and a label.
    cells, counts = np.unique(groups * label_count + labels, return_counts=True)
    group_of_cell = cells // label_count

    # Within each group, the cell with the most rows comes first.
    cells = cells[np.lexsort((-counts, group_of_cell))]
    _, first_cells = np.unique(cells // label_count, return_index=True)
    common_labels: np.ndarray = cells[first_cells] % label_count
    return common_labels


def leave_out_duplicates(splits: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Replaces the split of each row whose text is also in a later split by `LEFT_OUT`.

    The order is training, validation, test, so that no row is removed from the test split.
    """
    latest = np.zeros(texts.max() + 1, np.int8)
    np.maximum.at(latest, texts, splits)
    return np.where(splits < latest[texts], LEFT_OUT, splits).astype(np.int8)


def _make_too_few_error(labels: np.ndarray, fractions: Sequence[float], reason: str) -> DataError:
    return DataError(
        f"{len(labels):,} rows are too few to divide into data_config.split_fractions="
        f"{list(fractions)}: {reason}. Choose larger fractions, set a fraction to 0, or divide the "
        "rows yourself: data_config.split_column"
    )


def _check_counts(
    labels: np.ndarray, units: np.ndarray, unit_name: str, splits: int, names: Sequence[str]
) -> None:
    """Refuses labels with fewer texts or groups than splits: some split would lack the label.

    Args:
        labels: int [rows], index of the label of each row.
        units: int [rows], index of the text or the group of each row.
        unit_name: "text" or "group", for the message.
        splits: Number of splits.
        names: The labels.

    Raises:
        DataError: Lists such labels.
    """
    pairs = np.unique(units * len(names) + labels)
    counts = np.bincount(pairs % len(names), minlength=len(names))
    rare_labels = np.flatnonzero(counts < splits).tolist()
    rare = [f"{names[label]} ({counts[label]})" for label in rare_labels]
    if rare:
        raise DataError(
            f"{len(rare)} of {len(names)} labels have fewer {unit_name}s than there are splits "
            f"({splits}): {list_first(rare, _MAX_LABELS_IN_ERROR)}. Is data_config.label_column "
            "the column of the labels? Merge or remove rare labels, set a fraction of "
            "data_config.split_fractions to 0, or divide the rows yourself: "
            "data_config.split_column"
        )


def list_first(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Joins the first items, and appends the number of further ones."""
    listed_items = list(items[:limit])
    if len(items) > limit:
        listed_items.append(f"and {len(items) - limit:,} more")
    return separator.join(listed_items)


def describe_repeats(
    rows: np.ndarray,
    texts: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    *,
    has_several: bool = False,
) -> list[str]:
    """Describes repeated texts, and texts whose rows have different labels, in warnings.

    Args:
        rows: int64 [rows], numbers of the rows in the table.
        texts: int64 [rows], index of the text of each row.
        labels: int64 [rows], index of the label, or of the set of labels, of each row.
        names: The labels, or the names of the sets.
        has_several: Whether a row may have several labels.
    """
    text_count = int(texts.max()) + 1
    if text_count == len(texts):
        return []

    notes = [
        f"{len(texts) - text_count:,} of {len(texts):,} rows repeat the text of an earlier row "
        "(compared without differences in white space)"
    ]

    # A cell is a pair of a text and a label.
    cells, first_of_cell = np.unique(texts * len(names) + labels, return_index=True)
    text_of_cell = cells // len(names)
    ambiguous = np.flatnonzero(np.bincount(text_of_cell) > 1)
    if len(ambiguous):
        examples = []
        for text in ambiguous[:_MAX_EXAMPLES_IN_NOTE]:
            first, second = np.sort(first_of_cell[text_of_cell == text])[:2]
            examples.append(
                f"row {rows[first]:,} ({names[labels[first]]}) and "
                f"row {rows[second]:,} ({names[labels[second]]})"
            )

        count = len(ambiguous)
        omitted = count - _MAX_EXAMPLES_IN_NOTE
        ending = f"; and {omitted:,} more" if omitted > 0 else ""
        verb = "text has" if count == 1 else "texts have"
        kind = "set of labels" if has_several else "label"
        notes.append(f"{count:,} {verb} more than one {kind}: {'; '.join(examples)}{ending}")
    return notes


def describe_absent_labels(
    membership: csr_array, splits: np.ndarray, names: Sequence[str]
) -> list[str]:
    """Describes labels without a row in the validation or the test split, in warnings."""
    notes = []
    for split in (VALIDATION, TEST):
        is_inside = splits == split
        if not is_inside.any():
            continue

        counts = np.asarray(membership[is_inside].sum(0))
        absent = [repr(names[label]) for label in np.flatnonzero(counts == 0).tolist()]
        if absent:
            verb = "label has" if len(absent) == 1 else "labels have"
            notes.append(
                f"{len(absent):,} {verb} no row in the {SPLITS[split]} split: "
                f"{list_first(absent, _MAX_EXAMPLES_IN_NOTE)}"
            )
    return notes


def describe_leaks(splits: np.ndarray, texts: np.ndarray) -> list[str]:
    """Describes rows of held-out splits whose text is also in the training split, in warnings.

    Args:
        splits: int8 [rows].
        texts: int64 [rows], index of the text of each row.
    """
    notes = []
    for split, effect in _EFFECTS_OF_LEAKS.items():
        split_texts = texts[splits == split]
        num_leaked = count_training_texts(split_texts, texts[splits == TRAIN])
        if num_leaked:
            notes.append(
                f"{num_leaked:,} of {len(split_texts):,} rows of the {SPLITS[split]} split have a "
                f"text that is also in the training split: {effect}"
            )
    return notes


def count_training_texts(held_out: np.ndarray, training: np.ndarray) -> int:
    """Counts the held-out texts that are also in the training split.

    Args:
        held_out, training: [texts], the index of each text, or its hash.
    """
    return int(np.isin(held_out, training).sum())


def describe_similar_labels(names: Sequence[str]) -> list[str]:
    """Describes labels that may be meant as one, in a warning.

    Such labels differ only in case, white space, Unicode form, or notation of a number (`1` and
    `1.0`).
    """
    simplified = {name: _simplify_label(name) for name in names}
    ordered = sorted(names, key=lambda name: (simplified[name], name))
    pairs = [
        f"{first!r} and {second!r}"
        for first, second in pairwise(ordered)
        if simplified[first] == simplified[second]
    ]
    if not pairs:
        return []
    return [f"labels that may be meant as one: {list_first(pairs, _MAX_EXAMPLES_IN_NOTE)}"]


def _simplify_label(name: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return str(Fraction(text)) if _NUMBER.fullmatch(text) else text

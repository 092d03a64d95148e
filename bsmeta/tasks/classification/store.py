"""Builds the SQLite database of a table: its texts in chunks, with labels and splits.

    CSV -> rows (bsmeta.data.table.csv_file) -> chunks (folding) -> splits -> database

It is built row by row in bounded memory, written to a temporary file, and renamed. It holds
everything that determines its content.

The rows are divided among training, validation and test: whole texts (equal texts of several rows
together), or whole groups of rows, so that neither a text nor a group is in two splits; stratified
by label; determined by the seed. The database keeps the result, so that it never changes with the
version of scikit-learn. Texts are equal if they differ in white space only. A text in two splits
would be trained on and then counted as a success of the model; a text with two labels cannot be
right both times. Both are described, as are labels that are nearly equal. The rows, texts and
groups of a table have numbers from 0 without gaps, equal texts the same.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import unicodedata
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from bsmeta.core.errors import DataError, nearest
from bsmeta.core.files import building, file_hash, sync
from bsmeta.core.progress import file_bar
from bsmeta.data import derive
from bsmeta.data.table.csv_file import BadRows, CSVFormat, Row, find_format, read_rows
from bsmeta.tasks.classification.config import ClassificationDataConfig

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
LEFT_OUT = 3  # instead of a split: the row's text is in a later split, too, in another group
NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""The values of a split column, in lower case."""
CONTENT = "content of the CSV file"  # the setting of a database that is the hash of its CSV file
IDS = np.dtype("<i4")  # how the ids of a chunk are stored
BATCH_ROWS, BATCH_CHARACTERS = 1000, 2_000_000  # that are encoded and written at one time
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,3})?", re.ASCII)
_LONGEST_LABEL = 200  # characters
_MOST_FOLDS = 100
_MANY_GROUPS = 2000  # scikit-learn takes about a millisecond for each
_LISTED, _SHOWN = 10, 5

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
    """One chunk of a text."""

    ids: list[int]  # with the special tokens of the model
    text: str


FoldTexts = Callable[[Sequence[str]], list[list[Fold]]]
"""Texts → the chunks of each; none for a text without tokens."""


def build(
    csv: Path, database: Path, config: ClassificationDataConfig, fold: FoldTexts,
    key: dict[str, Any],
) -> None:  # fmt: skip
    """Builds the database of a CSV file, with the key that determines its content; it appears only
    when it is complete.
    """
    columns = [config.text_column, config.label_column, config.split_by, config.split_column]
    wanted = [name for name in columns if name is not None]
    form = find_format(csv, wanted, separator=config.csv_separator, encoding=config.csv_encoding)
    with building(database) as part:
        with closing(sqlite3.connect(part)) as connection, connection:
            connection.executescript(_SCHEMA)
            table = _Table(connection, csv, form, config, fold)
            table.read()
            table.finish(key)
            if file_hash(csv) != key[CONTENT]:
                raise DataError(f"{csv} has changed while it was read; start again")
        sync(part)


class _Source(NamedTuple):
    """A row of the table, in the columns that are used; "" for a column that is not."""

    row: Row
    text: str
    label: str
    group: str
    split: str


class _Table:
    """A table that is being read into a database."""

    def __init__(
        self, connection: sqlite3.Connection, csv: Path, form: CSVFormat,
        config: ClassificationDataConfig, fold: FoldTexts,
    ) -> None:  # fmt: skip
        self._insert = connection.executemany
        self._csv = csv
        self._form = form
        self._config = config
        self._fold = fold
        self._bad = BadRows(csv, config.on_bad_row, "data_config.on_bad_row")
        self._labels: dict[str, int] = {}  # in the order of their appearance
        # Of each source row: its number, label, declared split, and hashes of its text and group.
        self._columns: tuple[array[int], ...] = tuple(array(code) for code in "qibQQ")
        self._next_chunk = 0
        used = (config.text_column, config.label_column, config.split_by, config.split_column)
        self._places = [None if name is None else form.columns.index(name) for name in used]

    def read(self) -> None:
        """Reads all rows and writes their chunks."""
        batch: list[_Source] = []
        characters = 0
        with file_bar(self._csv, f"reading {self._csv.name}") as advance:
            for row in read_rows(self._csv, self._form, advance):
                if row.problem is not None:
                    self._bad.add(row, row.problem)
                    continue
                text, *others = ("" if at is None else row.cells[at] for at in self._places)
                label, group, split = map(str.strip, others)
                source = _Source(row, text, label, group, split.lower())
                problem = self._problem(source)
                if problem is not None:
                    self._bad.add(row, problem)
                    continue
                batch.append(source)
                characters += len(text)
                if len(batch) == BATCH_ROWS or characters >= BATCH_CHARACTERS:
                    self._write(batch)
                    batch, characters = [], 0
            self._write(batch)
        self._bad.close()
        if not self._columns[0]:
            skipped = f", but {self._bad.count:,} that were left out" if self._bad.count else ""
            raise DataError(f"{self._csv} has a header and no rows{skipped}")

    def _problem(self, source: _Source) -> str | None:
        config = self._config
        wanted = {config.text_column: source.text.strip(), config.label_column: source.label}
        if config.split_by is not None:
            wanted[config.split_by] = source.group
        missing = [repr(name) for name, cell in wanted.items() if not cell]
        if missing:
            return f"nothing in column {' and '.join(missing)}"
        if len(source.label) > _LONGEST_LABEL:
            return f"a label of more than {_LONGEST_LABEL} characters"
        if config.split_column is not None and source.split not in NAMES:
            return (
                f"{source.split!r} in column {config.split_column!r}; expected train, validation "
                f"or test{nearest(source.split, NAMES)}"
            )
        return None

    def _write(self, batch: list[_Source]) -> None:
        sources: list[tuple[Any, ...]] = []
        chunks: list[tuple[Any, ...]] = []
        found = self._fold([source.text for source in batch])
        for (row, text, label, group, split), folds in zip(batch, found, strict=True):
            if not folds:
                self._bad.add(row, f"no token in column {self._config.text_column!r}")
                continue
            values = (
                row.number,
                self._labels.setdefault(label, len(self._labels)),
                NAMES.get(split, TRAIN),
                text_key(text),
                xxhash.xxh3_64_intdigest(group.encode()),
            )
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            sources.append((*values[:3], self._next_chunk, len(folds), group or None))
            for number, fold in enumerate(folds):
                ids = np.array(fold.ids, IDS).tobytes()
                chunks.append((self._next_chunk + number, row.number, number, ids, fold.text))
            self._next_chunk += len(folds)
        self._insert("INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?)", sources)
        self._insert("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", chunks)

    def finish(self, key: dict[str, Any]) -> None:
        """Numbers the labels, divides the rows, and writes what is known about them."""
        config = self._config
        names = sorted(self._labels, key=_order_of_labels)
        if len(names) < 2:
            raise DataError(
                f"{self._csv}: all rows have the label {names[0]!r} in column "
                f"{config.label_column!r}; expected at least two labels"
            )
        numbers, labels, splits, texts, groups = map(np.asarray, self._columns)
        labels = np.argsort([self._labels[name] for name in names])[labels]
        texts, groups = (np.unique(own, return_inverse=True)[1] for own in (texts, groups))
        owners = None if config.split_by is None else groups
        if config.split_column is None:
            splits = split_rows(
                labels, owners, texts, config.split_fractions, names, config.split_seed
            )
            warnings = self._left_out(splits)
        else:
            self._check_declared(numbers, labels, splits, owners, names)
            warnings = leaks(splits, texts)
        rows = zip(map(int, labels), map(int, splits), map(int, numbers), strict=True)
        self._insert("UPDATE sources SET label = ?, split = ? WHERE row = ?", rows)
        if owners is None:
            _, first = np.unique(texts, return_index=True)
            shared = np.flatnonzero(np.bincount(texts)[texts] > 1)
            pairs = ((str(numbers[first[texts[row]]]), int(numbers[row])) for row in shared)
            self._insert("UPDATE sources SET group_name = ? WHERE row = ?", pairs)
        self._insert("INSERT INTO labels VALUES (?, ?)", enumerate(names))
        facts = {
            "key": key,
            "csv": str(self._csv),
            "notes": self._form.notes,
            "skipped": self._bad.count,
            "warnings": [
                *similar_labels(names), *repeats(numbers, texts, labels, names), *warnings
            ],
        }  # fmt: skip
        self._insert(
            "INSERT INTO facts VALUES (?, ?)", ((n, json.dumps(v)) for n, v in facts.items())
        )

    def _left_out(self, splits: np.ndarray) -> list[str]:
        missing = int((splits == LEFT_OUT).sum())
        if not missing:
            return []
        return [
            f"{missing:,} rows are in no split: their texts are also in a later one (of training, "
            f"validation, test), in another group of data_config.split_by={self._config.split_by}"
        ]

    def _check_declared(
        self, numbers: np.ndarray, labels: np.ndarray, splits: np.ndarray,
        groups: np.ndarray | None, names: list[str],
    ) -> None:  # fmt: skip
        """Refuses a split column that divides a group, or leaves a label out of the training."""
        where = f"{self._csv}: column {self._config.split_column!r}"
        if groups is not None:
            first = np.unique(groups, return_index=True)[1][groups]  # the first row of each group
            divided = np.flatnonzero(splits != splits[first])
            if len(divided):
                one, other = first[divided[0]], divided[0]
                raise DataError(
                    f"{where} divides a group of data_config.split_by={self._config.split_by}: "
                    f"row {numbers[one]:,} is in {SPLITS[splits[one]]}, row {numbers[other]:,} of "
                    f"the same group in {SPLITS[splits[other]]}"
                )
        trained = np.bincount(labels[splits == TRAIN], minlength=len(names))
        unseen = [repr(names[n]) for n in np.flatnonzero(trained == 0)]
        if unseen:
            raise DataError(
                f"{where} leaves no row for training with the label {', '.join(unseen[:_SHOWN])}"
            )


def _order_of_labels(name: str) -> tuple[bool, float, str]:
    """Numbers by their value, before all else by its letters."""
    is_number = name.removeprefix("-").isdecimal() and name.isascii()
    return (not is_number, int(name) if is_number else 0, name)


def split_rows(
    labels: np.ndarray, groups: np.ndarray | None, texts: np.ndarray, fractions: Sequence[float],
    names: Sequence[str], seed: int,
) -> np.ndarray:  # fmt: skip
    """The split of each source row, int8[rows]: TRAIN, VALIDATION or TEST; LEFT_OUT for a row whose
    text is in a later split, in another group.

    Args:
        labels, groups, texts: int[rows]; without groups, no split divides a text.
        names: The labels.

    Raises:
        DataError: If a label has fewer texts (or groups) than there are splits.
    """
    wanted = [split for split in range(3) if fractions[split] > 0]
    unit = "text" if groups is None else "group"
    _check_counts(labels, texts if groups is None else groups, unit, len(wanted), names)
    if len(wanted) == 1:
        return np.zeros(len(labels), np.int8)
    state = derive(seed, "splits") % 2**32
    if groups is not None:
        divide = _by_group if groups.max() < _MANY_GROUPS else _by_many_groups
        found = left_out(divide(labels, groups, fractions, state), texts)
    elif texts.max() + 1 < len(texts):
        found = _by_many_groups(labels, texts, fractions, state)
    else:
        found = _by_row(labels, fractions, state)
    missing = [SPLITS[split] for split in wanted if not (found == split).any()]
    if missing:
        raise _too_few(labels, fractions, f"no row for {' and '.join(missing)}")
    return found


def _by_row(labels: np.ndarray, fractions: Sequence[float], state: int) -> np.ndarray:
    # Imported here because scikit-learn takes seconds, and only a new database needs it.
    from sklearn.model_selection import StratifiedShuffleSplit

    found = np.zeros(len(labels), np.int8)
    rest = np.arange(len(labels))
    for split in (TEST, VALIDATION):
        if fractions[split] == 0:
            continue
        # At least one row per label, so that no label of a small table need be absent.
        size = max(math.floor(fractions[split] * len(labels) + 0.5), len(np.unique(labels)))
        splitter = StratifiedShuffleSplit(1, test_size=size, random_state=state)
        try:
            keep, taken = next(splitter.split(rest, labels[rest]))
        except ValueError as error:
            raise _too_few(labels, fractions, str(error)) from error
        found[rest[taken]] = split
        rest = np.sort(rest[keep])
    return found


def _by_group(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Makes folds of whole groups with about the same labels, and deals out the folds."""
    from sklearn.model_selection import StratifiedGroupKFold

    exact = math.lcm(
        *(Fraction(share).limit_denominator(_MOST_FOLDS).denominator for share in fractions)
    )
    number_of_groups = len(np.unique(groups))
    folds = min(exact, _MOST_FOLDS, number_of_groups, int(np.bincount(labels).min()))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=state)
    order = splitter.split(np.zeros(len(labels)), labels, groups)
    found = np.zeros(len(labels), np.int8)
    for split in (TEST, VALIDATION):
        number = max(1, round(fractions[split] * folds)) if fractions[split] > 0 else 0
        for _, taken in islice(order, number):
            found[taken] = split
    return found


def _by_many_groups(
    labels: np.ndarray, groups: np.ndarray, fractions: Sequence[float], state: int
) -> np.ndarray:
    """Deals out whole groups, the largest first, each to the split that most lacks its label.

    The label of a group is that of most of its rows. A group that is larger than what any split
    lacks goes where most rows are lacking, which is usually the training. The last groups of a
    label go to the splits that have none.
    """
    label_of = _commonest(labels, groups)
    sizes = np.bincount(groups)
    order = np.random.default_rng(state).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    remaining = np.bincount(label_of, minlength=labels.max() + 1).tolist()  # groups of each label
    wanted = [
        {split: max(round(share * rows), 1) for split, share in enumerate(fractions) if share > 0}
        for rows in np.bincount(label_of, sizes, minlength=len(remaining)).tolist()
    ]
    lacking = [{**rows} for rows in wanted]
    found = np.zeros(len(sizes), np.int8)
    for group in order.tolist():
        label, size = int(label_of[group]), int(sizes[group])
        split = _neediest(lacking[label], wanted[label], size, remaining[label])
        found[group] = split
        lacking[label][split] -= size
        remaining[label] -= 1
    return found[groups]


def _neediest(
    lacking: Mapping[int, int], wanted: Mapping[int, int], size: int, remaining: int
) -> int:
    """The split of the next group of a label, of `size` rows.

    Args:
        lacking: Rows that each split still lacks.
        wanted: Rows that it shall have.
        remaining: The number of groups of the label that have no split yet, with this one.
    """
    empty = [split for split in lacking if lacking[split] == wanted[split]]
    if remaining <= len(empty):
        return max(empty, key=lacking.__getitem__)
    fitting = [split for split in lacking if lacking[split] >= size]
    if fitting:
        return max(fitting, key=lambda split: lacking[split] / wanted[split])
    return max(lacking, key=lacking.__getitem__)


def _commonest(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The label that most rows of each group have (on a tie the first), int64[groups]."""
    size = int(labels.max()) + 1
    cells, counts = np.unique(groups * size + labels, return_counts=True)
    cells = cells[np.lexsort((-counts, cells // size))]
    commonest: np.ndarray = cells[np.unique(cells // size, return_index=True)[1]] % size
    return commonest


def left_out(splits: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The splits, but LEFT_OUT for each row whose text is also in a later split.

    The order is training, validation, test, so the test split is always complete.
    """
    latest = np.zeros(texts.max() + 1, np.int8)
    np.maximum.at(latest, texts, splits)
    return np.where(splits < latest[texts], LEFT_OUT, splits).astype(np.int8)


def _too_few(labels: np.ndarray, fractions: Sequence[float], reason: str) -> DataError:
    return DataError(
        f"{len(labels):,} rows are too few to divide into data_config.split_fractions="
        f"{list(fractions)}: {reason}. Choose larger fractions, set a fraction to 0, or divide the "
        "rows yourself: data_config.split_column"
    )


def _check_counts(
    labels: np.ndarray, groups: np.ndarray, unit: str, splits: int, names: Sequence[str]
) -> None:
    """Refuses labels with fewer texts or groups than splits: some split could not have them."""
    pairs = np.unique(groups * len(names) + labels)
    counts = np.bincount(pairs % len(names), minlength=len(names))
    few = [f"{names[n]} ({counts[n]})" for n in np.flatnonzero(counts < splits).tolist()]
    if few:
        raise DataError(
            f"{len(few)} of {len(names)} labels have fewer {unit}s than there are splits "
            f"({splits}): {some_of(few, _LISTED)}. Is data_config.label_column the column "
            "of the labels? Merge or remove rare labels, set a fraction of "
            "data_config.split_fractions to 0, or divide the rows yourself: "
            "data_config.split_column"
        )


def text_key(text: str) -> int:
    """A hash of 64 bits that is equal for texts that differ in white space only."""
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode())


def some_of(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first items, and how many more there are."""
    more = [f"and {len(items) - most:,} more"] if len(items) > most else []
    return separator.join([*items[:most], *more])


def repeats(
    rows: np.ndarray, texts: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> list[str]:
    """Describes repeated texts, and those with several labels, by the numbers of their rows."""
    distinct = int(texts.max()) + 1
    if distinct == len(texts):
        return []
    notes = [
        f"{len(texts) - distinct:,} of {len(texts):,} rows repeat the text of an earlier row "
        "(compared without differences in white space)"
    ]
    cells, first = np.unique(texts * len(names) + labels, return_index=True)
    owners = cells // len(names)
    ambiguous = np.flatnonzero(np.bincount(owners) > 1)
    if len(ambiguous):
        shown = [
            " and ".join(
                f"row {rows[row]:,} ({names[labels[row]]})"
                for row in np.sort(first[owners == text])[:2]
            )
            for text in ambiguous[:_SHOWN]
        ]
        more = f"; and {len(ambiguous) - _SHOWN:,} more" if len(ambiguous) > _SHOWN else ""
        verb = "text has" if len(ambiguous) == 1 else "texts have"
        notes.append(f"{len(ambiguous):,} {verb} more than one label: {'; '.join(shown)}{more}")
    return notes


def leaks(splits: np.ndarray, texts: np.ndarray) -> list[str]:
    """Describes how much of each held-out split is also in the training split."""
    notes = []
    for split in range(TRAIN + 1, len(SPLITS)):
        own = texts[splits == split]
        seen = int(np.isin(own, texts[splits == TRAIN]).sum())
        if seen:
            notes.append(
                f"{seen:,} of {len(own):,} rows of the {SPLITS[split]} split have a text that is "
                "also in the training split: scores on them are too high"
            )
    return notes


def similar_labels(names: Sequence[str]) -> list[str]:
    """Describes labels that differ only in case, white space, or the form of their characters or
    of their number (`1` and `1.0`).
    """
    plain = {name: _plain(name) for name in names}
    pairs = [
        f"{first!r} and {second!r}"
        for first, second in pairwise(sorted(names, key=lambda name: (plain[name], name)))
        if plain[first] == plain[second]
    ]
    return [f"labels that may be meant as one: {some_of(pairs, _SHOWN)}"] if pairs else []


def _plain(name: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return str(Fraction(text)) if _NUMBER.fullmatch(text) else text

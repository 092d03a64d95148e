"""The examples of a database: texts in chunks, read by their ids, in any process.

A text that exceeds the sequence length is folded: it continues in further chunks, and nothing is
truncated. The tokens of a text's chunks, joined without their special tokens, are the tokens of the
text; their texts, joined, are the text.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.text.tokenizer import special_tokens, tokens_with_places
from bsmeta.tasks.classification.splits import SPLITS

TOKENS_WITHOUT_LIMIT = 512
"""Tokens of a chunk of words, at most, if the tokenizer does not state the limit of its model."""

_STATES_NO_LIMIT = 10**6  # transformers gives such tokenizers a model_max_length of 1e30
_WORD = re.compile(r"\S+")
log = logging.getLogger(__name__)
IDS = np.dtype("<i4")
"""How the ids of a chunk are stored."""
_ROWS_PER_QUERY = 1000
_TIMEOUT_S = 60  # for the write of another process


@dataclass(frozen=True, slots=True)
class Fold:
    """One chunk of a text.

    Attributes:
        ids: Its tokens, with the special tokens of the model.
        text: Its part of the text.
    """

    ids: list[int]
    text: str


class Folding:
    """Cuts texts into chunks, by tokens or by words.

    Args:
        tokenizer: A fast tokenizer; its special tokens surround each chunk.
        fold_by: `tokens`: a chunk has at most `max_length` tokens, special tokens included, and
            may end within a word. `words`: a chunk has at most `max_length` words (separated by
            white space), as in seed document 004, and not more tokens than the tokenizer states
            for its model; only a word that exceeds this is cut.
        max_length: See `fold_by`.

    Raises:
        ConfigurationError: If the tokenizer gives no positions in the text, or `max_length` leaves
            no room beside the special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, fold_by: str, max_length: int) -> None:
        if not tokenizer.is_fast:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is a slow tokenizer, which does not "
                "give the positions of its tokens; expected one with a tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._prefix, self._suffix = special_tokens(tokenizer)
        specials = len(self._prefix) + len(self._suffix)
        by_words = fold_by == "words"
        self._max_words = max_length if by_words else None
        self._max_tokens = (words_limit(tokenizer) if by_words else max_length) - specials
        if self._max_tokens < 1:
            raise ConfigurationError(
                f"data_config.max_length={max_length}: expected at least {specials + 1}, because "
                f"each chunk has {specials} special tokens"
            )

    def fold(self, texts: Sequence[str]) -> list[list[Fold]]:
        """The chunks of each text, in their order; none for a text without tokens."""
        encoded = tokens_with_places(self._tokenizer, texts)
        return [
            self._chunks(text, ids, _starts(places)) if ids else []
            for text, (ids, places) in zip(texts, encoded, strict=True)
        ]

    def _chunks(self, text: str, ids: list[int], starts: np.ndarray) -> list[Fold]:
        cuts = self._cuts(text, starts)
        places = [0, *(int(starts[cut]) for cut in cuts[1:-1]), len(text)]
        return [
            Fold([*self._prefix, *ids[cuts[n] : cuts[n + 1]], *self._suffix], text[begin:end])
            for n, (begin, end) in enumerate(pairwise(places))
        ]

    def _cuts(self, text: str, starts: np.ndarray) -> list[int]:
        """Where chunks begin, in tokens, and the number of tokens."""
        total = len(starts)
        if self._max_words is None:
            return [*range(0, total, self._max_tokens), total]
        ends = np.array([match.end() for match in _WORD.finditer(text)], np.int64)
        # White space between words counts to the next one, and after the last word to that.
        words = np.searchsorted(ends[:-1], starts, side="right")
        cuts = [0]
        while cuts[-1] < total:
            first = cuts[-1]
            end = int(np.searchsorted(words, words[first] + self._max_words))
            if end - first > self._max_tokens:
                end = _word_end(words, first, first + self._max_tokens)
            cuts.append(end)
        return cuts


def _starts(places: np.ndarray) -> np.ndarray:
    """Where each token begins in its text, int64[tokens]; never before the token that precedes."""
    return np.maximum.accumulate(places[:, 0])


def _word_end(words: np.ndarray, first: int, limit: int) -> int:
    """The last end of a word at or before the token `limit`; `limit` within a first long word."""
    begin = int(np.searchsorted(words, words[limit]))  # where the word of the next token begins
    return begin if begin > first else limit


def words_limit(tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens of a chunk of words, with the special ones."""
    stated = int(tokenizer.model_max_length)
    return stated if stated < _STATES_NO_LIMIT else TOKENS_WITHOUT_LIMIT


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a source text that fits into the model, and the label of the text.

    Attributes:
        ids: Its tokens, with the special tokens of the model.
        label: The number of its label in `Examples.labels`.
        source: The number of its source row in the CSV file, from 1.
        number: Its position in the text, from 0.
        text: Its part of the text.
    """

    ids: list[int]
    label: int
    source: int
    number: int
    text: str


class Examples:
    """A database, opened for reading.

    Can be used by forked loader processes: each opens a connection of its own.

    Attributes:
        database: The file.
        key: What determines its content.
        facts: What is known about its making: `csv`, the file; `notes` on how it was read;
            `skipped`, the number of bad rows; `warnings`, about repeated texts and labels.
        labels: The labels, in the order of their numbers.

    Raises:
        DataError: If it is no database of this program, or is damaged.
    """

    def __init__(self, database: Path) -> None:
        self.database = database
        self._connections: dict[int, sqlite3.Connection] = {}
        _finish_write(database)
        _check_size(database)
        facts = {name: json.loads(value) for name, value in self._query("SELECT * FROM facts")}
        self.key: dict[str, Any] = facts.pop("key")
        self.facts: dict[str, Any] = facts
        self.labels = tuple(
            name for (name,) in self._query("SELECT name FROM labels ORDER BY number")
        )

    def sources(self, split: str) -> np.ndarray:
        """The numbers of a split's source rows, ascending, int64[rows]."""
        return self._column("row", split)

    def source_labels(self, split: str) -> np.ndarray:
        """The number of the label of each of a split's source rows, int64[rows]."""
        return self._column("label", split)

    def groups(self, split: str) -> list[str]:
        """The group of each of a split's source rows; without groups, the first row of its text."""
        sql = "SELECT coalesce(group_name, row) FROM sources WHERE split = ? ORDER BY row"
        return [str(group) for (group,) in self._query(sql, (SPLITS.index(split),))]

    def chunks(self, split: str) -> np.ndarray:
        """The ids of a split's chunks, ascending, int64[chunks]."""
        first, count = self._column("first_chunk", split), self._column("chunks", split)
        ends = np.cumsum(count)
        return np.repeat(first - (ends - count), count) + np.arange(count.sum())

    def label_counts(self, split: str) -> dict[str, int]:
        """How many of a split's source rows have each label."""
        counts = np.bincount(self.source_labels(split), minlength=len(self.labels))
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def read(self, chunk_ids: Sequence[int] | np.ndarray) -> list[Chunk]:
        """The chunks with these ids, in this order."""
        wanted = [int(number) for number in chunk_ids]
        found: dict[int, Chunk] = {}
        for first in range(0, len(wanted), _ROWS_PER_QUERY):
            part = wanted[first : first + _ROWS_PER_QUERY]
            places = ",".join("?" * len(part))
            sql = (
                "SELECT id, ids, sources.label, source, number, text FROM chunks JOIN sources "
                f"ON sources.row = chunks.source WHERE id IN ({places})"
            )
            for number, ids, *rest in self._query(sql, part):
                found[number] = Chunk(np.frombuffer(ids, IDS).tolist(), *rest)
        return [found[number] for number in wanted]

    def texts(self, split: str) -> Iterator[tuple[int, str, int]]:
        """Yields the number, the whole text and the number of the label of each source row."""
        sql = (
            "SELECT source, text, sources.label FROM chunks JOIN sources "
            "ON sources.row = chunks.source WHERE sources.split = ? ORDER BY chunks.id"
        )
        row, label, parts = 0, 0, [""]
        for source, text, number in self._query(sql, (SPLITS.index(split),)):
            if source != row:
                if row:
                    yield row, "".join(parts), label
                row, label, parts = source, number, []
            parts.append(text)
        if row:
            yield row, "".join(parts), label

    def save_results(self, run: str, results: dict[str, Any]) -> None:
        """Keeps the results of a run in the database; call it on one process only.

        A database that cannot be written is logged: the files of the run have the results, too.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with closing(sqlite3.connect(self.database, _TIMEOUT_S)) as connection, connection:
                connection.execute(
                    "INSERT INTO results (run, time, results) VALUES (?, ?, ?)",
                    (run, now, json.dumps(results)),
                )
        except sqlite3.Error as error:
            log.warning("%s does not keep the results of the run: %s", self.database, error)

    def _column(self, name: str, split: str) -> np.ndarray:
        sql = f"SELECT {name} FROM sources WHERE split = ? ORDER BY row"
        values = (value for (value,) in self._query(sql, (SPLITS.index(split),)))
        return np.fromiter(values, np.int64)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            process = os.getpid()
            if process not in self._connections:
                # SQLite forbids to use a connection after a fork; the parent's is not closed here.
                self._connections[process] = connect(self.database)
            yield from self._connections[process].execute(sql, values)
        except sqlite3.Error as error:
            raise damaged(self.database, str(error)) from error


def connect(database: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    return sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", _TIMEOUT_S, uri=True)


def damaged(database: Path, reason: str) -> DataError:
    """The error about a file that cannot be used."""
    return DataError(
        f"{database} is damaged, or no database of this task ({reason}); delete it to build it "
        "again from the CSV file, or name another file with data_config.database"
    )


def _finish_write(database: Path) -> None:
    """Takes back a write that a kill interrupted, which a connection that only reads cannot."""
    if database.with_name(f"{database.name}-journal").exists():
        try:
            with closing(sqlite3.connect(database, _TIMEOUT_S)) as connection:
                connection.execute("SELECT count(*) FROM results")
        except sqlite3.Error as error:
            raise damaged(database, str(error)) from error


def _check_size(database: Path) -> None:
    """Finds a file that was cut off, of which SQLite only notices the missing pages it reads."""
    try:
        size = database.stat().st_size
        with open(database, "rb") as file:
            head = file.read(100)
    except OSError as error:
        raise DataError(f"{database} cannot be read: {error.strerror}") from error
    page = int.from_bytes(head[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if not head.startswith(b"SQLite format 3\0"):
        raise damaged(database, "it is not an SQLite file")
    if size < expected:
        raise damaged(database, f"{size:,} bytes instead of {expected:,}")

"""The encoded sentences of a file: an Arrow store, built once and memory-mapped by all processes.

    lines -> rows (chunks) -> tokens -> Arrow

A sentence is divided into rows that fit: not too many mentions, words or tokens. Every mention is
in one row. A sentence that has only too many mentions becomes several rows of its whole text, each
with some of the mentions; of a long sentence, a row has the words around its mentions.

A row has plain tokens, without special ones: `sentence` (its `sent_idx_unq`), `line` (in the file),
`document` (a number derived from its name), `input_ids`, and for each of its mentions `start` and
`end` (tokens of the row), `alias` (its number in the table), `entities` (those of the entities
that it means), `gold` (false: a weak label), `position` (among the mentions of the line) and
`slices` (names).

Lines are encoded in groups. Those that an interrupted build has completed are kept.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import xxhash
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.core.files import file_hash
from bsmeta.core.progress import file_bar
from bsmeta.core.signals import plain_children
from bsmeta.data.io.files import Cache
from bsmeta.data.io.lines import SMALLEST, IndexCache, LineReader
from bsmeta.data.stream.fingerprint import tokenizer_fingerprint
from bsmeta.data.table.stream import open_store, saved_key
from bsmeta.data.text.tokenizer import tokens_with_places
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import (
    Line,
    Problems,
    Scan,
    read_part,
    scan_lines,
    word_spans,
)

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)
FORMAT = 2
_ENTITIES = "data_config.entity_table"
PART = 500
"""Lines that are encoded at a time."""
GROUP = 40
"""Parts of each process that are completed together: an interrupted build loses a group."""
_OF_ROWS = {"sentence": "int64", "line": "uint32", "document": "int64", "lost": "uint32"}
_OF_MENTIONS = {
    "start": "uint16",
    "end": "uint16",
    "alias": "int32",
    "gold": "bool",
    "position": "uint32",
}
_NAMED = 5  # lines with lost mentions that a warning names


@dataclass(frozen=True, slots=True)
class Limits:
    """What a row may hold.

    Attributes:
        mentions: Mentions, at most.
        words: Words, at most.
        tokens: Tokens without special ones, at most.
    """

    mentions: int
    words: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of a sentence.

    Attributes:
        start: Its first token.
        end: The token after its last one.
        mentions: Numbers of its mentions, in the order of the text.
    """

    start: int
    end: int
    mentions: list[int]


def overlapping(spans: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The range of parts (tokens or words) that each span overlaps.

    Args:
        spans: int[n, 2], characters.
        parts: int[m, 2], characters; starts and ends do not fall.

    Returns:
        int[n, 2], first part and the one after the last; not ascending where a span has none.
    """
    first = np.searchsorted(parts[:, 1], spans[:, 0], side="right")
    after = np.searchsorted(parts[:, 0], spans[:, 1], side="left")
    return np.stack([first, after], axis=1)


def divide(
    mentions: np.ndarray, words: np.ndarray, tokens: np.ndarray, limits: Limits
) -> tuple[list[Chunk], int]:
    """The rows of a sentence.

    Args:
        mentions: int[n, 2], the characters of each mention.
        words: int[w, 2], the characters of each word.
        tokens: int[t, 2], the characters of each token.
        limits: What a row may hold.

    Returns:
        The rows, and the number of mentions that no row can hold: longer than a row, or without a
        token.
    """
    in_words, in_tokens = overlapping(mentions, words), overlapping(mentions, tokens)
    lengths = in_tokens[:, 1] - in_tokens[:, 0]
    fits = (lengths > 0) & (lengths <= limits.tokens)
    fits &= in_words[:, 1] - in_words[:, 0] <= limits.words
    order = [int(i) for i in np.lexsort((mentions[:, 1], mentions[:, 0])) if fits[i]]
    chunks = [
        Chunk(
            *_window(_hull(in_words[group]), _hull(in_tokens[group]), words, tokens, limits), group
        )
        for group in _groups(order, in_words, in_tokens, limits)
    ]
    return chunks, len(mentions) - len(order)


def _groups(
    order: Sequence[int], in_words: np.ndarray, in_tokens: np.ndarray, limits: Limits
) -> list[list[int]]:
    """Groups of consecutive mentions of about equal size, each of which fits into a row."""
    if not order:
        return []
    least = -(-len(order) // limits.mentions)
    size = -(-len(order) // least)
    words, tokens = in_words.tolist(), in_tokens.tolist()  # arrays are slow one by one
    groups: list[list[int]] = []
    last_word = last_token = 0
    for mention in order:
        last_word = max(last_word, words[mention][1])
        last_token = max(last_token, tokens[mention][1])
        if (
            groups
            and len(groups[-1]) < size
            and last_word - words[groups[-1][0]][0] <= limits.words
            and last_token - tokens[groups[-1][0]][0] <= limits.tokens
        ):
            groups[-1].append(mention)
        else:
            groups.append([mention])
            last_word, last_token = words[mention][1], tokens[mention][1]
    return groups


def _hull(ranges: np.ndarray) -> tuple[int, int]:
    return int(ranges[:, 0].min()), int(ranges[:, 1].max())


def _window(
    in_words: tuple[int, int],
    in_tokens: tuple[int, int],
    words: np.ndarray,
    tokens: np.ndarray,
    limits: Limits,
) -> tuple[int, int]:
    """The tokens around some mentions that a row has room for."""
    first, after = widen(*in_words, 0, len(words), limits.words)
    around = np.array([[words[first, 0], words[after - 1, 1]]])
    low, high = overlapping(around, tokens)[0]
    return widen(*in_tokens, int(low), int(high), limits.tokens)


def widen(start: int, end: int, low: int, high: int, size: int) -> tuple[int, int]:
    """A range around another, of `size` if there is room, with as much before as after it.

    Args:
        start: Of the range inside.
        end: Of the range inside; `end - start <= size`.
        low: The least start.
        high: The greatest end.
        size: The greatest length.
    """
    spare = size - (end - start)
    after = min(high - end, spare - min(start - low, spare // 2))
    before = min(start - low, spare - after)
    return start - before, end + after


@dataclass(frozen=True)
class Prep:
    """The encoded sentences of a file.

    Attributes:
        rows: The rows; see the module.
        facts: `sentences`, `rows`, `mentions`, `lost` (mentions that no row can hold),
            `bytes_per_mention`, and `slices` (the names of those that lines define).
        key: What the store was built from.
    """

    rows: Dataset
    facts: dict[str, Any]
    key: dict[str, Any]

    def __str__(self) -> str:
        return (
            "{sentences:,} sentences, {rows:,} rows, {mentions:,} mentions ({lost:,} left out), "
            "{bytes_per_mention:.0f} bytes a mention"
        ).format(**self.facts)


def open_prep(
    path: Path,
    table: EntityTable,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    limits: Limits,
    *,
    by_content: bool = False,
    workers: int = 1,
    overwrite: bool = False,
) -> Prep:
    """The encoded sentences of a file, which are built first if there are none.

    Every process of a run calls it: one process per machine builds while the others wait.

    Args:
        path: Training lines.
        table: The entities. A store that was built before entities were added to it is valid.
        tokenizer: A fast tokenizer.
        folder: Where the store is, or will be.
        limits: What a row may hold.
        by_content: Append a hash of the file's content and the settings to the name of the folder,
            for files of any name: such a store is never stale.
        workers: Processes that encode.
        overwrite: Build a store again that was built from another file or with other settings.

    Raises:
        ConfigurationError: If the store was built from another file or with other settings.
        DataError: If lines are invalid, or the store is damaged or cannot be written.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected lines of sentences")
    encoder = Encoder(path, table, tokenizer, limits)
    key = {
        "format": FORMAT,
        "file": file_hash(path),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        _ENTITIES: table.fingerprint,
        "data_config.max_mentions": limits.mentions,
        "data_config.max_words": limits.words,
        "max_tokens": limits.tokens,
    }
    if by_content:
        folder = folder.with_name(f"{folder.name}-{_digest(key)}")
    entities = saved_key(folder).get(_ENTITIES, "")
    if table.entities_of(entities) is not None:
        key[_ENTITIES] = entities
    work = folder.with_name(f"{folder.name}.work")
    with plain_children():  # those of `Dataset.map`
        rows = open_store(
            folder, key, lambda: _build(encoder, work, key, workers), overwrite=overwrite,
            remedy="build it again with data_config.overwrite_prep=true",
        )  # fmt: skip
    shutil.rmtree(work, ignore_errors=True)
    facts = json.loads(rows.info.description)
    size = sum(file.stat().st_size for file in folder.glob("*.arrow"))
    prep = Prep(rows, {**facts, "bytes_per_mention": size / facts["mentions"]}, saved_key(folder))
    log.info("%s: %s", path, prep)
    return prep


def _digest(key: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(key).encode())


def _build(encoder: Encoder, work: Path, key: dict[str, Any], workers: int) -> Dataset:
    """The rows, encoded group by group; those of groups that are in `work` are read from there.

    Raises:
        DataError: If lines are invalid, or there is no mention.
    """
    from datasets import Dataset, Features, List, Value, concatenate_datasets

    ids = "uint16" if len(encoder.tokenizer) <= 1 << 16 else "int32"
    features = Features(
        {
            **{name: Value(dtype) for name, dtype in _OF_ROWS.items()},
            "input_ids": List(Value(ids)),
            **{name: List(Value(dtype)) for name, dtype in _OF_MENTIONS.items()},
            "entities": List(List(Value("int32"))),
            "slices": List(List(Value("string"))),
        }
    )
    digest = _digest(key)
    encoder.index_folder = _index(encoder.path, work / "index")
    with file_bar(encoder.path, f"reading {encoder.path.name}") as advance:
        scan = scan_lines(encoder.path, advance)
    if scan.unused:
        listed = ", ".join(f"{name} ({count:,} lines)" for name, count in scan.unused.items())
        log.warning("%s: fields that are not used: %s", encoder.path, listed)
    firsts = range(0, scan.lines, PART)
    groups = []
    work.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(firsts), GROUP * workers):
        group = firsts[start : start + GROUP * workers]
        name = f"{digest}-{group[0]}-{len(group)}"
        parts = Dataset.from_dict({"first": list(group)})
        rows = parts.map(
            encoder,
            batched=True,
            batch_size=1,
            num_proc=workers if workers > 1 else None,
            features=features,
            remove_columns=["first"],
            cache_file_name=str(work / f"{name}.arrow"),
            load_from_cache_file=True,
            new_fingerprint=name,
            desc=f"encoding {encoder.path.name}",
        )
        groups.append(rows)
    if not groups:
        raise DataError(f"{encoder.path} is empty; expected lines of sentences")
    return _finished(concatenate_datasets(groups), encoder.path, scan)


def _index(path: Path, folder: Path) -> Path | None:
    """The folder with access points of a large file, so that its parts are entered quickly."""
    if path.stat().st_size < SMALLEST:
        return None
    try:
        IndexCache(Cache(str(folder))).build(str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return folder


def _finished(rows: Dataset, path: Path, scan: Scan) -> Dataset:
    """The rows without those that have no mention, and with facts about them."""
    counts = pc.list_value_length(rows.data.column("alias")).to_numpy()
    if not counts.sum():
        raise DataError(f"{path} has no mention of an entity that can be used")
    lines, lost = (rows.data.column(name).to_numpy() for name in ("line", "lost"))
    _refuse_repeated(path, rows.data.column("sentence").to_numpy(), lines)
    if lost.any():
        named = ", ".join(map(str, lines[lost > 0][:_NAMED]))
        log.warning(
            "%s: mentions left out because a row cannot hold them, or they have no token: %d "
            "(first lines: %s)",
            path,
            lost.sum(),
            named,
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


def _refuse_repeated(path: Path, sentences: np.ndarray, lines: np.ndarray) -> None:
    """Refuses numbers of sentences that are not unique."""
    order = np.lexsort((lines, sentences))
    sentences, lines = sentences[order], lines[order]
    same = np.flatnonzero((sentences[1:] == sentences[:-1]) & (lines[1:] != lines[:-1]))
    problems = Problems(path)
    for place in same:
        problems.add(
            int(lines[place + 1]),
            f"sent_idx_unq {sentences[place]} is that of line {lines[place]:,}, too",
        )
    problems.close()


class Encoder:
    """Encodes lines of a file; called by `Dataset.map`, in any process.

    Args:
        path: The file.
        table: The entities.
        tokenizer: The tokenizer.
        limits: What a row may hold.
    """

    def __init__(
        self, path: Path, table: EntityTable, tokenizer: PreTrainedTokenizerBase, limits: Limits
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.index_folder: Path | None = None
        self._table = table
        self._limits = limits
        self._reader: LineReader | None = None
        list(
            tokens_with_places(tokenizer, [""])
        )  # switches off truncation, which is a part of the fingerprint

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}  # each process opens the file

    def __call__(self, parts: dict[str, list[int]]) -> dict[str, list[Any]]:
        """The rows of some parts, each given by its first line (from 0)."""
        if self._reader is None:
            folder = self.index_folder
            indexes = IndexCache(Cache(str(folder))) if folder else None
            self._reader = LineReader(str(self.path), indexes)
        rows = [row for first in parts["first"] for row in self.part(self._reader, first)]
        names = [*_OF_ROWS, "input_ids", *_OF_MENTIONS, "entities", "slices"]
        return {name: [row[name] for row in rows] for name in names}

    def part(self, reader: LineReader, first: int) -> Iterator[dict[str, Any]]:
        """Encodes `PART` lines from line `first` on; raises DataError with all that is wrong."""
        problems = Problems(self.path)
        lines = list(read_part(self.path, problems, reader, first, PART))
        entities = [self._entities(line, problems) for line in lines]
        problems.close()
        encoded = tokens_with_places(self.tokenizer, [line.text for line in lines])
        for line, found, (ids, tokens) in zip(lines, entities, encoded, strict=True):
            yield from self._rows(line, found, ids, tokens)

    def _entities(self, line: Line, problems: Problems) -> tuple[list[int], list[list[int]]]:
        """The numbers of the aliases and of the entities of a line's mentions."""
        aliases = [self._table.alias_index(mention.alias) for mention in line.mentions]
        entities = [[*map(self._table.find, mention.entities)] for mention in line.mentions]
        for mention, alias, found in zip(line.mentions, aliases, entities, strict=True):
            if alias < 0:
                problems.add(line.number, f"no entity has the alias {mention.alias!r}")
            for name, entity in zip(mention.entities, found, strict=True):
                if entity < 0:
                    problems.add(line.number, f"there is no entity {name!r}")
        return aliases, entities

    def _rows(
        self,
        line: Line,
        found: tuple[list[int], list[list[int]]],
        ids: list[int],
        tokens: np.ndarray,
    ) -> Iterator[dict[str, Any]]:
        spans = [(mention.start, mention.end) for mention in line.mentions]
        mentions = np.array(spans, np.int64).reshape(-1, 2)
        words = word_spans(line.text)
        chunks, lost = divide(mentions, words, tokens, self._limits)
        if lost:
            chunks.append(Chunk(0, 0, []))  # a row without mentions reports it, and is removed
        in_tokens = overlapping(mentions, tokens)
        document = xxhash.xxh3_64_intdigest(line.document.encode()) >> 1  # a positive int64
        for chunk in chunks:
            own = [line.mentions[number] for number in chunk.mentions]
            yield {
                "sentence": line.sentence,
                "line": line.number,
                "document": document,
                "lost": 0 if own else lost,
                "input_ids": ids[chunk.start : chunk.end],
                "start": (in_tokens[chunk.mentions, 0] - chunk.start).tolist(),
                "end": (in_tokens[chunk.mentions, 1] - chunk.start).tolist(),
                "alias": [found[0][number] for number in chunk.mentions],
                "entities": [found[1][number] for number in chunk.mentions],
                "gold": [mention.is_gold for mention in own],
                "position": [mention.position for mention in own],
                "slices": [list(mention.slices) for mention in own],
            }

"""The encoded sentences of a file: an Arrow store, built once and memory-mapped by all processes.

    lines -> rows (chunks) -> tokens -> Arrow

A row is a sentence, or a part of one that fits (`divide`). It has plain tokens, without special
ones: `sentence` (its `sent_idx_unq`), `line` (in the file), `document` (a number derived from its
name), `input_ids`, and for each of its mentions `start` and `end` (tokens of the row), `alias` (its
number in the table), `entities` (those of the entities that it means), `gold` (false: a weak
label), `position` (among the mentions of the line) and `slices` (names).

Lines are encoded in groups. Those that an interrupted build has completed are kept.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import xxhash
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.core.files import file_hash
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import file_bar
from bsmeta.core.signals import plain_children
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import SMALLEST, IndexCache, LineReader
from bsmeta.data.table.store import open_store, saved_key
from bsmeta.data.text.tokenizer import tokenizer_fingerprint, tokens_with_places
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import (
    Line,
    Problems,
    Scan,
    read_part,
    scan_lines,
    word_spans,
)
from bsmeta.tasks.disambiguation.texts import Chunk, Limits, Row, divide, overlapping, pad

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)
FORMAT = 2
_ENTITIES = "data_config.entity_table"
PART = 500  # lines that are encoded at a time
GROUP = 40  # parts of each process that are completed together: an interrupted build loses a group
_OF_ROWS = {"sentence": "int64", "line": "uint32", "document": "int64", "lost": "uint32"}
_OF_MENTIONS = {
    "start": "uint16",
    "end": "uint16",
    "alias": "int32",
    "gold": "bool",
    "position": "uint32",
}
_NAMED = 5  # lines with lost mentions that a warning names


@dataclass(frozen=True)
class Sentences:
    """The encoded sentences of a file.

    Attributes:
        rows: The rows; see the module.
        facts: `sentences`, `rows`, `mentions`, `lost` (mentions that no row can hold),
            `bytes_per_mention`, and `slices` (the names of those that lines define).
        key: What the store was built from.
    """

    path: Path
    rows: Dataset
    facts: dict[str, Any]
    key: dict[str, Any]

    def __str__(self) -> str:
        return (
            "{sentences:,} sentences, {rows:,} rows, {mentions:,} mentions ({lost:,} left out), "
            "{bytes_per_mention:.0f} bytes a mention"
        ).format(**self.facts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the number of tokens of each row."""
        return np.asarray(self._column("input_ids").value_lengths().to_numpy()).astype(np.int64)

    def read(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """Some rows."""
        columns = self.rows[[int(number) for number in numbers]]
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [
            Row(
                number=int(number),
                sentence=row["sentence"],
                document=row["document"],
                tokens=np.array(row["input_ids"], np.int64),
                starts=np.array(row["start"], np.int64),
                ends=np.array(row["end"], np.int64),
                aliases=np.array(row["alias"], np.int64),
                entities=pad(row["entities"], -1),
                is_gold=np.array(row["gold"], bool),
                positions=np.array(row["position"], np.int64),
                slices=[tuple(names) for names in row["slices"]],
            )
            for number, row in zip(numbers, rows, strict=True)
        ]

    def gold(self) -> list[Row]:
        """All rows with a gold mention, without their weak labels.

        Raises:
            DataError: If there is none.
        """
        rows = (_without_weak_labels(row) for row in self.read(range(len(self.rows))))
        found = [row for row in rows if len(row.aliases)]
        if not found:
            raise DataError(f"{self.path} has no gold mention to score, only weak labels")
        return found

    def aliases(self) -> np.ndarray:
        """int64: the aliases of all mentions."""
        values = self._column("alias").flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).astype(np.int64)

    def meanings(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64: each entity of each mention, with the mention's document and alias."""
        counts = self._column("entities").flatten().value_lengths().to_numpy()
        of_rows = self._column("alias").value_lengths().to_numpy()
        documents = np.repeat(self._column("document").to_numpy().astype(np.int64), of_rows)
        entities = self._column("entities").flatten().flatten().to_numpy().astype(np.int64)
        return entities, np.repeat(documents, counts), np.repeat(self.aliases(), counts)

    def _column(self, name: str) -> Any:
        return self.rows.with_format("arrow")[:][name].combine_chunks()


def _without_weak_labels(row: Row) -> Row:
    if row.is_gold.all():
        return row
    names = ("starts", "ends", "aliases", "entities", "is_gold", "positions")
    kept: dict[str, Any] = {name: getattr(row, name)[row.is_gold] for name in names}
    slices = [own for own, is_gold in zip(row.slices, row.is_gold, strict=True) if is_gold]
    return replace(row, **kept, slices=slices)


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
) -> Sentences:
    """The encoded sentences of a file, which are built first if there are none.

    Every process of a run calls it: one process per machine builds while the others wait. A store
    that was built before entities were added to the table is valid.

    Args:
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
            folder, key, lambda: _build(encoder, work, _digest(key), workers), overwrite=overwrite,
            remedy="build it again with data_config.overwrite_prep=true",
        )  # fmt: skip
    shutil.rmtree(work, ignore_errors=True)
    facts = parse_json(rows.info.description)
    size = sum(file.stat().st_size for file in folder.glob("*.arrow"))
    facts["bytes_per_mention"] = size / facts["mentions"]
    found = Sentences(path, rows, facts, saved_key(folder))
    log.info("%s: %s", path, found)
    return found


def _digest(key: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(key).encode())


def _build(encoder: Encoder, work: Path, digest: str, workers: int) -> Dataset:
    """The rows, encoded group by group; those of groups that are in `work` are read from there.

    Raises:
        DataError: If lines are invalid, or there is no mention.
    """
    from datasets import Dataset, Features, List, Value, concatenate_datasets

    path = encoder.path
    features = {name: Value(dtype) for name, dtype in _OF_ROWS.items()}
    features["input_ids"] = List(Value("uint16" if len(encoder.tokenizer) <= 1 << 16 else "int32"))
    features |= {name: List(Value(dtype)) for name, dtype in _OF_MENTIONS.items()}
    features["entities"] = List(List(Value("int32")))
    features["slices"] = List(List(Value("string")))
    encoder.index_folder = _index(path, work / "index")
    with file_bar(path, f"reading {path.name}") as advance:
        scan = scan_lines(path, advance)
    if scan.unused:
        listed = ", ".join(f"{name} ({count:,} lines)" for name, count in scan.unused.items())
        log.warning("%s: fields that are not used: %s", path, listed)
    if scan.respelled:
        how = "in lower case, composed, with single spaces"
        log.warning("%s: aliases that are looked up %s: %d", path, how, scan.respelled)
    firsts = range(0, scan.lines, PART)
    groups = []
    work.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(firsts), GROUP * workers):
        group = firsts[start : start + GROUP * workers]
        name = f"{digest}-{group[0]}-{len(group)}"
        groups.append(
            Dataset.from_dict({"first": list(group)}).map(
                encoder,
                batched=True,
                batch_size=1,
                num_proc=workers if workers > 1 else None,
                features=Features(features),
                remove_columns=["first"],
                cache_file_name=str(work / f"{name}.arrow"),
                load_from_cache_file=True,
                new_fingerprint=name,
                desc=f"encoding {path.name}",
            )
        )
    if not groups:
        raise DataError(f"{path} is empty; expected lines of sentences")
    return _finished(concatenate_datasets(groups), path, scan)


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
        what = "because a row cannot hold them, or they have no token"
        log.warning("%s: mentions left out %s: %d (first lines: %s)", path, what, lost.sum(), named)
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
    order = np.lexsort((lines, sentences))
    sentences, lines = sentences[order], lines[order]
    same = np.flatnonzero((sentences[1:] == sentences[:-1]) & (lines[1:] != lines[:-1]))
    problems = Problems(path)
    for place in same:
        reason = f"sent_idx_unq {sentences[place]} is that of line {lines[place]:,}, too"
        problems.add(int(lines[place + 1]), reason)
    problems.close()


class Encoder:
    """Encodes lines of a file; called by `Dataset.map`, in any process; see `open_prep`.

    Attributes:
        index_folder: The access points of the file; None: there are none.
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
        # This switches off truncation, which is a part of the fingerprint.
        list(tokens_with_places(tokenizer, [""]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}  # each process opens the file

    def __call__(self, parts: dict[str, list[int]]) -> dict[str, list[Any]]:
        """The rows of some parts, each given by its first line (from 0)."""
        if self._reader is None:
            indexes = IndexCache(Cache(str(self.index_folder))) if self.index_folder else None
            self._reader = LineReader(str(self.path), indexes)
        rows = [row for first in parts["first"] for row in self.part(self._reader, first)]
        names = [*_OF_ROWS, "input_ids", *_OF_MENTIONS, "entities", "slices"]
        return {name: [row[name] for row in rows] for name in names}

    def part(self, reader: LineReader, first: int) -> Iterator[dict[str, Any]]:
        """Encodes `PART` lines from line `first` on; raises DataError with all that is wrong."""
        problems = Problems(self.path)
        lines = list(read_part(reader, problems, first, PART))
        numbers = [self._numbers(line, problems) for line in lines]
        problems.close()
        encoded = tokens_with_places(self.tokenizer, [line.text for line in lines])
        for line, (aliases, entities), (ids, tokens) in zip(lines, numbers, encoded, strict=True):
            for row in self._rows(line, tokens):
                row["input_ids"] = ids[row.pop("tokens")]
                row["alias"] = [aliases[number] for number in row["position"]]
                row["entities"] = [entities[number] for number in row["position"]]
                yield row

    def _numbers(self, line: Line, problems: Problems) -> tuple[list[int], list[list[int]]]:
        """The numbers of the aliases and of the entities of a line's mentions."""
        aliases = [self._table.aliases.find(mention.alias) for mention in line.mentions]
        entities = [[*map(self._table.ids.find, mention.entities)] for mention in line.mentions]
        for mention, alias, found in zip(line.mentions, aliases, entities, strict=True):
            if alias < 0:
                problems.add(line.number, f"no entity has the alias {mention.alias!r}")
            for name, entity in zip(mention.entities, found, strict=True):
                if entity < 0:
                    problems.add(line.number, f"there is no entity {name!r}")
        return aliases, entities

    def _rows(self, line: Line, tokens: np.ndarray) -> Iterator[dict[str, Any]]:
        spans = [(mention.start, mention.end) for mention in line.mentions]
        mentions = np.array(spans, np.int64).reshape(-1, 2)
        chunks, lost = divide(mentions, word_spans(line.text), tokens, self._limits)
        if lost:
            chunks.append(Chunk(0, 0, []))  # a row without mentions reports it, and is removed
        in_tokens = overlapping(mentions, tokens)
        document = xxhash.xxh3_64_intdigest(line.document.encode()) >> 1  # a positive int64
        for chunk in chunks:
            own = [line.mentions[number] for number in chunk.mentions]
            places = in_tokens[chunk.mentions] - chunk.start
            yield {
                "sentence": line.sentence,
                "line": line.number,
                "document": document,
                "lost": 0 if own else lost,
                "tokens": slice(chunk.start, chunk.end),
                "start": places[:, 0].tolist(),
                "end": places[:, 1].tolist(),
                "gold": [mention.is_gold for mention in own],
                "position": chunk.mentions,
                "slices": [list(mention.slices) for mention in own],
            }

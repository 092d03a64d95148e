"""Training data of a disambiguator, from a crawl whose links were annotated as entities.

    profiles.jsonl          the pages that links may lead to: title, description, types, relations
    train.jsonl, dev.jsonl  sentences with mentions; the mention is an anchor, the gold entity the
                            page that it leads to; a page's sentences are in one of the two

The scores of mentions are counts in the training pages; a page's title is an alias of it, too.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import msgspec
import xxhash

from bsmeta.annotate.links import LinkedPage, LinkIndex, index_path, link_key
from bsmeta.config.errors import ConfigurationError
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.sentences import sentences

PROFILES, TRAIN, DEV = "profiles.jsonl", "train.jsonl", "dev.jsonl"
TITLE_SCORE = 0.5
"""The score of a page's title as its alias, beside its count: below that of any mention."""

RELATION = "links_to"

_SHARE = 1 << 64


class _Entity(msgspec.Struct):
    value: str
    char_start_idx: int
    char_end_idx: int
    url: str = ""


class _Row(msgspec.Struct):
    text: str
    url: str
    metadata_entity: list[_Entity] = []


_ROW = msgspec.json.Decoder(_Row)


def write_linked_sets(shards: Iterable[Path], output: Path, folder: Path, dev_share: float) -> str:
    """Writes the three files.

    Args:
        shards: The annotated shards.
        output: Their folder, with the index of pages.
        folder: Where the files go.
        dev_share: Share of the pages whose sentences are held out.

    Returns:
        A summary.

    Raises:
        ConfigurationError: If they cannot be written.
    """
    mentions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    relations: defaultdict[str, dict[str, None]] = defaultdict(dict)
    written: Counter[str] = Counter()
    numbers = count()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            names = (PROFILES, TRAIN, DEV)
            files = {name: stack.enter_context(_opened(folder, name)) for name in names}
            for row in _rows(shards):
                name = DEV if is_held_out(row.url, dev_share) else TRAIN
                for line in _lines(row):
                    _write(files[name], {"sent_idx_unq": next(numbers), **line})
                    written[name] += 1
                    if name == TRAIN:
                        for alias, page in zip(line["aliases"], line["qids"], strict=True):
                            mentions[page][alias] += 1
                            relations[link_key(row.url) or ""][page] = None
            for page in LinkIndex(index_path(output)).pages():
                _write(files[PROFILES], _profile(page, mentions[page.key], relations[page.key]))
                written[PROFILES] += 1
        for name in names:
            _part(folder, name).replace(folder / name)
    except OSError as error:
        raise ConfigurationError(f"disambiguation={folder} cannot be written: {error}") from error
    return f"{folder}: " + ", ".join(f"{name} ({written[name]:,} lines)" for name in names)


def is_held_out(url: str, share: float) -> bool:
    """Whether the sentences of a page are held out: its address alone decides."""
    return xxhash.xxh3_64_intdigest(url.encode()) < share * _SHARE


def _rows(shards: Iterable[Path]) -> Iterator[_Row]:
    for shard in shards:
        reader = LineReader(str(shard))
        number = 0
        while lines := reader.read(number, 1):
            number += 1
            yield _ROW.decode(lines[0])
        reader.close()


def _lines(row: _Row) -> Iterator[dict[str, Any]]:
    """A line for each sentence that has mentions; of a paragraph without full stops: for that."""
    entities = iter(sorted(row.metadata_entity, key=lambda entity: entity.char_start_idx))
    entity = next(entities, None)
    for start, end in _spans(row.text):
        found = []
        while entity is not None and entity.char_start_idx < end:
            if entity.char_start_idx >= start and entity.char_end_idx <= end:
                found.append(entity)
            entity = next(entities, None)
        if found:
            sentence = row.text[start:end]
            spans = [(one.char_start_idx - start, one.char_end_idx - start) for one in found]
            yield {
                "sentence": sentence,
                "aliases": [_alias(sentence[first:last]) for first, last in spans],
                "qids": [one.url for one in found],
                "char_spans": spans,
                "gold": [True] * len(found),
                "document": row.url,
            }


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the sentences of each line."""
    start = 0
    for line in text.splitlines(keepends=True):
        for first, last in sentences(line, "rules"):
            yield start + first, start + last
        start += len(line)


def _alias(mention: str) -> str:
    return " ".join(mention.lower().split())


def _profile(page: LinkedPage, counts: Counter[str], links: Iterable[str]) -> dict[str, Any]:
    scores = Counter({_alias(page.title): TITLE_SCORE}) + counts
    return {
        "entity_id": page.key,
        "mentions": sorted(scores.items(), key=lambda item: (-item[1], item[0])),
        "title": page.title,
        "description": page.description,
        "types": {"site": [page.site], "section": [page.section] if page.section else []},
        "relations": [{"relation": RELATION, "object": page} for page in links],
    }


def _part(folder: Path, name: str) -> Path:
    return folder / f"{name}.part"


def _opened(folder: Path, name: str) -> TextIO:
    return _part(folder, name).open("w", encoding="utf-8")


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False) + "\n")

"""What `entity_source=links` needs and makes over a whole crawl, before and after its shards.

Before: the titles of all pages of the input. Those of an input file are collected in
`_annotation/NAME.pages`, so that a killed run continues after the last complete file; together they
become the index of `links`.

After, if a folder is named for it: training data of a disambiguator.

    profiles.jsonl          the pages that links may lead to: title, description, types, relations
    train.jsonl, dev.jsonl  sentences with mentions; the mention is an anchor, the gold entity the
                            page that it leads to; a page's sentences are in one of the two

The scores of mentions are counts in the training pages; a page's title is an alias of it, too.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import msgspec
import xxhash

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import PAGE_STEP, Chunk, Counts, Failures
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.links import (
    LinkedPage,
    LinkIndex,
    index_digest,
    index_path,
    link_key,
    linked_page,
    write_index,
)
from bsmeta.annotate.page import VERSION, PageError, parse_page
from bsmeta.annotate.pipeline import Advance, chunks_of_file, make_pool, stopped_by_signals
from bsmeta.annotate.shard import FOLDER, PART, damaged_shard
from bsmeta.annotate.sources import InputFile, counted, decode
from bsmeta.annotate.spans import Entity
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import building
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.sentences import sentences

_PAGE = msgspec.json.Decoder(LinkedPage)

PROFILES, TRAIN, DEV = "profiles.jsonl", "train.jsonl", "dev.jsonl"
TITLE_SCORE = 0.5
"""Score added to the count of a page's title as its alias: less than that of any mention."""

RELATION = "links_to"

_SHARE = 1 << 64


def needs_index(annotators: Sequence[Annotator]) -> bool:
    """Whether an annotator looks pages up."""
    return any(isinstance(one, Entity) and one.reads_links for one in annotators)


def make_index(
    config: AnnotateConfig, files: Sequence[InputFile], output: Path, advance: Advance
) -> None:
    """Makes the index of the pages of all files, as far as it is not there.

    Raises:
        DataError: If a file is damaged.
        Stopped: If a signal arrives.
    """
    (output / FOLDER).mkdir(exist_ok=True)
    missing = [file for file in files if not _is_collected(config, output, file)]
    with stopped_by_signals(), make_pool(config, Collecting(config)) as pool:
        _collect(config, missing, output, pool.map(_chunks(config, missing)), advance)
    digest = xxhash.xxh3_64_hexdigest(b"".join(_header(config, file) for file in files))
    if index_digest(index_path(output)) != digest:
        pages = chain.from_iterable(_collected(_path(output, file)) for file in files)
        write_index(index_path(output), pages, digest)


class Collecting:
    """Collects the pages of a chunk, as JSON lines. Pages that fail are counted by the second pass.

    Args:
        config: The configuration.
    """

    def __init__(self, config: AnnotateConfig) -> None:
        self._page_bytes = int(config.page_mb * 1e6)

    def __call__(self, chunk: Chunk, failures: Failures, status: Any) -> bytes:
        """The JSON lines; see `chunks.Annotation` for the arguments."""
        lines = []
        for number, item in enumerate(chunk.items):
            if (number, PAGE_STEP) in failures:
                continue
            status.begin(number)
            record = decode(item, self._page_bytes)
            if not record.problem and record.html is not None:
                with suppress(PageError, MemoryError):
                    page = linked_page(parse_page(record.html), record.url)
                    lines += [msgspec.json.encode(page)] if page else []
        return b"".join(line + b"\n" for line in lines)


def _path(output: Path, file: InputFile) -> Path:
    return output / FOLDER / f"{file.name}.pages"


def _is_collected(config: AnnotateConfig, output: Path, file: InputFile) -> bool:
    try:
        with _path(output, file).open("rb") as lines:
            return lines.readline() == _header(config, file)
    except FileNotFoundError:
        return False


def _header(config: AnnotateConfig, file: InputFile) -> bytes:
    """The first line of the pages of a file: from what they were collected."""
    return f"{file.xxh3} {file.bytes} {VERSION} {int(config.page_mb * 1e6)}\n".encode()


def _collected(path: Path) -> Iterator[LinkedPage]:
    with path.open("rb") as lines:
        next(lines)
        yield from map(_PAGE.decode, lines)


def _chunks(config: AnnotateConfig, files: Sequence[InputFile]) -> Iterator[Chunk]:
    for number, file in enumerate(files):
        yield from chunks_of_file(config, Chunk(number), file.path)
        yield Chunk(number)


def _collect(
    config: AnnotateConfig,
    files: Sequence[InputFile],
    output: Path,
    results: Iterator[tuple[Chunk, bytes | None]],
    advance: Advance,
) -> None:
    """Writes the pages of each file; a file appears when it is complete."""
    before = [0, *accumulate(file.bytes for file in files)]
    opened: BinaryIO | None = None
    try:
        for chunk, lines in results:
            file = files[chunk.shard]
            path = _path(output, file)
            part = path.with_name(path.name + PART)
            if opened is None:
                opened = part.open("wb")
                opened.write(_header(config, file))
            if lines is None:
                opened.close()
                part.replace(path)
                opened = None
                continue
            opened.write(lines)
            advance(before[chunk.shard] + chunk.position, Counts(pages=len(chunk.items)))
    finally:
        if opened is not None:
            opened.close()


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


def write_linked_sets(
    shards: Iterable[Path], output: Path, folder: Path, dev_share: float, advance: Advance
) -> str:
    """Writes the three files.

    Args:
        shards: The annotated shards.
        output: Their folder, with the index of pages.
        folder: Where the files go.
        dev_share: Share of the pages whose sentences are held out.
        advance: Called after each shard with the bytes read so far.

    Returns:
        A summary.

    Raises:
        ConfigurationError: If they cannot be written.
        DataError: If a shard is damaged.
    """
    mentions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    relations: defaultdict[str, dict[str, None]] = defaultdict(dict)
    written: Counter[str] = Counter()
    numbers = count()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            names = (PROFILES, TRAIN, DEV)
            parts = {name: stack.enter_context(building(folder / name)) for name in names}
            files = {
                name: stack.enter_context(part.open("w", encoding="utf-8"))
                for name, part in parts.items()
            }
            for row in _rows(shards, advance):
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
    except OSError as error:
        raise ConfigurationError(f"disambiguation={folder} cannot be written: {error}") from error
    return f"{folder}: " + ", ".join(f"{name} ({counted(written[name], 'line')})" for name in names)


def is_held_out(url: str, share: float) -> bool:
    """Whether the sentences of a page are held out: its address alone decides."""
    return xxhash.xxh3_64_intdigest(url.encode()) < share * _SHARE


def _rows(shards: Iterable[Path], advance: Advance) -> Iterator[_Row]:
    done = 0
    for shard in shards:
        reader = LineReader(str(shard))
        number = 0
        while lines := reader.read(number, 1):
            number += 1
            yield _ROW.decode(lines[0])
        reader.close()
        if reader.damage:
            raise damaged_shard(shard, reader.damage)
        done += shard.stat().st_size
        advance(done, Counts(pages=number))


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


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False) + "\n")

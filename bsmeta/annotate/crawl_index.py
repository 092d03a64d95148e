"""The first of the two passes of `entity_source=links`: the titles of all pages of the input.

The pages of an input file are collected in `_annotation/NAME.pages`, so that a killed run continues
after the last complete file; together they become the index of `links`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import PAGE_STEP, Chunk, Counts, Failures
from bsmeta.annotate.inputs import InputFile
from bsmeta.annotate.links import LinkedPage, index_digest, index_path, linked_page, write_index
from bsmeta.annotate.page import VERSION, PageError, parse_page
from bsmeta.annotate.pipeline import Advance, chunks_of_file, make_pool, stopped_by_signals
from bsmeta.annotate.shard import FOLDER, PART
from bsmeta.annotate.sources import decode
from bsmeta.annotate.spans import Entity
from bsmeta.config.annotate import AnnotateConfig

_PAGE = msgspec.json.Decoder(LinkedPage)


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
    missing = [file for file in files if not _is_collected(_path(output, file), file)]
    with stopped_by_signals(), make_pool(config, Collecting(config)) as pool:
        _collect(missing, output, pool.map(_chunks(config, missing)), advance)
    content = " ".join([str(VERSION), *(file.xxh3 for file in files)])
    digest = xxhash.xxh3_64_hexdigest(content.encode())
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
            status.begin(number)
            record = decode(item, self._page_bytes)
            is_usable = not record.problem and record.html is not None
            if is_usable and (number, PAGE_STEP) not in failures:
                with suppress(PageError, MemoryError):
                    page = linked_page(parse_page(record.html or "", url=record.url), record.url)
                    lines += [msgspec.json.encode(page)] if page else []
        return b"".join(line + b"\n" for line in lines)


def _path(output: Path, file: InputFile) -> Path:
    return output / FOLDER / f"{file.name}.pages"


def _is_collected(path: Path, file: InputFile) -> bool:
    try:
        with path.open("rb") as lines:
            return lines.readline() == _header(file)
    except FileNotFoundError:
        return False


def _header(file: InputFile) -> bytes:
    """The first line of the pages of a file: from what they were collected."""
    return f"{file.xxh3} {file.bytes} {VERSION}\n".encode()


def _collected(path: Path) -> Iterator[LinkedPage]:
    with path.open("rb") as lines:
        next(lines)
        yield from map(_PAGE.decode, lines)


def _chunks(config: AnnotateConfig, files: Sequence[InputFile]) -> Iterator[Chunk]:
    for number, file in enumerate(files):
        yield from chunks_of_file(config, Chunk(number), file.path)
        yield Chunk(number)


def _collect(
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
                opened.write(_header(file))
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

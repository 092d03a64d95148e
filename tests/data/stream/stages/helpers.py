"""Windows of a few documents, and the stages before the one that is tested."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.io.shards import Shard
from bsmeta.data.stream.stages.items import BadLine, NumberedLine, ReadDocument, WindowDocument
from bsmeta.data.stream.window import Window
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.records import BadDocument, Line
from bsmeta.metadata.rendering import Rendered

SHARD = Shard("pages.jsonl", "/data/pages.jsonl", 1000)
TITLES = MetadataConfig(
    metadata_list=["title", "url"], metadata_probability=1.0, random_sample_metadata=False
)


def title_line(text: str, title: str = "") -> bytes:
    """A line with a text and, if there is one, its title."""
    records = [{"key": "title", "type": "global", "value": title}] if title else []
    return json.dumps({"text": text, "metadata_title": records}).encode()


def window_of(lines: Sequence[Line], first: int = 10, **changes: Any) -> Window:
    """A window whose documents are numbered from `first` on."""
    return Window(0, SHARD, range(first, first + len(lines)), lines, **changes)


def read(line: bytes, metadata: MetadataConfig = TITLES, types: Sequence[str] = ()) -> ReadDocument:
    """Line 10 of the shard as the stages between `decode` and `render` see it."""
    source = NumberedLine(0, 10, line)
    return ReadDocument(source, DocumentDecoder(metadata).decode(line), tuple(types))


def bad(reason: str, line: Line = b"{", number: int = 10) -> BadLine:
    """A line that an earlier stage could not use."""
    return BadLine(NumberedLine(0, number, line), BadDocument(reason, "the detail"))


def text_document(text: str, number: int = 10, **rendered: Any) -> WindowDocument:
    """A rendered document."""
    return WindowDocument(number, Rendered(text, body=text, **rendered))


def describe(items: Iterable[Any]) -> list[Any]:
    """Numbers and texts of documents, and numbers and reasons of bad lines."""
    described: list[Any] = []
    for item in items:
        if isinstance(item, BadLine):
            described.append((item.source.number, item.error.reason))
        elif isinstance(item, ReadDocument):
            described.append((item.source.number, item.document.text))
        else:
            described.append((item.number, item.rendered.full_text))
    return described


def skipping(**changes: Any) -> DataConfig:
    """A configuration that skips bad documents."""
    return DataConfig(bad_documents="skip", **{"metadata_config": TITLES} | changes)

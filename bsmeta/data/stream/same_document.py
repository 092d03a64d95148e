"""Defines which documents are the same: by text (`hash_text`), or by URL after `normalize_url`.

Texts and URLs are compared as 64-bit fingerprints (xxh3). `held_out` keeps held-out documents out
of training with them, and `shard_fingerprints` finds documents in training shards with them, so
that training and evaluations agree.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.text.same_text import hash_text
from bsmeta.metadata.decoding import TEXT_KEY, Decoder, make_decoder
from bsmeta.metadata.document import NO_COLUMN, Document
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import UNREADABLE, BadDocument, Line

LINE_BATCH_SIZE = 256  # lines read at a time

TEXT = "text"
URL = "url"

_URL = re.compile(r"\s*(?:https?:)?(?://)?([^/?#]*)([^?#]*)(\?[^#]+)?", re.IGNORECASE)
_PORT = re.compile(r":(?:80|443)?$")


class Fingerprint(NamedTuple):
    """A fingerprint of a document.

    Attributes:
        part: `TEXT` or `URL`.
        value: xxh3 hash of the part, 64 bits; texts and URLs have different seeds.
    """

    part: str
    value: int


def iterate_fingerprints(document: Document) -> Iterator[Fingerprint]:
    """Yields the fingerprints of a document: of its whole text, then of each URL; none if blank."""
    if document.whole_text.strip():
        yield Fingerprint(TEXT, hash_text(document.whole_text))

    for url in document.collect_addresses(ADDRESS_KEY):
        normalized = normalize_url(url)
        if normalized:
            yield Fingerprint(URL, xxhash.xxh3_64_intdigest(normalized.encode(), seed=1))


def normalize_url(url: str) -> str:
    """Normalizes a URL, so that variants that usually lead to the same page are equal.

    Removes the scheme (http or https) and its default port, trailing slashes of the path, an empty
    query, the fragment and surrounding spaces; lower-cases the host; decodes %-escapes.
    """
    host, path, query = _URL.match(url).groups("")  # type: ignore[union-attr]  # matches any string
    host = host.lower()
    if ":" in host:
        host = _PORT.sub("", host)

    normalized = host + path.rstrip("/ ") + query
    if "%" in normalized:
        normalized = unquote(normalized)
    return normalized.strip()


def name_columns(kind: str, columns: Mapping[str, str]) -> str:
    """Appends the columns on which fingerprints depend to the name of a result in the cache.

    Args:
        columns: The configured paths of text and metadata in a line; {}: the default columns.
    """
    if not columns:
        return kind
    paths = (columns.get(TEXT_KEY, TEXT_KEY), columns.get(ADDRESS_KEY, ADDRESS_KEY))
    return f"{kind}-{xxhash.xxh3_64_hexdigest(repr(paths).encode())}"


class NumberedDocument(NamedTuple):
    """A document, and the number of its line in the shard, from 0."""

    number: int
    document: Document


class UnreadableLine(NamedTuple):
    """A line that cannot be read, from 0, and the problem.

    Attributes:
        is_damage: Whether the shard is damaged here, so that no later line was read.
    """

    number: int
    problem: str
    is_damage: bool = False


def read_documents(
    path: str | FileRef, columns: Mapping[str, str]
) -> Iterator[NumberedDocument | UnreadableLine]:
    """Yields the documents of a shard, with their texts and URLs only; skips blank lines.

    Args:
        columns: The configured paths of text and metadata in a line; {}: the default columns.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If a remote file cannot be read, or a column has an unsupported type.
    """
    decoder = make_decoder(MetadataConfig(metadata_list=[]), columns)
    with contextlib.closing(open_shard(path, columns=decoder.columns)) as reader:
        while lines := reader.read(reader.line, LINE_BATCH_SIZE):
            for number, line in enumerate(lines, reader.line - len(lines)):
                try:
                    document = _read_document(decoder, line, is_mapped=bool(columns))
                except BadDocument as error:
                    if bytes(line).strip():
                        yield UnreadableLine(number, str(error))
                    continue
                yield NumberedDocument(number, document)

        if reader.damage:
            yield UnreadableLine(reader.line, reader.damage, is_damage=True)


class _TextAndURL(msgspec.Struct):
    """The text and URL of a line whose metadata may have any form."""

    text: str
    url: Any = None
    metadata_url: msgspec.Raw = NO_COLUMN


_LENIENT_DECODER = ForeignDecoder(_TextAndURL)


def _read_document(decoder: Decoder, line: Line, *, is_mapped: bool) -> Document:
    """Decodes a line; if its metadata is invalid, only its text and URL.

    Args:
        is_mapped: Whether the configuration maps columns.

    Raises:
        BadDocument: If its text cannot be decoded.
    """
    try:
        return decoder.decode(line)
    except BadDocument:
        if is_mapped:  # this decoder reads no metadata values, so the text itself is invalid
            raise
        with contextlib.suppress(*UNREADABLE):
            row = _LENIENT_DECODER.decode(bytes(line))
            url = row.url if isinstance(row.url, str) else None
            return Document(row.text, url, {}, address_column=row.metadata_url)
        raise

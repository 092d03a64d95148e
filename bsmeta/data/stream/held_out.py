"""Keeps held-out documents out of training by their content, whatever the file is called.

`shards` excludes the validation file by its name. Here the texts and URLs of its documents are
stored as 64-bit fingerprints (xxh3) in the cache folder, and every training document is looked up.
URLs are compared in the form of `normalized_url`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.files import Arrays, Cache, FileRef
from bsmeta.data.io.lines import open_shard
from bsmeta.data.io.shards import numbered
from bsmeta.metadata.decoding import TEXT, Decoder, make_decoder
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import NO_COLUMN, UNREADABLE, BadDocument, Document, Line

log = logging.getLogger(__name__)

KIND = "held-out-v2"  # facts of version 1 may lack documents whose lines could not be read
BATCH = 256
SHOWN = 3  # unreadable lines in a message

_URL = re.compile(r"\s*(?:https?:)?(?://)?([^/?#]*)([^?#]*)(\?[^#]+)?", re.IGNORECASE)
_PORT = re.compile(r":(?:80|443)?$")


class HeldOutFingerprints:
    """Fingerprints of the texts and URLs that must not be trained on."""

    def __init__(self, fingerprints: np.ndarray) -> None:
        self._fingerprints = frozenset(fingerprints.tolist())

    @classmethod
    def of(
        cls, path: str | FileRef, cache: Cache, columns: Mapping[str, str] | None = None
    ) -> HeldOutFingerprints:
        """Builds them from a file.

        Raises:
            OSError: If the file cannot be read.
            DataError: If the file is damaged or holds no document.
        """
        kind = kind_of(columns)
        kept = cache.load(path, kind)
        if kept is None:
            found: Arrays = {"fingerprints": fingerprints(path, columns)}
            try:
                cache.make(path, kind, lambda: found)
            except OSError as error:  # a read-only home folder only costs time
                log.warning("the hashes of held-out documents are not kept: %s", error)
            kept = found
        return cls(kept["fingerprints"])

    def overlap(self, document: Document) -> str:
        """What a document shares with the held-out ones: `text`, `url`, or nothing."""
        if text_fingerprint(document.whole_text) in self._fingerprints:
            return "text"
        for url in document.addresses(ADDRESS_KEY):
            if url_fingerprint(url) in self._fingerprints:
                return "url"
        return ""


def kind_of(columns: Mapping[str, str] | None) -> str:
    """The name of the facts in the cache: they depend on where texts and URLs are."""
    if not columns:
        return KIND
    places = (columns.get(TEXT, TEXT), columns.get(ADDRESS_KEY, ADDRESS_KEY))
    return f"{KIND}-{xxhash.xxh3_64_hexdigest(repr(places).encode())}"


def text_fingerprint(text: str) -> int:
    """The fingerprint of a text."""
    return xxhash.xxh3_64_intdigest(text.encode())


def url_fingerprint(url: str) -> int | None:
    """The fingerprint of a URL, distinct from that of the same text; None if it is blank."""
    normalized = normalized_url(url)
    return xxhash.xxh3_64_intdigest(normalized.encode(), seed=1) if normalized else None


def normalized_url(url: str) -> str:
    """A URL without the parts that rarely distinguish pages.

    Removed or normalized are the scheme (http or https), the default port of either, upper case in
    the host, trailing slashes of the path, an empty query, the fragment, %-escapes, and surrounding
    spaces.
    """
    host, path, query = _URL.match(url).groups("")  # type: ignore[union-attr]  # matches any string
    host = host.lower()
    if ":" in host:
        host = _PORT.sub("", host)
    kept = host + path.rstrip("/ ") + query
    return (unquote(kept) if "%" in kept else kept).strip()


class _Lenient(msgspec.Struct):
    """A line whose records may be of any form."""

    text: str
    url: Any = None
    metadata_url: msgspec.Raw = NO_COLUMN


def fingerprints(path: str | FileRef, columns: Mapping[str, str] | None = None) -> np.ndarray:
    """Fingerprints of the texts and URLs of a file (uint64).

    Of a document with invalid records, the text and the URL are included. Blank lines are left
    out.

    Raises:
        OSError: If the file cannot be read.
        DataError: If the file is damaged, has no text, or has lines whose text cannot be read.
    """
    decoder = make_decoder(MetadataConfig(metadata_list=[]), columns or {})
    texts, urls = set[int](), set[int]()
    unreadable: list[str] = []
    with contextlib.closing(open_shard(path, columns=decoder.columns)) as reader:
        while lines := reader.read(reader.line, BATCH):
            for number, line in enumerate(lines, reader.line - len(lines)):
                try:
                    document = _read(decoder, line, is_mapped=bool(columns))
                except BadDocument as error:
                    if bytes(line).strip():
                        unreadable.append(f"{numbered(path, number)}: {error}")
                    continue
                if document.text:
                    texts.add(text_fingerprint(document.text))
                numbers = map(url_fingerprint, document.addresses(ADDRESS_KEY))
                urls |= {found for found in numbers if found is not None}
    if reader.damage:
        unreadable.append(f"{numbered(path, reader.line)}: {reader.damage}")
    if unreadable or not texts:
        raise DataError(
            f"data_config.validation_file: {path} cannot be kept out of training: "
            f"{_listed(unreadable)}; expected a whole file of documents; replace it, or set "
            "validation_file=null to train without a held-out file"
        )
    return np.array(sorted(texts | urls), np.uint64)


def _listed(unreadable: Sequence[str]) -> str:
    more = f", and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
    return f"{', '.join(unreadable[:SHOWN])}{more}" or "no text in it"


def _read(decoder: Decoder, line: Line, *, is_mapped: bool) -> Document:
    """The document of a line; of one with invalid records, its text and URL.

    Raises:
        BadDocument: If the line has no text that can be read.
    """
    try:
        return decoder.decode(line)
    except BadDocument:
        if is_mapped:  # the values of metadata are not read, so it is the text
            raise
        with contextlib.suppress(*UNREADABLE):
            row = msgspec.json.decode(bytes(line), type=_Lenient)
            url = row.url if isinstance(row.url, str) else None
            return Document(row.text, url, {}, address_column=row.metadata_url)
        raise

"""Keeps held-out documents out of training by their content, whatever the file is called.

`shards` excludes the validation file by its name. Here the texts and URLs of its documents are
stored as 64-bit fingerprints (xxh3) in the cache folder, and every training document is looked up.
URLs are compared in the form of `normalized_url`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec
import numpy as np
import xxhash

from bsmeta.config.errors import DataError
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.io.cache import Arrays, Cache
from bsmeta.data.io.hub import FileRef
from bsmeta.data.io.lines import Line, open_shard
from bsmeta.data.io.shards import numbered
from bsmeta.metadata.mapping import TEXT, Decoder, make_decoder
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import UNREADABLE, BadDocument, Document

log = logging.getLogger(__name__)

KIND = "held-out"
BATCH = 256


class HeldOutDocuments:
    """The texts and URLs that must not be trained on."""

    def __init__(self, fingerprints: np.ndarray) -> None:
        self._fingerprints = frozenset(fingerprints.tolist())

    @classmethod
    def of(
        cls, path: str | FileRef, cache: Cache, columns: Mapping[str, str] | None = None
    ) -> HeldOutDocuments:
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


_URL = re.compile(r"\s*(?:https?:)?(?://)?([^/?#]*)([^?#]*)(\?[^#]+)?", re.IGNORECASE)
_PORT = re.compile(r":(?:80|443)?$")


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


class _Text(msgspec.Struct):
    text: str


def fingerprints(path: str | FileRef, columns: Mapping[str, str] | None = None) -> np.ndarray:
    """Fingerprints of the texts and URLs of a file (uint64).

    For a line that is not a valid document, only the text is included, if it can be read.

    Raises:
        OSError: If the file cannot be read.
        DataError: If the file is damaged, or has no text.
    """
    decoder = make_decoder(MetadataConfig(metadata_list=[]), columns or {})
    texts, urls, unreadable = set[int](), set[int](), 0
    with contextlib.closing(open_shard(path, columns=decoder.columns)) as reader:
        while lines := reader.read(reader.line, BATCH):
            for line in lines:
                text, addresses = _read(decoder, line)
                unreadable += text is None
                if text:
                    texts.add(text_fingerprint(text))
                numbers = map(url_fingerprint, addresses)
                urls |= {number for number in numbers if number is not None}
    if reader.damage or not texts:
        where = numbered(path, reader.line)
        found = f"{where}: {reader.damage}" if reader.damage else "no text in it"
        raise DataError(
            f"data_config.validation_file: {path} cannot be kept out of training: {found}; "
            "expected a whole file of documents; replace it, or set validation_file=null to train "
            "without a held-out file"
        )
    if unreadable:
        log.warning("%s: %d lines have no text to keep out of training", path, unreadable)
    return np.array(sorted(texts | urls), np.uint64)


def _read(decoder: Decoder, line: Line) -> tuple[str | None, set[str]]:
    """The text and the URLs of a line."""
    try:
        document = decoder.decode(line)
    except BadDocument:
        with contextlib.suppress(*UNREADABLE):
            return msgspec.json.decode(line, type=_Text).text, set()
        return None, set()
    return document.text, document.addresses(ADDRESS_KEY)

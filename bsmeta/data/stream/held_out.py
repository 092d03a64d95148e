"""Keeps held-out documents out of training by their content, whatever the file is called.

`shards` excludes the validation file by its name. Here the texts and URLs of its documents are
stored as 64-bit fingerprints (xxh3) in the cache folder, and every training document is looked up.
URLs are compared in the form of `normalized_url`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import xxhash

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.files import file_hash
from bsmeta.core.parsing import decode_json
from bsmeta.data.io.cache import Cache, kept_if_possible
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import numbered, validation_path, what_it_is
from bsmeta.metadata.decoding import TEXT, Decoder, make_decoder
from bsmeta.metadata.document import NO_COLUMN, Document
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import UNREADABLE, BadDocument, Line

KIND = "held-out-v2"  # facts of version 1 may lack documents whose lines could not be read
BATCH = 256
SHOWN = 3  # unreadable lines in a message
NOT_THERE = "not there"

_URL = re.compile(r"\s*(?:https?:)?(?://)?([^/?#]*)([^?#]*)(\?[^#]+)?", re.IGNORECASE)
_PORT = re.compile(r":(?:80|443)?$")


def held_out_fingerprint(config: DataConfig) -> str:
    """Identifies the data held out: a hash of the validation file, or why there is none.

    Raises:
        DataError: If the file is on the Hub, which cannot be reached.
    """
    path = validation_path(config)
    if path is None:
        return "nothing"
    if isinstance(path, FileRef):
        return path.etag
    return file_hash(path) if os.path.exists(path) else NOT_THERE


def held_out(config: DataConfig) -> HeldOutFingerprints | None:
    """The documents that must not be trained on; None without a validation file.

    Raises:
        DataError: If the file is missing or cannot be read: what is in it would be trained on.
    """
    path = validation_path(config)
    if path is None:
        return None
    if not isinstance(path, FileRef) and not os.path.exists(path):
        raise DataError(
            f"data_config.validation_file: {path} is not there (from {os.getcwd()}), so its "
            "documents cannot be kept out of training; expected a file of documents, or null to "
            "train without a held-out file"
        )
    if not isinstance(path, FileRef) and not os.path.isfile(path):  # a pipe would block the run
        raise DataError(
            f"data_config.validation_file: {path} is {what_it_is(path)}; expected a file of "
            "documents"
        )
    try:
        return HeldOutFingerprints.of(path, Cache(config.cache_dir), config.columns)
    except OSError as error:
        raise DataError(f"data_config.validation_file: {path} cannot be read: {error}") from error


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
        kind = KIND
        if columns:  # they depend on where texts and URLs are
            places = (columns.get(TEXT, TEXT), columns.get(ADDRESS_KEY, ADDRESS_KEY))
            kind = f"{KIND}-{xxhash.xxh3_64_hexdigest(repr(places).encode())}"
        kept = cache.load(path, kind)
        if kept is None:
            found = kept = {"fingerprints": _fingerprints(path, columns)}
            with kept_if_possible("the hashes of held-out documents are"):
                cache.make(path, kind, lambda: found)
        return cls(kept["fingerprints"])

    def overlap(self, document: Document) -> str:
        """What a document shares with the held-out ones: `text`, `url`, or nothing."""
        if _of_text(document.whole_text) in self._fingerprints:
            return "text"
        for url in document.addresses(ADDRESS_KEY):
            if _of_url(url) in self._fingerprints:
                return "url"
        return ""


def _of_text(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _of_url(url: str) -> int | None:
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


def _fingerprints(path: str | FileRef, columns: Mapping[str, str] | None) -> np.ndarray:
    """Fingerprints of the texts and URLs of a file (uint64); blank lines are left out."""
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
                    texts.add(_of_text(document.text))
                numbers = map(_of_url, document.addresses(ADDRESS_KEY))
                urls |= {found for found in numbers if found is not None}
    if reader.damage:
        unreadable.append(f"{numbered(path, reader.line)}: {reader.damage}")
    if unreadable or not texts:
        more = f", and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        problems = f"{', '.join(unreadable[:SHOWN])}{more}" or "no text in it"
        start = explain_no_document(path)
        reason = f"; it {start}" if start is not None else ""
        raise DataError(
            f"data_config.validation_file: {path} cannot be kept out of training: "
            f"{problems}{reason}; expected a whole file of documents; replace it, or set "
            "validation_file=null to train without a held-out file"
        )
    return np.array(sorted(texts | urls), np.uint64)


def _read(decoder: Decoder, line: Line, *, is_mapped: bool) -> Document:
    """The document of a line; of one with invalid records, its text and URL."""
    try:
        return decoder.decode(line)
    except BadDocument:
        if is_mapped:  # the values of metadata are not read, so it is the text
            raise
        with contextlib.suppress(*UNREADABLE):
            row = decode_json(bytes(line), _Lenient)
            url = row.url if isinstance(row.url, str) else None
            return Document(row.text, url, {}, address_column=row.metadata_url)
        raise

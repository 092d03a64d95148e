"""Keeps held-out documents out of training by their content, even if they are in other files.

`shards` excludes the validation file by its name. This module stores the texts and URLs of the
file's documents as 64-bit fingerprints (xxh3) in the cache folder, and compares every training
document with them. URLs are compared after `normalize_url`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import xxhash

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.files import hash_file
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.data.io.cache import Cache, keep_if_possible
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import describe_non_file, describe_position, find_validation_path
from bsmeta.metadata.decoding import TEXT_KEY, Decoder, make_decoder
from bsmeta.metadata.document import NO_COLUMN, Document
from bsmeta.metadata.processors import ADDRESS_KEY
from bsmeta.metadata.records import UNREADABLE, BadDocument, Line

CACHE_KIND = "held-out-v2"  # version 1 may lack documents whose lines could not be read
LINE_BATCH_SIZE = 256  # lines read at a time
MAX_LINES_SHOWN = 3  # unreadable lines in a message
MISSING = "not there"  # the identifier of a missing file; saved in fingerprints

_URL = re.compile(r"\s*(?:https?:)?(?://)?([^/?#]*)([^?#]*)(\?[^#]+)?", re.IGNORECASE)
_PORT = re.compile(r":(?:80|443)?$")


def identify_held_out(config: DataConfig) -> str:
    """Returns an identifier of the held-out data.

    This is the hash of the validation file, or its ETag if it is remote; `nothing` if no file is
    configured; `MISSING` if the file does not exist.

    Raises:
        DataError: If the file is remote and cannot be listed.
    """
    path = find_validation_path(config)
    if path is None:
        return "nothing"
    if isinstance(path, FileRef):
        return path.etag
    return hash_file(path) if os.path.exists(path) else MISSING


def read_held_out(config: DataConfig) -> HeldOutFingerprints | None:
    """Reads the fingerprints of the held-out documents; None if no validation file is configured.

    Raises:
        DataError: If the file is missing or cannot be read, because its documents could then not be
            kept out of training.
    """
    path = find_validation_path(config)
    if path is None:
        return None

    if not isinstance(path, FileRef) and not os.path.exists(path):
        raise DataError(
            f"data_config.validation_file: {path} does not exist (from {os.getcwd()}), so its "
            "documents cannot be kept out of training; expected a file of documents, or null to "
            "train without a held-out file"
        )
    if not isinstance(path, FileRef) and not os.path.isfile(path):  # a pipe would block the run
        raise DataError(
            f"data_config.validation_file: {path} is {describe_non_file(path)}; expected a file of "
            "documents"
        )

    try:
        return HeldOutFingerprints.load(path, Cache(config.cache_dir), config.columns)
    except OSError as error:
        raise DataError(f"data_config.validation_file: {path} cannot be read: {error}") from error


class HeldOutFingerprints:
    """Fingerprints of the texts and URLs that must not be trained on.

    Args:
        fingerprints: uint64[n].
    """

    def __init__(self, fingerprints: np.ndarray) -> None:
        self._fingerprints = frozenset(fingerprints.tolist())

    @classmethod
    def load(
        cls, path: str | FileRef, cache: Cache, columns: Mapping[str, str] | None = None
    ) -> HeldOutFingerprints:
        """Loads the fingerprints of a file from the cache, or computes and caches them.

        Args:
            columns: The configured paths of text and metadata in a line; None uses the defaults.

        Raises:
            OSError: If the file cannot be read.
            DataError: If the file is damaged or has no document.
        """
        kind = CACHE_KIND
        if columns:  # the fingerprints depend on the columns of text and URL
            paths = (columns.get(TEXT_KEY, TEXT_KEY), columns.get(ADDRESS_KEY, ADDRESS_KEY))
            kind = f"{CACHE_KIND}-{xxhash.xxh3_64_hexdigest(repr(paths).encode())}"

        arrays = cache.load(path, kind)
        if arrays is None:
            computed = {"fingerprints": _compute_fingerprints(path, columns)}
            with keep_if_possible("the fingerprints of held-out documents are"):
                cache.ensure(path, kind, lambda: computed)
            arrays = computed
        return cls(arrays["fingerprints"])

    def find_overlap(self, document: Document) -> str:
        """Returns `text` or `url` if a held-out document has the same one; otherwise ""."""
        if _hash_text(document.whole_text) in self._fingerprints:
            return "text"
        for url in document.collect_addresses(ADDRESS_KEY):
            if _hash_url(url) in self._fingerprints:
                return "url"
        return ""


def _hash_text(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _hash_url(url: str) -> int | None:
    """Hashes a normalized URL, with another seed than texts; None if it is blank."""
    normalized = normalize_url(url)
    return xxhash.xxh3_64_intdigest(normalized.encode(), seed=1) if normalized else None


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


class _TextAndURL(msgspec.Struct):
    """The text and URL of a line whose metadata may have any form."""

    text: str
    url: Any = None
    metadata_url: msgspec.Raw = NO_COLUMN


_LENIENT_DECODER = ForeignDecoder(_TextAndURL)


def _compute_fingerprints(path: str | FileRef, columns: Mapping[str, str] | None) -> np.ndarray:
    """Hashes the texts and URLs of a file (sorted uint64); skips blank lines.

    Raises:
        DataError: If a line cannot be read, or no document has text.
    """
    decoder = make_decoder(MetadataConfig(metadata_list=[]), columns or {})
    texts: set[int] = set()
    urls: set[int] = set()
    unreadable: list[str] = []
    with contextlib.closing(open_shard(path, columns=decoder.columns)) as reader:
        while lines := reader.read(reader.line, LINE_BATCH_SIZE):
            for number, line in enumerate(lines, reader.line - len(lines)):
                try:
                    document = _read_document(decoder, line, is_mapped=bool(columns))
                except BadDocument as error:
                    if bytes(line).strip():
                        unreadable.append(f"{describe_position(path, number)}: {error}")
                    continue

                if document.text:
                    texts.add(_hash_text(document.text))
                hashes = map(_hash_url, document.collect_addresses(ADDRESS_KEY))
                urls |= {url_hash for url_hash in hashes if url_hash is not None}

    if reader.damage:
        unreadable.append(f"{describe_position(path, reader.line)}: {reader.damage}")
    if unreadable or not texts:
        raise _make_unusable_file_error(path, unreadable)
    return np.array(sorted(texts | urls), np.uint64)


def _make_unusable_file_error(path: str | FileRef, unreadable: Sequence[str]) -> DataError:
    """Returns the error for a held-out file that has unreadable lines, or no text.

    Args:
        unreadable: Position and error of each unreadable line; empty if the file has no text.
    """
    num_omitted = max(len(unreadable) - MAX_LINES_SHOWN, 0)
    omitted = f", and {num_omitted} more" if num_omitted else ""
    problems = f"{', '.join(unreadable[:MAX_LINES_SHOWN])}{omitted}" or "no text in it"
    start = explain_no_document(path)
    reason = f"; it {start}" if start is not None else ""
    return DataError(
        f"data_config.validation_file: {path} cannot be kept out of training: "
        f"{problems}{reason}; expected a whole file of documents; replace it, or set "
        "validation_file=null to train without a held-out file"
    )


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

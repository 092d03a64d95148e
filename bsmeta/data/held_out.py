"""Keeps the held-out documents out of training by their content, whatever the file is called.

`shards` leaves the validation file out by its name. Here the texts and URLs of its documents are
known as 64-bit hashes (xxh3), kept in the cache folder, and every training document is looked up.
"""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import xxhash

from bsmeta.data.cache import Arrays, Cache
from bsmeta.data.lines import LineReader

log = logging.getLogger(__name__)

KIND = "held-out"
BATCH = 256


class HeldOutDocuments:
    """The texts and URLs that must not be trained on.

    Args:
        prints: Hashes of texts and URLs.
    """

    def __init__(self, prints: np.ndarray) -> None:
        self._prints = frozenset(prints.tolist())

    @classmethod
    def of(cls, path: str, cache: Cache) -> HeldOutDocuments:
        """Those of a file.

        Raises:
            OSError: If the file cannot be read.
        """
        kept = cache.load(path, KIND)
        if kept is None:
            found: Arrays = {"prints": fingerprints(path)}
            try:
                cache.make(path, KIND, lambda: found)
            except OSError as error:  # a home folder may be read-only: it only takes longer then
                log.warning("the hashes of held-out documents are not kept: %s", error)
            kept = found
        return cls(kept["prints"])

    def overlap(self, text: str, url: str | None) -> str:
        """What a document shares with the held-out ones: `text`, `url`, or nothing."""
        if text_print(text) in self._prints:
            return "text"
        if url is not None and url_print(url) in self._prints:
            return "url"
        return ""


def text_print(text: str) -> int:
    """The hash by which a text is known."""
    return xxhash.xxh3_64_intdigest(text.encode())


def url_print(url: str) -> int:
    """The hash by which a URL is known; another than that of the same text."""
    return xxhash.xxh3_64_intdigest(url.encode(), seed=1)


class _Line(msgspec.Struct):
    text: str | None = None
    url: str | None = None


def fingerprints(path: str) -> np.ndarray:
    """Hashes of the texts and URLs of a file (uint64); bad documents have none."""
    decoder = msgspec.json.Decoder(_Line)
    prints: set[int] = set()
    reader = LineReader(path)
    while lines := reader.read(reader.line, BATCH):
        for line in lines:
            try:
                document = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if document.text:
                prints.add(text_print(document.text))
            if document.url:
                prints.add(url_print(document.url))
    reader.close()
    return np.array(sorted(prints), np.uint64)

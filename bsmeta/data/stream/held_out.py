"""Keeps held-out documents out of training by their content, even if they are in other files.

`shards` excludes the validation file by its name. This module stores the fingerprints of the file's
documents (`same_document`) in the cache folder, and compares every training document with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.core.files import hash_file
from bsmeta.data.io.cache import Cache, keep_if_possible
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.shards import describe_non_file, describe_position, find_validation_path
from bsmeta.data.stream.same_document import (
    UnreadableLine,
    iterate_fingerprints,
    name_columns,
    read_documents,
)
from bsmeta.metadata.document import Document

CACHE_KIND = "held-out-v2"  # version 1 may lack documents whose lines could not be read
MAX_LINES_SHOWN = 3  # unreadable lines in a message
MISSING = "not there"  # the identifier of a missing file; saved in fingerprints


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
        kind = name_columns(CACHE_KIND, columns or {})
        arrays = cache.load(path, kind)
        if arrays is None:
            computed = {"fingerprints": _compute_fingerprints(path, columns or {})}
            with keep_if_possible("the fingerprints of held-out documents are"):
                cache.ensure(path, kind, lambda: computed)
            arrays = computed
        return cls(arrays["fingerprints"])

    def find_overlap(self, document: Document) -> str:
        """Returns `text` or `url` if a held-out document has the same one; otherwise ""."""
        for fingerprint in iterate_fingerprints(document):
            if fingerprint.value in self._fingerprints:
                return fingerprint.part
        return ""

    def has_any(self, fingerprints: Iterable[int]) -> bool:
        """Whether a held-out document has any of the fingerprints."""
        return not self._fingerprints.isdisjoint(fingerprints)


def _compute_fingerprints(path: str | FileRef, columns: Mapping[str, str]) -> np.ndarray:
    """Hashes the texts and URLs of a file (sorted uint64).

    Raises:
        DataError: If a line cannot be read, or no document has text.
    """
    fingerprints: set[int] = set()
    unreadable: list[str] = []
    has_text = False
    for item in read_documents(path, columns):
        if isinstance(item, UnreadableLine):
            unreadable.append(f"{describe_position(path, item.number)}: {item.problem}")
            continue
        has_text |= bool(item.document.text)
        fingerprints.update(value for _, value in iterate_fingerprints(item.document))

    if unreadable or not has_text:
        raise _make_unusable_file_error(path, unreadable)
    return np.array(sorted(fingerprints), np.uint64)


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

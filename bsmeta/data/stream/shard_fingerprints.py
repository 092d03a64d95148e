"""Finds documents in a shard by their fingerprints, without reading its text a second time.

A shard is read once; the fingerprints of its documents (`same_document`), with their lines, are
then in the cache folder.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bsmeta.data.io.cache import Cache, keep_if_possible
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.same_document import (
    UnreadableLine,
    iterate_fingerprints,
    name_columns,
    read_documents,
)

CACHE_KIND = "documents-v1"
REPORT_INTERVAL = 1000  # lines between reports of progress


@dataclass(frozen=True)
class ShardFingerprints:
    """The fingerprints of the documents with text in a shard, in the order of the shard.

    Attributes:
        values: uint64 [n], the fingerprints.
        lines: uint32 [n], the number of each one's line in the shard, from 0.
        unreadable: uint32 [m], the numbers of the lines that cannot be read.
        damage: Why the lines after the last one cannot be read; "" if the shard is intact.
    """

    values: np.ndarray
    lines: np.ndarray
    unreadable: np.ndarray
    damage: str = ""

    @classmethod
    def load(
        cls,
        path: str | FileRef,
        cache: Cache,
        columns: Mapping[str, str],
        report: Callable[[int], None] = lambda num_lines: None,
    ) -> ShardFingerprints:
        """Loads the fingerprints of a shard from the cache, or reads the shard and caches them.

        A damaged shard is not cached, because the fault of the disk may pass.

        Args:
            columns: The configured paths of text and metadata in a line; {}: the default columns.
            report: Called with the number of lines read so far.

        Raises:
            OSError: If a local file cannot be opened.
            DataError: If a remote file cannot be read, or a column has an unsupported type.
        """
        kind = name_columns(CACHE_KIND, columns)
        arrays = cache.load(path, kind)
        if arrays is not None:
            return cls(arrays["values"], arrays["lines"], arrays["unreadable"])

        computed = _read_fingerprints(path, columns, report)
        if not computed.damage:
            computed_arrays = {
                "values": computed.values,
                "lines": computed.lines,
                "unreadable": computed.unreadable,
            }
            with keep_if_possible("the fingerprints of documents are"):
                cache.ensure(path, kind, lambda: computed_arrays)
        return computed

    def find_first_lines(
        self, fingerprints: np.ndarray, held_out: HeldOutFingerprints | None
    ) -> dict[int, int]:
        """Returns the line of the first document with each of some fingerprints, by fingerprint.

        Args:
            fingerprints: uint64 [k], the fingerprints to find.
            held_out: Documents of the shard that do not count; None if all of them count.
        """
        first_lines: dict[int, int] = {}
        for index in np.flatnonzero(np.isin(self.values, fingerprints)).tolist():
            value = int(self.values[index])
            line = int(self.lines[index])
            if value in first_lines:
                continue
            if held_out is not None and held_out.has_any(self._list_document_values(line)):
                continue
            first_lines[value] = line
        return first_lines

    def _list_document_values(self, line: int) -> list[int]:
        """Lists all fingerprints of the document in a line."""
        # Bounds of another dtype would convert the whole array.
        bounds = np.array([line, line + 1], self.lines.dtype)
        begin, end = np.searchsorted(self.lines, bounds)
        return self.values[begin:end].tolist()


def _read_fingerprints(
    path: str | FileRef, columns: Mapping[str, str], report: Callable[[int], None]
) -> ShardFingerprints:
    """Reads a shard to its end, or to its damage; see `ShardFingerprints.load`."""
    values = array("Q")
    lines = array("I")
    unreadable = array("I")
    damage = ""
    for item in read_documents(path, columns):
        if item.number % REPORT_INTERVAL == 0:
            report(item.number)

        if isinstance(item, UnreadableLine):
            if item.is_damage:
                damage = item.problem
            else:
                unreadable.append(item.number)
            continue
        if not item.document.text:  # not trained on, so that its URL does not count
            continue
        for _, value in iterate_fingerprints(item.document):
            values.append(value)
            lines.append(item.number)

    return ShardFingerprints(
        np.array(values, np.uint64),
        np.array(lines, np.uint32),
        np.array(unreadable, np.uint32),
        damage,
    )

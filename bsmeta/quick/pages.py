"""Reads the rows of pages, whatever their format: JSON Lines, Parquet or CSV, local or remote.

Each row is a line of JSON, as the readers of shards return it; rows of a CSV file become such
lines. `columns` looks at the first rows, `documents` reads all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.core.foreign_json import decode_values
from bsmeta.core.progress import report_progress
from bsmeta.core.rounding import divide_up
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import check_are_files, list_entry_files
from bsmeta.data.table.csv_file import detect_format, read_rows
from bsmeta.metadata.records import UNREADABLE

CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""Suffixes of the files that are read as tables."""

_BATCH = 256  # lines that are read at a time
_SHARD_KEY = "data_config.train_file"  # the key that the listing of shards names in its errors


@dataclass
class PageFiles:
    """The files of pages, which can be read repeatedly.

    Attributes:
        paths: The files, sorted.
        limit: Largest number of rows to read.
        notes: Facts about the files for the user, such as damage; filled by `read_lines`.
        has_more: Whether `read_lines` stopped at the limit.
    """

    paths: Sequence[str | FileRef]
    limit: int
    notes: list[str] = field(default_factory=list)
    has_more: bool = False

    def read_lines(self, columns: Collection[str] | None = None) -> Iterator[bytes]:
        """Yields the rows of all files as lines of JSON, up to the limit, the same of each file.

        Args:
            columns: The columns to read of a Parquet file; None: all.
        """
        self.notes.clear()
        self.has_more = False
        share = divide_up(self.limit, len(self.paths))
        count = 0
        for path in self.paths:
            for number, line in enumerate(self._read_file(path, columns)):
                if number == share or count == self.limit:
                    self.has_more = True
                    break
                count += 1
                yield line

    def read_first_rows(self, count: int) -> list[dict[str, Any]]:
        """Returns the first rows with all of their columns, nested ones by their dotted paths.

        Raises:
            DataError: If no file has a row that is an object.
        """
        first = PageFiles(self.paths, min(count, self.limit))
        rows = []
        for line in first.read_lines():
            with contextlib.suppress(*UNREADABLE):
                rows.append(flatten_row(decode_values(line)))
        if rows:
            return rows

        start = next(filter(None, map(_explain_file, self.paths)), "has no row")
        raise DataError(
            f"pages: {self.paths[0]} {start}; expected one JSON object per line, a Parquet table, "
            'or CSV: {"text": "…", "url": "https://…"}'
        )

    def _read_file(self, path: str | FileRef, columns: Collection[str] | None) -> Iterator[bytes]:
        if str(path).endswith(CSV_SUFFIXES):
            yield from self._read_table(Path(str(path)))
            return

        with contextlib.closing(open_shard(path, columns=columns)) as reader:
            while lines := reader.read(reader.line, _BATCH):
                report_progress()
                yield from map(bytes, lines)
            if reader.damage:
                self.notes.append(
                    f"{path} cannot be read after row {reader.line:,} ({reader.damage}): the rows "
                    "before it are used"
                )

    def _read_table(self, path: Path) -> Iterator[bytes]:
        """Yields the rows of a CSV file as objects; bad rows are counted in a note."""
        table = detect_format(path, [])
        bad_rows = 0
        for row in read_rows(path, table):
            if row.problem is None:
                yield msgspec.json.encode(dict(zip(table.columns, row.cells, strict=True)))
            else:
                bad_rows += 1
        self.notes += [f"{path}: {note}" for note in table.notes]
        if bad_rows:
            self.notes.append(f"{path}: {bad_rows:,} bad rows are left out")


def list_page_files(pages: Any, limit: int) -> PageFiles:
    """Lists the files that `pages` names.

    Raises:
        ConfigurationError: If it is not set, or no path.
        DataError: If a file does not exist, or a folder has none of a known format.
    """
    entries = [pages] if isinstance(pages, str) else pages
    if (
        not entries
        or not isinstance(entries, list)
        or not all(isinstance(entry, str) for entry in entries)
    ):
        raise ConfigurationError(
            f"pages={pages}: expected a file, a folder or a glob of pages, or a list of them: "
            "bsmeta quick pages.jsonl"
        )

    try:
        paths: list[str | FileRef] = []
        for entry in entries:
            paths += list_entry_files(entry, DataConfig())
        check_are_files(paths)
    except UserError as error:
        message = str(error).replace(f"{_SHARD_KEY}=", "pages=").replace(_SHARD_KEY, "pages")
        raise type(error)(message) from error
    return PageFiles(sorted(dict.fromkeys(paths), key=str), limit)


def flatten_row(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a row by their dotted paths; lists stay whole."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            values |= flatten_row(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values


def _explain_file(path: str | FileRef) -> str:
    """Describes a file without rows; "" if its format is unknown, or a table's."""
    if str(path).endswith(CSV_SUFFIXES):
        return ""
    start = explain_no_document(path)
    return "" if start is None else str(start)

"""Writes shards crash-safely, with journals that describe them.

Every chunk is a separate gzip member in `NAME.jsonl.gz.part`. Once it is on the disk, a line of the
journal `_annotation/NAME.journal.part` records it. After a kill, the file is truncated after the
last chunk in the journal, and continued. When all chunks are written, both files are renamed. The
journal is kept: its header identifies the input and the annotators that the shard was made from.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import xxhash
from filelock import FileLock, Timeout
from isal import igzip

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import FULL_DISK_ERRNOS, join_inside
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.lines import LineReader

FOLDER = "_annotation"
SHARD_SUFFIX = ".jsonl.gz"
PART_SUFFIX = ".part"
JOURNAL_SUFFIX = ".journal"
FORMAT = 2


class Dropped(NamedTuple):
    """A page without a row, and the reason why it has none."""

    reason: str
    url: str


class Counts(msgspec.Struct):
    """Counts of pages, records and failures, which are summed over chunks and shards.

    Attributes:
        pages: Pages of the input, with and without a row.
        dropped: Pages without a row, by reason.
        duplicates: Pages that copy another one, dropped or marked, by kind.
        errors: Failures by annotator and reason.
        present: Pages with at least one record, by annotator.
        records: Records by annotator.
        lengths: Pages by the number of bits of the length of their text.
        others: Records of a WARC file that are not pages, by type.
        cpu_s: CPU time in seconds.
    """

    pages: int = 0
    dropped: dict[str, int] = {}
    duplicates: dict[str, int] = {}
    errors: dict[str, dict[str, int]] = {}
    present: dict[str, int] = {}
    records: dict[str, int] = {}
    lengths: dict[int, int] = {}
    others: dict[str, int] = {}
    cpu_s: float = 0.0

    @property
    def rows(self) -> int:
        """Number of pages with a row."""
        return self.pages - sum(self.dropped.values())

    def add(self, other: Counts) -> None:
        """Adds other counts to these."""
        self.pages += other.pages
        self.cpu_s += other.cpu_s
        for name in ("dropped", "duplicates", "present", "records", "lengths", "others"):
            total = Counter(getattr(self, name)) + Counter(getattr(other, name))
            setattr(self, name, dict(total))

        for annotator, reasons in other.errors.items():
            reason_counts = Counter(self.errors.get(annotator, {})) + Counter(reasons)
            self.errors[annotator] = dict(reason_counts)


class AnnotatedChunk(msgspec.Struct):
    """The rows of a chunk.

    Attributes:
        data: The rows as a gzip member; empty without rows.
        dropped: The index in the chunk, the reason and the address of each page without a row.
    """

    data: bytes
    dropped: list[tuple[int, str, str]]
    counts: Counts


class PageSettings(msgspec.Struct):
    """The settings that determine which pages have a row, and its text.

    Attributes:
        parser: Version of the parser.
        profile: The part of a page that is its text; see `parse_page`.
        page_mb: Maximum size of a page.
    """

    parser: int
    profile: str
    page_mb: float


class Header(msgspec.Struct):
    """The first line of a journal: the input and the settings that the shard is made from.

    Attributes:
        keeps_html: Whether rows have the raw page.
        annotators: The fingerprints of all annotators by name.
        names: The annotators to run; other columns come from the existing shard.
        replaces: Size of the existing shard that is updated; None if there is none.
        dropped_duplicates: Hash of the pages dropped as duplicates; empty if there are none.
    """

    input_bytes: int
    input_xxh3: str
    pages: PageSettings
    keeps_html: bool
    annotators: dict[str, str] = {}
    names: list[str] = []
    replaces: int | None = None
    dropped_duplicates: str = ""
    format: int = FORMAT

    def list_changes(self, current: Header) -> list[str]:
        """Lists the changes since this header was written that affect pages or their text.

        Args:
            current: The header that would be written now.
        """
        changes = []
        if (self.input_bytes, self.input_xxh3) != (current.input_bytes, current.input_xxh3):
            changes.append("the input file has other content")
        for name in self.pages.__struct_fields__:
            old_value = getattr(self.pages, name)
            new_value = getattr(current.pages, name)
            if old_value != new_value:
                changes.append(f"made with {name}={old_value}, now {new_value}")
        if self.dropped_duplicates != current.dropped_duplicates:
            changes.append("other pages are dropped as duplicates")
        return changes


class Entry(msgspec.Struct):
    """A line of a journal: a chunk that is on the disk, or the end of a complete shard.

    Attributes:
        end: Bytes of the shard up to the end of the chunk.
        dropped: As in `AnnotatedChunk`.
        is_end: Whether the shard is complete.
    """

    end: int
    dropped: list[tuple[int, str, str]] = []
    counts: Counts = msgspec.field(default_factory=Counts)
    is_end: bool = False


class Journal(msgspec.Struct):
    """The content of a journal up to its first damaged line.

    Attributes:
        entries: The entries of chunks.
        bytes: Size of the valid lines.
        end: Bytes of the shard up to the end of the last chunk.
        others: Number of records that are not pages, by type; empty until the shard is complete.
        is_complete: Whether the journal has the end of the shard.
    """

    header: Header
    entries: list[Entry] = []
    bytes: int = 0
    end: int = 0
    others: dict[str, int] = {}
    is_complete: bool = False

    def sum_counts(self) -> Counts:
        """Sums the counts of all chunks."""
        total = Counts(others=self.others)
        for entry in self.entries:
            total.add(entry.counts)
        return total


_HEADER_DECODER = JSONDecoder(Header)
_ENTRY_DECODER = JSONDecoder(Entry)
_NO_ROWS: bytes = igzip.compress(b"", mtime=0)  # readers refuse an empty file


def read_journal(path: Path) -> Journal | None:
    """Reads a journal up to its first damaged line.

    Returns:
        The journal; None if the file is missing, has another format, or begins with a damaged line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None

    journal = None
    for line in content.splitlines(keepends=True):
        data = _check_line(line)
        if data is None:
            break
        try:
            if journal is None:
                journal = Journal(_HEADER_DECODER.decode(data))
                if journal.header.format != FORMAT:
                    return None
            else:
                _add_entry(journal, _ENTRY_DECODER.decode(data))
        except msgspec.DecodeError:
            break
        journal.bytes += len(line)
    return journal


def _check_line(line: bytes) -> bytes | None:
    """Returns the JSON of a line of a journal; None if the line is incomplete or damaged."""
    checksum, _, data = line.rstrip(b"\n").partition(b" ")
    is_valid = checksum.decode("ascii", "replace") == _compute_checksum(data)
    return data if line.endswith(b"\n") and is_valid else None


def _compute_checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _add_entry(journal: Journal, entry: Entry) -> None:
    journal.end = entry.end
    journal.is_complete = entry.is_end
    if entry.is_end:
        journal.others = entry.counts.others
    else:
        journal.entries.append(entry)


class ShardFiles:
    """The paths of a shard and of the files about it.

    Args:
        output: The folder of the shards.
        name: The name of the shard and of its input file, without suffix.

    Raises:
        UnsafeNameError: If the name is not possible for a file in `output`.
    """

    def __init__(self, output: Path, name: str) -> None:
        def make_path(file: str) -> Path:
            # A finished shard may have been replaced by a link to another disk.
            return join_inside(output, file, f"input: {name}", follow_links=True)

        self.shard = make_path(f"{name}{SHARD_SUFFIX}")
        self.part = make_path(f"{name}{SHARD_SUFFIX}{PART_SUFFIX}")
        self.journal = make_path(f"{FOLDER}/{name}{JOURNAL_SUFFIX}")
        self.journal_part = make_path(f"{FOLDER}/{name}{JOURNAL_SUFFIX}{PART_SUFFIX}")
        self.lock = make_path(f"{FOLDER}/{name}.lock")
        self.pages = make_path(f"{FOLDER}/{name}.pages")  # entries of the index of links
        self.signatures = make_path(f"{FOLDER}/{name}.signatures")
        self.duplicates = make_path(f"{FOLDER}/{name}.duplicates")

    def open_complete(self) -> Journal | None:
        """Returns the journal of a complete shard; None if the shard or the journal is incomplete.

        First completes an interrupted renaming of the journal.
        """
        size = _measure_file(self.shard)
        part = read_journal(self.journal_part)
        if part is not None and part.is_complete and not self.part.exists() and size == part.end:
            self.journal_part.replace(self.journal)

        journal = read_journal(self.journal)
        if journal is None or not journal.is_complete or size != journal.end:
            return None
        return journal


class ShardWriter:
    """Writes a shard, continuing after the chunks that an earlier process wrote.

    Chunks of a shard with another header are discarded.

    Attributes:
        pages: Number of pages of the input that have been written.
        is_complete: Whether all pages have been written.

    Raises:
        ConfigurationError: If another process writes the shard, or it cannot be written.
    """

    def __init__(self, files: ShardFiles, header: Header) -> None:
        self._files = files
        self._lock = FileLock(files.lock)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"output: {files.shard} is being written by another process; wait for it, or name "
                "another folder"
            ) from None

        journal = read_journal(files.journal_part)
        part_size = _measure_file(files.part) or 0
        if journal is None or journal.header != header or journal.end > part_size:
            journal = Journal(header)
        try:
            self._data = _open_truncated(files.part, journal.end)
            self._lines = _open_truncated(files.journal_part, journal.bytes)
        except OSError as error:
            self._lock.release()
            raise ConfigurationError(f"output: {files.part} cannot be written: {error}") from error

        self.pages = journal.sum_counts().pages
        self.is_complete = journal.is_complete
        if not journal.bytes:
            with self._explain_full_disk():
                self._write_line(header)

    def add(self, chunk: AnnotatedChunk) -> None:
        """Appends a chunk, and waits until it is on the disk.

        Raises:
            ConfigurationError: If the disk is full.
        """
        with self._explain_full_disk():
            self._data.write(chunk.data)
            _sync_file(self._data)
            self._write_line(Entry(self._data.tell(), chunk.dropped, chunk.counts))
        self.pages += chunk.counts.pages

    def finish(self, others: dict[str, int]) -> None:
        """Completes the shard, and renames it to its final name.

        Args:
            others: Number of records that are not pages, by type.

        Raises:
            ConfigurationError: If the disk is full.
        """
        with self._explain_full_disk():
            if not self.is_complete:
                if self._data.tell() == 0:
                    self._data.write(_NO_ROWS)
                    _sync_file(self._data)
                counts = Counts(others=others)
                self._write_line(Entry(self._data.tell(), counts=counts, is_end=True))
            self.close()
            self._files.part.replace(self._files.shard)
            self._files.journal_part.replace(self._files.journal)

    def close(self) -> None:
        """Closes the files and releases the lock; a later process can continue the shard."""
        for file in (self._data, self._lines):
            # Bytes that cannot be flushed to a full disk are not in the journal.
            with contextlib.suppress(OSError):
                file.close()
        self._lock.release()

    def _write_line(self, line: Header | Entry) -> None:
        data = msgspec.json.encode(line)
        self._lines.write(f"{_compute_checksum(data)} ".encode() + data + b"\n")
        _sync_file(self._lines)

    @contextlib.contextmanager
    def _explain_full_disk(self) -> Iterator[None]:
        """Closes the shard after an error of its disk.

        Raises:
            ConfigurationError: If the disk is full.
        """
        try:
            yield
        except OSError as error:
            self.close()
            if error.errno not in FULL_DISK_ERRNOS:
                raise
            raise ConfigurationError(
                f"output: the disk of {self._files.shard.parent} is full ({error}); what is "
                "written is kept: free some space, and repeat the command"
            ) from error


def _measure_file(path: Path) -> int | None:
    """Returns the size of a file in bytes; None if it does not exist."""
    return path.stat().st_size if path.is_file() else None


def _open_truncated(path: Path, size: int) -> BinaryIO:
    """Truncates a file to `size` bytes, and opens it for appending; creates a missing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 (see `close`)
    file.truncate(size)
    file.seek(size)
    return file


def _sync_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read_existing_rows(files: ShardFiles, journal: Journal) -> Iterator[bytes | Dropped]:
    """Yields, for every page of the input, its row in an existing shard or why it has none.

    Raises:
        DataError: If the shard is damaged.
    """
    row_number = 0
    with contextlib.closing(LineReader(str(files.shard))) as reader:
        for entry in journal.entries:
            dropped = {number: Dropped(reason, url) for number, reason, url in entry.dropped}
            for number in range(entry.counts.pages):
                if number in dropped:
                    yield dropped[number]
                    continue

                lines = reader.read(row_number, 1)
                if not lines:
                    raise make_damaged_shard_error(files.shard, reader.damage or "rows are missing")
                row_number += 1
                yield bytes(lines[0])


def make_damaged_shard_error(path: Path, reason: str) -> DataError:
    """Returns the error for a shard that cannot be read to its end."""
    return DataError(f"{path}: damaged ({reason}); delete it, and repeat the command")

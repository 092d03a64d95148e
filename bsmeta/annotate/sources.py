"""Input files, identified by their content, and readers of WARC, JSON lines and Parquet.

A reader yields the records of a file in order. JSON lines are passed on undecoded: one process
reads for all, so the processes that annotate the pages decode them.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from pyarrow import types

from bsmeta.annotate.page import decode_html
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import file_hash
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.file_start import check_has_document
from bsmeta.data.io.lines import OVERLONG, LineReader
from bsmeta.data.io.parquet_file import DAMAGED, ParquetSource
from bsmeta.data.io.parquet_pages import LIST_BYTES, bound_rows, list_bytes

READERS = 8

LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
WARCS = (".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz")
PARQUET = (".parquet",)
SUFFIXES = (*LINES, *WARCS, *PARQUET)

HTML_TYPES = ("text/html", "application/xhtml+xml")
_TIMESTAMPS = ("timestamp", "c4_timestamp")
_OK = 200
_PAGES = (WarcRecordType.response, WarcRecordType.conversion)
_READERS = {"gzip": GzipReader, "x-gzip": GzipReader, "br": BrotliReader}
_BATCH = 64  # rows of a Parquet file in memory, at most
_BLOCK = 1 << 20  # bytes read at a time
_GZIP = b"\x1f\x8b\x08"  # the first bytes of a gzip member
_HEADER_END = b"\r\n\r\n"
_LONGEST_HEADER = 16 << 20  # bytes of the header of a WARC record, or of an HTTP response
_CONTENT_LENGTH = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)


class InputRecord(msgspec.Struct):
    """A page as read from an input file."""

    url: str = ""
    timestamp: str | None = None  # when it was crawled
    html: str | None = None  # the raw page
    payload: bytes | None = None  # the raw page before it is decoded
    charset: str | None = None  # the encoding of the payload, from the HTTP header
    text: str | None = None  # from a shard that has text; None for pages that are parsed later
    columns: dict[str, Any] = {}  # all others, undecoded
    problem: str = ""  # why the record cannot be used, such as `not_json`


Item = bytes | InputRecord  # a record, or the JSON line of one


@dataclass(frozen=True)
class InputFile:
    """A file of pages: the name of its shard, without suffix, and the hash of its content."""

    path: str
    name: str
    bytes: int
    xxh3: str


def list_inputs(entries: Any) -> list[tuple[str, str]]:
    """Lists the files that the key `input` names, with the names of their shards, sorted.

    Raises:
        ConfigurationError: If it is not set, or two files would have one name.
        DataError: If it names no file.
    """
    if not entries:
        raise ConfigurationError(
            f"input is not set; expected files, a folder or a glob: {', '.join(SUFFIXES)}"
        )

    entries = [entries] if isinstance(entries, str) else list(entries)
    unique_paths: set[str] = set()
    for entry in entries:
        unique_paths.update(map(os.path.abspath, _expand_entry(str(entry))))
    paths = sorted(unique_paths)

    # Files of the same name are distinguished by their folders.
    stems = [_stem(path) for path in paths]
    if len(set(stems)) < len(stems):
        common = os.path.commonpath([os.path.dirname(path) for path in paths])
        stems = [_stem(os.path.relpath(path, common).replace(os.sep, "_")) for path in paths]

    name, count = Counter(stems).most_common(1)[0]
    if count > 1:
        raise ConfigurationError(
            f"input: {count} files would all become the shard {name}: rename some, or "
            "give each its own output"
        )
    return list(zip(paths, stems, strict=True))


def _expand_entry(entry: str) -> list[str]:
    """Returns the input files that a path of a file or folder, or a glob, names."""
    if os.path.isdir(entry):
        paths = [os.path.join(entry, name) for name in os.listdir(entry)]
    elif glob.has_magic(entry) and not os.path.exists(entry):
        paths = glob.glob(entry, recursive=True)
    else:
        paths = [entry]

    files = [path for path in paths if path.endswith(SUFFIXES) and os.path.isfile(path)]
    if not files:
        reason = "is missing or has another suffix" if paths == [entry] else "leads to no such file"
        raise DataError(
            f"input: {entry} {reason}; expected files that end in {', '.join(SUFFIXES)}"
        )
    return files


def _stem(path: str) -> str:
    name = os.path.basename(path)
    return name.removesuffix(next(suffix for suffix in SUFFIXES[::-1] if name.endswith(suffix)))


def identify_files(files: Sequence[tuple[str, str]]) -> Iterator[InputFile]:
    """Yields the files with sizes and hashes, in order, each as soon as it has been read.

    Args:
        files: Their paths, and the names of their shards.

    Raises:
        DataError: If one cannot be read.
    """

    def identify(file: tuple[str, str]) -> InputFile:
        path, name = file
        try:
            return InputFile(path, name, os.path.getsize(path), file_hash(path))
        except OSError as error:
            raise DataError(f"input: {path} cannot be read: {error}") from error

    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(identify, files)


def read_items(path: str, page_bytes: int, skip: int = 0) -> Iterator[tuple[Item, int]]:
    """Yields the records of a file after the first `skip`, each with the bytes read so far.

    Raises:
        DataError: If the file is damaged, after the records before the damage.
    """
    if path.endswith(LINES):
        return _read_lines(path, skip)
    if path.endswith(WARCS):
        return _read_warc(path, page_bytes, skip)
    return _read_rows(path, skip)


def _read_lines(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    """Yields the JSON lines of a file; see `decode_line` for their columns."""
    number = skip
    if number == 0:
        check_has_document(path, "input")

    with closing(LineReader(path)) as reader:
        while lines := reader.read(number, 1):
            number += 1
            line = bytes(lines[0])
            is_empty = not line or (line.isspace() and line != OVERLONG)
            yield InputRecord(problem="empty_line") if is_empty else line, reader.bytes_read
        if reader.damage:
            raise _damaged_file(path, number, reader.damage)


def _read_rows(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    """Yields the rows of a Parquet file."""
    size = os.path.getsize(path)
    number = 0
    try:
        with pa.OSFile(path) as file:
            source = ParquetSource(file)
            total = max(source.ends[-1:] or [1])

            for group, end in enumerate(source.ends):
                if end <= skip:
                    number = end
                    continue
                for batch in _read_batches(source, file, group):
                    skipped = min(max(skip - number, 0), batch.num_rows)
                    number += skipped
                    for record in _records_of_batch(batch.slice(skipped)):
                        number += 1
                        yield record, size * number // total
    except DAMAGED as error:
        raise _damaged_file(path, number, str(error)) from error


def _read_batches(
    source: ParquetSource, file: pa.NativeFile, group: int
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a row group, cast to types that Python and JSON have."""
    bounds = bound_rows(file, source.column_chunks(group), _BATCH)
    for batch in source.batches(group, None, bounds.rows, indexed=bounds.indexed, use_threads=True):
        python_types = [_python_type(column_type) for column_type in batch.schema.types]
        if python_types != batch.schema.types:
            schema = pa.schema([*zip(batch.schema.names, python_types, strict=True)])
            batch = batch.cast(schema, safe=False)
        yield batch


def _records_of_batch(batch: pa.RecordBatch) -> Iterator[InputRecord]:
    """Yields a record for each row; a row that cannot be converted becomes one with a problem.

    Raises:
        pa.ArrowException: If the batch is damaged.
    """
    is_too_large = sum(map(list_bytes, batch.columns)) > LIST_BYTES
    if is_too_large and batch.num_rows == 1:
        yield InputRecord(problem="too_large")
        return

    if not is_too_large:
        try:
            rows = batch.to_pylist()
        except pa.ArrowException:
            raise
        except (ValueError, OverflowError):  # not UTF-8; a year after 9999
            if batch.num_rows == 1:
                yield InputRecord(problem="not_json")
                return
        else:
            yield from map(record_of, rows)
            return

    # Row by row, so that one row does not spoil the others.
    for number in range(batch.num_rows):
        yield from _records_of_batch(batch.slice(number, 1))


@lru_cache
def _python_type(arrow_type: pa.DataType) -> pa.DataType:
    """Replaces nanoseconds in a type by microseconds: neither Python nor JSON has nanoseconds."""
    if types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return pa.timestamp("us", arrow_type.tz)
    if types.is_duration(arrow_type) and arrow_type.unit == "ns":
        return pa.duration("us")
    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(_python_type(field.type)) for field in arrow_type])
    if types.is_list(arrow_type):
        values = arrow_type.value_field
        return pa.list_(values.with_type(_python_type(arrow_type.value_type)))
    return arrow_type


def _read_warc(path: str, page_bytes: int, skip: int) -> Iterator[tuple[Item, int]]:
    """Yields the responses of a WARC file, or the plain text (`conversion`) of a WET file."""
    number = 0
    last_start = 0
    with open(path, "rb") as file:
        try:
            # A bad HTTP header would end the iteration, so `_parse_http` parses them.
            for record in ArchiveIterator(file, parse_http=False, max_header_len=_LONGEST_HEADER):
                last_start = record.stream_pos
                if record.record_type in _PAGES:
                    number += 1
                    if number > skip:
                        yield _read_page(record, page_bytes), file.tell()
            _check_end(file, last_start)
        except (EOFError, OSError, ValueError, OverflowError, zlib.error) as error:
            raise _damaged_file(path, number, str(error)) from error


def _read_page(record: WarcRecord, page_bytes: int) -> InputRecord:
    date = record.record_date
    page = InputRecord(
        url=(record.headers.get("WARC-Target-URI") or "").strip("<>"),
        timestamp=date.strftime("%Y-%m-%dT%H:%M:%SZ") if date else None,
    )

    is_text = record.record_type == WarcRecordType.conversion
    page.problem = "" if is_text else _parse_http(record)
    if not page.problem and record.content_length > page_bytes:
        page.problem = "too_large"
    if page.problem:
        return page

    payload = record.reader.read(page_bytes)
    if len(payload) < record.content_length:
        page.problem = "truncated"
    elif is_text:
        page.text = payload.decode("utf-8", "replace")
    else:
        content = _decode_content(payload, record.http_headers, page_bytes)
        if content is None:
            page.problem = "content_encoding"
        elif len(content) > page_bytes:
            page.problem = "too_large"
        else:
            page.payload = content
            page.charset = record.http_charset
    return page


def _decode_content(payload: bytes, headers: Any, page_bytes: int) -> bytes | None:
    """Decodes the content of a response, up to one byte more than a page may have.

    fastwarc's own decoding cannot be bounded (a record that was only read in part breaks the next
    one), so the payload is read raw, and decoded here.

    Returns:
        None if the content cannot be decoded.
    """
    try:
        if "chunked" in (headers.get("Transfer-Encoding") or "").lower():
            payload = _read_bounded(ChunkedReader(BytesIO(payload)), page_bytes + 1)
        encoding = (headers.get("Content-Encoding") or "").strip().lower()
        if encoding in ("", "identity"):
            return payload
        reader = _READERS.get(encoding)
        return None if reader is None else _read_bounded(reader(BytesIO(payload)), page_bytes + 1)
    except OSError:
        return None


def _read_bounded(reader: Any, limit: int) -> bytes:
    """Reads at most `limit` bytes; the readers of fastwarc may return fewer at a time."""
    blocks = []
    remaining = limit
    while remaining > 0 and (block := reader.read(remaining)):
        blocks.append(block)
        remaining -= len(block)
    return b"".join(blocks)


def _parse_http(record: WarcRecord) -> str:
    """Parses the HTTP header of a response.

    Returns:
        Why the content is not read; empty if it is.

    Raises:
        OSError: If the file is damaged there.
    """
    if not record.is_http:
        return "not_http"
    try:
        record.parse_http(max_header_len=_LONGEST_HEADER)
    except OSError:
        if record.content_length <= _LONGEST_HEADER:
            raise
        return "header_too_large"

    headers = record.http_headers
    if headers is None:
        return "not_http"
    if headers.status_code != _OK:
        return "http_status"
    content_type = (record.http_content_type or HTML_TYPES[0]).lower()
    return "" if content_type in HTML_TYPES else "content_type"


def _check_end(file: BinaryIO, last_start: int) -> None:
    """Checks that a WARC file does not end within a record or a gzip member.

    fastwarc does not report this.

    Args:
        last_start: Where the last record begins, as fastwarc reports it.

    Raises:
        EOFError, OSError, zlib.error: If the file is cut off.
    """
    if file.seek(0, os.SEEK_END) == 0:
        return  # a segment without pages

    # If a file is compressed as a whole, `last_start` is no position in the file.
    for start in (last_start, 0):
        file.seek(start)
        if file.read(len(_GZIP)) == _GZIP:
            _check_gzip(file, start)
            return

    file.seek(last_start)
    header, separator, _ = file.read(_LONGEST_HEADER).partition(_HEADER_END)
    length = _CONTENT_LENGTH.search(header) if separator else None
    if length is not None:
        end = last_start + len(header) + len(separator) + int(length[1])
        is_whole = end <= file.seek(0, os.SEEK_END)
        file.seek(end)
        has_more = bool(file.read(_BLOCK).strip())  # the beginning of another record
        if is_whole and not has_more:
            return
    raise EOFError("it ends within a record")


def _check_gzip(file: BinaryIO, start: int) -> None:
    """Decompresses the gzip members from a position on.

    Raises:
        EOFError, OSError, zlib.error: If one is cut off or damaged.
    """
    file.seek(start)
    try:
        with gzip.GzipFile(fileobj=file) as members:
            while members.read(_BLOCK):
                pass
    except gzip.BadGzipFile as error:
        # Bytes after the last member, such as a line end, are no damage.
        if not str(error).startswith("Not a gzipped file"):
            raise


def format_count(number: int, noun: str) -> str:
    """Returns a number of things for a message, such as "1 page" or "2,000 pages"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _damaged_file(path: str, number: int, reason: str) -> DataError:
    return DataError(
        f"{path}: damaged after {format_count(number, 'record')} ({reason}); what was "
        "annotated before is kept: replace the file, or take it out of `input`"
    )


def item_bytes(item: Item) -> int:
    """Returns the approximate size of an item in bytes."""
    return len(item if isinstance(item, bytes) else item.payload or item.html or item.text or "")


_LINE = JSONDecoder(dict[str, msgspec.Raw])
_STRING = JSONDecoder(str | None)
_TIME = JSONDecoder(str | int | float | None)


def decode(item: Item, page_bytes: int) -> InputRecord:
    """Decodes a record; one that cannot be used has a `problem`."""
    record = item if isinstance(item, InputRecord) else decode_line(item)
    if record.payload is not None and not record.problem:
        record.html = decode_html(record.payload, record.charset)

    if record.html is not None and len(record.html) > page_bytes:
        return InputRecord(url=record.url, timestamp=record.timestamp, problem="too_large")
    if not record.problem and record.html is None and record.text is None:
        record.problem = "no_html"
    return record


def decode_line(line: bytes) -> InputRecord:
    """Decodes a JSON line: `url`, `html` or `text`, `timestamp` or `c4_timestamp`.

    Other columns are kept undecoded.
    """
    if line == OVERLONG:
        return InputRecord(problem="too_large")
    try:
        line.decode()  # msgspec does not check the columns that are kept undecoded
        columns: dict[str, Any] = _LINE.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return InputRecord(problem="not_json")

    try:
        for name in {"url", "html", "text", *_TIMESTAMPS} & columns.keys():
            decoder = _TIME if name in _TIMESTAMPS else _STRING
            columns[name] = decoder.decode(columns[name])
    except msgspec.DecodeError:
        return InputRecord(problem="wrong_type")
    return record_of(columns)


def record_of(columns: dict[str, Any]) -> InputRecord:
    """Makes a record from named columns, as decoded from JSON or from a row of a table."""
    times = [columns.pop(name, None) for name in _TIMESTAMPS]
    timestamp = next((str(time) for time in times if time is not None), None)
    url = columns.pop("url", None)
    html = columns.pop("html", None)
    text = columns.pop("text", None)

    has_strings = all(value is None or isinstance(value, str) for value in (url, text))
    if not has_strings or not isinstance(html, str | bytes | None):
        return InputRecord(problem="wrong_type")

    record = InputRecord(url or "", timestamp, text=text or None, columns=columns)
    if isinstance(html, bytes):
        record.payload = html
    else:
        record.html = html or None
    return record

"""The input: its files, identified by their content, and readers of WARC, JSON lines and Parquet.

A source yields its records in order. JSON lines are passed on undecoded: the processes that
annotate them decode them, because one process reads for all.
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
    """A page as an input file has it."""

    url: str = ""
    timestamp: str | None = None  # when it was crawled
    html: str | None = None  # the raw page
    payload: bytes | None = None  # the raw page if it is yet to be decoded
    charset: str | None = None  # the encoding of that, from the HTTP header
    text: str | None = None  # of a shard that has text; None if the page is yet to be parsed
    columns: dict[str, Any] = {}  # all others, undecoded
    problem: str = ""  # why the record cannot be used, such as `not_json`


Item = bytes | InputRecord  # a record, or the JSON line of one


@dataclass(frozen=True)
class InputFile:
    """A file of pages; `name` is that of its shard, without suffix; `xxh3` of its content."""

    path: str
    name: str
    bytes: int
    xxh3: str


def list_inputs(entries: Any) -> list[tuple[str, str]]:
    """Paths of the files that the key `input` names and the names of their shards, sorted.

    Raises:
        ConfigurationError: If it is not set, or two files would have one name.
        DataError: If it names no file.
    """
    if not entries:
        raise ConfigurationError(
            f"input is not set; expected files, a folder or a glob: {', '.join(SUFFIXES)}"
        )
    entries = [entries] if isinstance(entries, str) else list(entries)
    paths = sorted({os.path.abspath(path) for entry in entries for path in _expand(str(entry))})
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


def _expand(entry: str) -> Iterator[str]:
    if os.path.isdir(entry):
        paths = [os.path.join(entry, name) for name in os.listdir(entry)]
    elif glob.has_magic(entry) and not os.path.exists(entry):
        paths = glob.glob(entry, recursive=True)
    else:
        paths = [entry]
    found = [path for path in paths if path.endswith(SUFFIXES) and os.path.isfile(path)]
    if not found:
        what = "is missing or has another suffix" if paths == [entry] else "leads to no such file"
        raise DataError(f"input: {entry} {what}; expected files that end in {', '.join(SUFFIXES)}")
    yield from found


def _stem(path: str) -> str:
    name = os.path.basename(path)
    return name.removesuffix(next(suffix for suffix in SUFFIXES[::-1] if name.endswith(suffix)))


def identified(files: Sequence[tuple[str, str]]) -> Iterator[InputFile]:
    """The files with sizes and hashes, in order, each as soon as it has been read.

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
    """The records of a file after the first `skip`, each with the bytes of the file read so far.

    Raises:
        DataError: If the file is damaged, after the records before the damage.
    """
    if path.endswith(LINES):
        return _read_lines(path, skip)
    if path.endswith(WARCS):
        return _read_warc(path, page_bytes, skip)
    return _read_rows(path, skip)


def _read_lines(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    """The JSON lines of a file; see `decode_line` for their columns."""
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
            raise _damaged(path, number, reader.damage)


def _read_rows(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    size, number = os.path.getsize(path), 0
    try:
        with pa.OSFile(path) as file:
            source = ParquetSource(file)
            total = max(source.ends[-1:] or [1])
            for group, end in enumerate(source.ends):
                if end <= skip:
                    number = end
                    continue
                for batch in _batches(source, file, group):
                    skipped = min(max(skip - number, 0), batch.num_rows)
                    number += skipped
                    for record in _records(batch.slice(skipped)):
                        number += 1
                        yield record, size * number // total
    except DAMAGED as error:
        raise _damaged(path, number, str(error)) from error


def _batches(source: ParquetSource, file: pa.NativeFile, group: int) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, with types that Python and JSON have."""
    bounds = bound_rows(file, source.column_chunks(group), _BATCH)
    for batch in source.batches(group, None, bounds.rows, indexed=bounds.indexed, use_threads=True):
        kinds = [_python_type(kind) for kind in batch.schema.types]
        if kinds != batch.schema.types:
            schema = pa.schema([*zip(batch.schema.names, kinds, strict=True)])
            batch = batch.cast(schema, safe=False)
        yield batch


def _records(batch: pa.RecordBatch) -> Iterator[InputRecord]:
    """A record for each row; one that cannot be converted is counted.

    Raises:
        pa.ArrowException: If the batch is damaged.
    """
    if sum(map(list_bytes, batch.columns)) > LIST_BYTES:
        if batch.num_rows == 1:
            yield InputRecord(problem="too_large")
            return
    else:
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
    for number in range(batch.num_rows):
        yield from _records(batch.slice(number, 1))


@lru_cache
def _python_type(kind: pa.DataType) -> pa.DataType:
    """A type with microseconds instead of nanoseconds: neither Python nor JSON has those."""
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_struct(kind):
        return pa.struct([field.with_type(_python_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_python_type(kind.value_type)))
    return kind


def _read_warc(path: str, page_bytes: int, skip: int) -> Iterator[tuple[Item, int]]:
    """The responses of a WARC file, and the plain text (`conversion`) of a WET file."""
    number, last = 0, 0
    with open(path, "rb") as file:
        try:
            # A bad HTTP header would end the iteration, so `_http_problem` parses them.
            for record in ArchiveIterator(file, parse_http=False, max_header_len=_LONGEST_HEADER):
                last = record.stream_pos
                if record.record_type in _PAGES:
                    number += 1
                    if number > skip:
                        yield _page(record, page_bytes), file.tell()
            _check_end(file, last)
        except (EOFError, OSError, ValueError, OverflowError, zlib.error) as error:
            raise _damaged(path, number, str(error)) from error


def _page(record: WarcRecord, page_bytes: int) -> InputRecord:
    date = record.record_date
    page = InputRecord(
        url=(record.headers.get("WARC-Target-URI") or "").strip("<>"),
        timestamp=date.strftime("%Y-%m-%dT%H:%M:%SZ") if date else None,
    )
    is_text = record.record_type == WarcRecordType.conversion
    page.problem = "" if is_text else _http_problem(record)
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
        content = _content(payload, record.http_headers, page_bytes)
        if content is None:
            page.problem = "content_encoding"
        elif len(content) > page_bytes:
            page.problem = "too_large"
        else:
            page.payload, page.charset = content, record.http_charset
    return page


def _content(payload: bytes, headers: Any, page_bytes: int) -> bytes | None:
    """The decoded content of a response, at most a byte more than a page may have.

    fastwarc's own decoding cannot be bounded (a record of which only a part was read breaks the
    next), so the payload is read raw, and decoded here. None: it cannot be.
    """
    try:
        if "chunked" in (headers.get("Transfer-Encoding") or "").lower():
            payload = _bounded(ChunkedReader(BytesIO(payload)), page_bytes + 1)
        encoding = (headers.get("Content-Encoding") or "").strip().lower()
        if encoding in ("", "identity"):
            return payload
        reader = _READERS.get(encoding)
        return None if reader is None else _bounded(reader(BytesIO(payload)), page_bytes + 1)
    except OSError:
        return None


def _bounded(reader: Any, left: int) -> bytes:
    parts = []
    while left > 0 and (part := reader.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _http_problem(record: WarcRecord) -> str:
    """Parses the HTTP header of a response; returns why its content is not read.

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
    kind = (record.http_content_type or HTML_TYPES[0]).lower()
    return "" if kind in HTML_TYPES else "content_type"


def _check_end(file: BinaryIO, last: int) -> None:
    """Reads on from the last record of a WARC file, which begins at `last` as fastwarc reports it.

    fastwarc does not report a record or a gzip member that is cut off.

    Raises:
        EOFError, OSError, zlib.error: If it is.
    """
    if file.seek(0, os.SEEK_END) == 0:
        return  # a segment without pages
    for start in (last, 0):  # in a file compressed as a whole, `last` is no place to read from
        file.seek(start)
        if file.read(len(_GZIP)) == _GZIP:
            file.seek(start)
            try:
                with gzip.GzipFile(fileobj=file) as members:
                    while members.read(_BLOCK):
                        pass
            except gzip.BadGzipFile as error:
                if not str(error).startswith("Not a gzipped file"):  # such as a line end at the end
                    raise
            return
    file.seek(last)
    header, separator, _ = file.read(_LONGEST_HEADER).partition(_HEADER_END)
    length = _CONTENT_LENGTH.search(header) if separator else None
    if length is not None:
        end = last + len(header) + len(separator) + int(length[1])
        is_whole = end <= file.seek(0, os.SEEK_END)
        file.seek(end)
        if is_whole and not file.read(_BLOCK).strip():  # of a next record, if it is cut off
            return
    raise EOFError("it ends within a record")


def counted(number: int, noun: str) -> str:
    """A number of things, for a message."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _damaged(path: str, number: int, reason: str) -> DataError:
    return DataError(
        f"{path}: damaged after {counted(number, 'record')} ({reason}); what was "
        "annotated before is kept: replace the file, or take it out of `input`"
    )


def item_bytes(item: Item) -> int:
    """About how many bytes an item has."""
    return len(item if isinstance(item, bytes) else item.payload or item.html or item.text or "")


_LINE = JSONDecoder(dict[str, msgspec.Raw])
_STRING = JSONDecoder(str | None)
_TIME = JSONDecoder(str | int | float | None)


def decode(item: Item, page_bytes: int) -> InputRecord:
    """A record with its problem, if it cannot be used."""
    record = item if isinstance(item, InputRecord) else decode_line(item)
    if record.payload is not None and not record.problem:
        record.html = decode_html(record.payload, record.charset)
    if record.html is not None and len(record.html) > page_bytes:
        return InputRecord(url=record.url, timestamp=record.timestamp, problem="too_large")
    if not record.problem and record.html is None and record.text is None:
        record.problem = "no_html"
    return record


def decode_line(line: bytes) -> InputRecord:
    """A JSON line: `url`, `html` or `text`, `timestamp` (or `c4_timestamp`); others are kept."""
    if line == OVERLONG:
        return InputRecord(problem="too_large")
    try:
        line.decode()  # columns that are only carried along are not decoded
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
    """The record of named columns, as decoded JSON or as a row of a table."""
    times = [columns.pop(name, None) for name in _TIMESTAMPS]
    timestamp = next((str(time) for time in times if time is not None), None)
    url, page, text = (columns.pop(name, None) for name in ("url", "html", "text"))
    is_right = all(value is None or isinstance(value, str) for value in (url, text))
    if not is_right or not isinstance(page, str | bytes | None):
        return InputRecord(problem="wrong_type")
    record = InputRecord(url or "", timestamp, text=text or None, columns=columns)
    if isinstance(page, bytes):
        record.payload = page
    else:
        record.html = page or None
    return record

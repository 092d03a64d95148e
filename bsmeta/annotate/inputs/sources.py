"""Lists and identifies input files, and reads their records: WARC, JSON lines and Parquet.

A reader yields the records of a file in order. JSON lines are yielded undecoded, because one
process reads for all workers, which decode them in parallel.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from bsmeta.annotate.html.page import decode_html
from bsmeta.annotate.inputs.http_response import (
    MAX_HEADER_BYTES,
    find_charset,
    is_html,
    parse_response,
)
from bsmeta.annotate.inputs.warc import Damage, Record, read_records
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import hash_file
from bsmeta.core.foreign_json import ForeignDecoder, split_columns
from bsmeta.data.io import shards
from bsmeta.data.io.file_start import refuse_other_format
from bsmeta.data.io.lines import OVERLONG, LineReader
from bsmeta.data.io.parquet_file import DAMAGE_ERRORS, ParquetSource
from bsmeta.data.io.parquet_pages import MAX_LIST_BYTES, compute_read_limits, measure_list_bytes

HASHING_THREADS = 8
"""Number of threads that hash input files."""

LINE_SUFFIXES = tuple(suffix for suffix in shards.SUFFIXES if suffix != shards.PARQUET)
WARC_SUFFIXES = (".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz")
SUFFIXES = (*LINE_SUFFIXES, *WARC_SUFFIXES, shards.PARQUET)

REFUSE = "refuse"
SKIP = "skip"
SALVAGE = "salvage"
ON_BAD_RECORD = (REFUSE, SKIP, SALVAGE)

BAD_RECORD = "bad_record"
"""The problem of a damaged part of a WARC file; `url` has its offset and the reason."""

_TIMESTAMP_COLUMNS = ("timestamp", "c4_timestamp")
_MAX_BATCH_ROWS = 64  # of a Parquet file, in memory


class InputRecord(msgspec.Struct):
    """A page as read from an input file.

    Attributes:
        url: The address; empty if unknown.
        timestamp: The time of the crawl.
        html: The raw page.
        payload: The raw page in its encoding; `decode_record` decodes it.
        charset: The charset of the payload in the HTTP header.
        text: The text, of input that has text instead of or beside a raw page.
        columns: All other columns, undecoded.
        problem: A slug such as `not_json` for the reason why the record cannot be used; empty if it
            can.
    """

    url: str = ""
    timestamp: str | None = None
    html: str | None = None
    payload: bytes | None = None
    charset: str | None = None
    text: str | None = None
    columns: dict[str, Any] = {}
    problem: str = ""


Item = bytes | InputRecord
"""A record of an input file: an undecoded JSON line, or a decoded record."""


@dataclass(frozen=True)
class InputFile:
    """A file of pages, identified by its content.

    Attributes:
        name: The name of its shard, without suffix.
        bytes: Its size.
        xxh3: Hash of its content.
    """

    path: str
    name: str
    bytes: int
    xxh3: str


def list_inputs(entries: Any, key: str = "input") -> list[tuple[str, str]]:
    """Lists the paths of input files, sorted, with the names of their shards.

    Args:
        entries: The value of the key: a path, folder or glob, or a list of them.
        key: The name of the key, for messages.

    Raises:
        ConfigurationError: If the key is not set, or two files would have the same shard.
        DataError: If an entry matches no file.
    """
    if not entries:
        raise ConfigurationError(
            f"{key} is not set; expected files, a folder or a glob: {', '.join(SUFFIXES)}"
        )

    entries = [entries] if isinstance(entries, str) else list(entries)
    unique_paths: set[str] = set()
    for entry in entries:
        unique_paths.update(os.path.abspath(path) for path in _expand_entry(str(entry), key))
    paths = sorted(unique_paths)

    # Files of the same name are distinguished by their folders.
    stems = [_derive_stem(path) for path in paths]
    if len(set(stems)) < len(stems):
        common = os.path.commonpath([os.path.dirname(path) for path in paths])
        stems = [_derive_stem(os.path.relpath(path, common).replace(os.sep, "_")) for path in paths]

    name, count = Counter(stems).most_common(1)[0]
    if count > 1:
        raise ConfigurationError(
            f"{key}: {count} files would all become the shard {name}: rename some, or "
            "give each its own output"
        )
    return list(zip(paths, stems, strict=True))


def _expand_entry(entry: str, key: str) -> list[str]:
    """Lists the input files at a path, in a folder, or matching a glob.

    Raises:
        DataError: If there are none.
    """
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
            f"{key}: {entry} {reason}; expected files that end in {', '.join(SUFFIXES)}"
        )
    return files


def _derive_stem(path: str) -> str:
    """Returns the name of a file without its suffix, which may have several parts."""
    name = os.path.basename(path)
    longest_suffix = next(suffix for suffix in reversed(SUFFIXES) if name.endswith(suffix))
    return name.removesuffix(longest_suffix)


def identify_files(files: Sequence[tuple[str, str]]) -> Iterator[InputFile]:
    """Yields the files with their sizes and hashes, in order, each as soon as it is hashed.

    Args:
        files: The paths, and the names of the shards.

    Raises:
        DataError: If a file cannot be read.
    """

    def identify(file: tuple[str, str]) -> InputFile:
        path, name = file
        try:
            return InputFile(path, name, os.path.getsize(path), hash_file(path))
        except OSError as error:
            raise DataError(f"input: {path} cannot be read: {error}") from error

    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        yield from pool.map(identify, files)


def read_items(
    path: str,
    page_bytes: int,
    skip: int = 0,
    *,
    on_bad_record: str = SKIP,
    others: Counter[str] | None = None,
) -> Iterator[tuple[Item, int]]:
    """Yields the records of a file, each with the number of bytes read so far.

    Args:
        page_bytes: Maximum size of a page of a WARC file.
        skip: Number of records to skip.
        on_bad_record: How to treat damage in a WARC file: raise an error (`refuse`), yield an item
            with a problem but raise an error if the file is cut off (`skip`), or always yield an
            item (`salvage`).
        others: Receives the counts of the records of a WARC file that are not pages, by type.

    Raises:
        DataError: If the file is damaged; raised after the records before the damage.
    """
    if path.endswith(LINE_SUFFIXES):
        return _read_lines(path, skip)
    if path.endswith(WARC_SUFFIXES):
        counter = Counter() if others is None else others
        return _read_warc(path, page_bytes, skip, on_bad_record, counter)
    return _read_rows(path, skip)


def _read_lines(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    """Yields the JSON lines of a file; see `decode_line` for their columns."""
    number = skip
    if number == 0:
        refuse_other_format(path, "input")

    with closing(LineReader(path)) as reader:
        while lines := reader.read(number, 1):
            number += 1
            line = bytes(lines[0])
            is_empty = not line or (line.isspace() and line != OVERLONG)
            yield InputRecord(problem="empty_line") if is_empty else line, reader.bytes_read
        if reader.damage:
            raise _make_damaged_file_error(path, number, reader.damage)


def _read_rows(path: str, skip: int) -> Iterator[tuple[Item, int]]:
    """Yields the rows of a Parquet file; the bytes read so far are estimated from the rows."""
    size = os.path.getsize(path)
    number = 0
    try:
        with pa.OSFile(path) as file:
            source = ParquetSource(file)
            total = max(source.group_ends[-1:] or [1])

            for group, end in enumerate(source.group_ends):
                if end <= skip:
                    number = end
                    continue

                for batch in _read_batches(source, file, group):
                    skipped = min(max(skip - number, 0), batch.num_rows)
                    number += skipped
                    for record in _read_batch(batch.slice(skipped)):
                        number += 1
                        yield record, size * number // total
    except DAMAGE_ERRORS as error:
        raise _make_damaged_file_error(path, number, str(error)) from error


def _read_batches(
    source: ParquetSource, file: pa.NativeFile, group: int
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a row group, cast to types that exist in Python and JSON."""
    limits = compute_read_limits(file, source.describe_column_chunks(group), _MAX_BATCH_ROWS)
    for batch in source.read_batches(
        group, None, limits.max_rows, dictionary_leaves=limits.dictionary_leaves, use_threads=True
    ):
        python_types = [_choose_python_type(column_type) for column_type in batch.schema.types]
        if python_types != batch.schema.types:
            schema = pa.schema(list(zip(batch.schema.names, python_types, strict=True)))
            batch = batch.cast(schema, safe=False)
        yield batch


def _read_batch(batch: pa.RecordBatch) -> Iterator[InputRecord]:
    """Yields a record for each row; it has a problem if the row cannot be converted.

    Raises:
        pa.ArrowException: If the batch is damaged.
    """
    list_bytes = sum(measure_list_bytes(column) for column in batch.columns)
    is_too_large = list_bytes > MAX_LIST_BYTES
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
                yield _read_difficult_row(batch)
                return
        else:
            for row in rows:
                yield make_record(row)
            return

    # Row by row, so that one bad or large row does not affect the others.
    for number in range(batch.num_rows):
        yield from _read_batch(batch.slice(number, 1))


def _read_difficult_row(batch: pa.RecordBatch) -> InputRecord:
    """Makes the record of a single row whose conversion failed.

    In columns that are only copied, unpaired surrogates become U+FFFD; in the columns of the page,
    they make the record unusable.
    """
    columns: dict[str, Any] = {}
    for field, array in zip(batch.schema, batch.columns, strict=True):
        try:
            columns[field.name] = array.to_pylist()[0]
        except UnicodeDecodeError:
            if field.name in _PAGE_COLUMNS:
                return InputRecord(problem="not_json")
            encoded = array.cast(_encode_type(field.type)).to_pylist()[0]
            try:
                columns[field.name] = _replace_surrogates(encoded, field.type)
            except UnicodeDecodeError:
                return InputRecord(problem="not_json")
        except (ValueError, OverflowError):
            return InputRecord(problem="not_json")
    return make_record(columns)


def _encode_type(arrow_type: pa.DataType) -> pa.DataType:
    """Replaces the string types in a type with binary ones."""
    if _is_text(arrow_type):
        return pa.large_binary()
    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(_encode_type(field.type)) for field in arrow_type])
    if types.is_map(arrow_type):
        return pa.map_(_encode_type(arrow_type.key_type), _encode_type(arrow_type.item_type))
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return pa.large_list(_encode_type(arrow_type.value_type))
    return arrow_type


def _is_text(arrow_type: pa.DataType) -> bool:
    """Whether a type is one of Arrow's string types."""
    return (
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
    )


def _replace_surrogates(value: Any, arrow_type: pa.DataType) -> Any:
    """Decodes the strings in a value of `_encode_type`; unpaired surrogates become U+FFFD.

    Raises:
        UnicodeDecodeError: If a string is not UTF-8 apart from surrogates.
    """
    if value is None:
        return None
    if _is_text(arrow_type):
        text = value.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if types.is_struct(arrow_type):
        return {
            field.name: _replace_surrogates(value[field.name], field.type) for field in arrow_type
        }
    if types.is_map(arrow_type):
        pairs = []
        for key, item in value:
            decoded_key = _replace_surrogates(key, arrow_type.key_type)
            pairs.append((decoded_key, _replace_surrogates(item, arrow_type.item_type)))
        return pairs
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return [_replace_surrogates(item, arrow_type.value_type) for item in value]
    return value


@lru_cache
def _choose_python_type(arrow_type: pa.DataType) -> pa.DataType:
    """Replaces nanoseconds, which Python does not have, and unknown time zones in a type.

    Arrow stores times in UTC, so UTC is right for any unknown zone.
    """
    if types.is_timestamp(arrow_type):
        unit = "us" if arrow_type.unit == "ns" else arrow_type.unit
        return pa.timestamp(unit, _choose_zone(arrow_type.tz))
    if types.is_duration(arrow_type) and arrow_type.unit == "ns":
        return pa.duration("us")
    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(_choose_python_type(field.type)) for field in arrow_type])
    if types.is_list(arrow_type):
        values = arrow_type.value_field
        return pa.list_(values.with_type(_choose_python_type(arrow_type.value_type)))
    return arrow_type


def _choose_zone(name: str | None) -> str | None:
    """Returns a time zone, or UTC if it is unknown on this machine."""
    if name is None:
        return None
    try:
        pa.scalar(0, pa.timestamp("s", name)).as_py()
    except (LookupError, ValueError):
        return "UTC"
    return name


def _read_warc(
    path: str, page_bytes: int, skip: int, on_bad_record: str, others: Counter[str]
) -> Iterator[tuple[Item, int]]:
    """Yields the pages of a WARC or WET file, and an item for each damaged part."""
    number = 0
    with open(path, "rb") as file:
        for record in read_records(file, page_bytes + MAX_HEADER_BYTES):
            if isinstance(record, Damage):
                if on_bad_record == REFUSE or (record.is_cut_off and on_bad_record != SALVAGE):
                    raise _make_damaged_file_error(
                        path, number, f"byte {record.offset:,}: {record.reason}"
                    )
                page = InputRecord(url=f"byte {record.offset}: {record.reason}", problem=BAD_RECORD)
            elif _is_page(record):
                page = _read_page(record, page_bytes)
            else:
                others[record.type or "without a type"] += 1
                continue

            number += 1
            if number > skip:
                yield page, file.tell()


def _is_page(record: Record) -> bool:
    """Whether a record is an HTTP response, an HTML resource, or the text of a page."""
    if record.type == "resource":
        return is_html(record.parse_header().get("content-type", "unknown"))
    return record.type in ("response", "conversion")


def _read_page(record: Record, page_bytes: int) -> InputRecord:
    """Makes the record of a page from a record of a WARC file."""
    fields = record.parse_header()
    page = InputRecord(
        url=fields.get("warc-target-uri", "").strip("<>"),
        timestamp=_normalize_date(fields.get("warc-date", "")),
    )
    if record.type == "response":
        response = parse_response(record.content, page_bytes)
        page.problem = response.problem
        page.charset = response.charset
        if not page.problem:
            page.payload = response.body
        return page

    if len(record.content) > page_bytes:
        page.problem = "too_large"
    elif record.type == "conversion":
        page.text = record.content.decode("utf-8", "replace")
    else:
        page.payload = record.content
        page.charset = find_charset(fields["content-type"])
    return page


def _normalize_date(value: str) -> str | None:
    """Formats a WARC date in UTC without fractions of a second; returns None if it is invalid."""
    try:
        date = datetime.fromisoformat(value)
    except ValueError:
        return None

    zoned_date = date if date.tzinfo else date.replace(tzinfo=UTC)
    try:
        return zoned_date.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except OverflowError:
        return None


def format_count(number: int, noun: str) -> str:
    """Formats a count with its noun, such as "1 page" or "2,000 pages"."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


def _make_damaged_file_error(path: str, number: int, reason: str) -> DataError:
    return DataError(
        f"{path}: damaged after {format_count(number, 'record')} ({reason}); what was "
        "annotated before is kept: replace the file, or take it out of `input`"
    )


def estimate_item_bytes(item: Item) -> int:
    """Returns the approximate size of an item in bytes."""
    if isinstance(item, bytes):
        return len(item)
    return len(item.payload or item.html or item.text or "")


class _Page(msgspec.Struct):
    """The decoded columns of a line; all other columns are copied undecoded."""

    url: str | None = None
    html: str | None = None
    text: str | None = None
    timestamp: str | int | float | None = None
    c4_timestamp: str | int | float | None = None


_PAGE_DECODER = ForeignDecoder(_Page)
_PAGE_COLUMNS = _Page.__struct_fields__


def decode_record(item: Item, page_bytes: int) -> InputRecord:
    """Decodes a record; sets its `problem` if it cannot be used.

    Args:
        page_bytes: Maximum number of characters in a raw page.
    """
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

    Other columns are kept undecoded, but NaN becomes null and an unpaired surrogate U+FFFD.
    """
    if line == OVERLONG:
        return InputRecord(problem="too_large")

    try:
        line.decode("utf-8", "surrogatepass")  # undecoded columns must be UTF-8, too
        columns: dict[str, Any] = {**split_columns(line)}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return InputRecord(problem="not_json")

    try:
        page = _PAGE_DECODER.decode(line)
    except msgspec.ValidationError:
        return InputRecord(problem="wrong_type")
    except msgspec.DecodeError:  # an unpaired surrogate in one of these columns
        return InputRecord(problem="not_json")
    return make_record(columns | {name: getattr(page, name) for name in _PAGE_COLUMNS})


def make_record(columns: dict[str, Any]) -> InputRecord:
    """Makes a record from the columns of a JSON line or of a row of a table, by name."""
    times = [columns.pop(name, None) for name in _TIMESTAMP_COLUMNS]
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

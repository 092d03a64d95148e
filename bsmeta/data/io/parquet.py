"""Read the rows of a Parquet shard as lines of JSON, from any row on.

The number of a document is that of its row. The footer has the number of rows of each
row group, so any group is entered directly, without an index. Inside a group, rows are decoded page
by page in small batches, so memory does not grow with the group; rows before the first requested
one are decoded, but not converted. Only requested columns are read.

Values are converted column by column: a page may have hundreds of html records, and to build them
one by one (`to_pylist`) takes several times as long. A struct becomes an object, a list an array, a
timestamp an ISO 8601 string (in UTC if it has a time zone), a binary value a string, NaN and a date
beyond the year 9999 null, a number the shortest decimal that reads back as the same value of its
type. What Arrow keeps as views (`string_view`, `list_view`, ...) reads as the types without.

A list of hundreds of records is converted only for the documents that use it (`PartialLine`).
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from bsmeta.core.errors import DataError, UserError
from bsmeta.core.progress import report_progress
from bsmeta.data.io.compression import LFS, LFS_POINTER
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file, refuse_bad_copy
from bsmeta.data.io.parquet_file import DAMAGED, ColumnChunk, ParquetSource, is_selected
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.metadata.records import Line, PartialLine

BATCH_BYTES = 2 << 20  # decoded at a time
VALUE_BYTES = 16  # memory of a value, at least, decoded and converted
LATE_SHARE = 8  # of it, a late column takes one part in this many: few rows are converted
BATCH_ROWS = 1024  # ... and at most this number of rows
MOST_BLOCKS = 8  # of a remote file in memory: its columns are read in turns

# Arrow's own allocator keeps several times as much memory as is in use.
pa.set_memory_pool(pa.system_memory_pool())

NO_ROWS = pa.record_batch([], names=[])

UNSUPPORTED = (pa.ArrowNotImplementedError, TypeError)
"""What is raised for types that cannot be decoded, or not be written as JSON."""


class ParquetReader(ShardReader):
    """The rows of one shard.

    Args:
        columns: Names of the columns to read, as far as the shard has them (`a.b` is the field `b`
            of the struct `a`); None reads all.
        late: Columns of lists that are converted only when they are needed: its lines are
            `PartialLine`s.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the Hub cannot be reached, the file was read from a bad copy, or a column has
            an unsupported type.
    """

    def __init__(
        self,
        path: str | FileRef,
        columns: Collection[str] | None = None,
        late: Collection[str] = (),
    ) -> None:
        super().__init__(path)
        self._columns = None if columns is None else sorted(columns)
        self._source: ParquetSource | None = None  # if its footer is readable
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())  # the rest of the group
        self._batch = NO_ROWS
        self._first = 0  # number of the batch's first row
        blocks = MOST_BLOCKS if columns is None else min(len(columns) + 1, MOST_BLOCKS)
        self._file = open_file(path, blocks)  # closed by `close`
        with self._recorded_damage():
            source = ParquetSource(self._file)
            schema = source.schema
            self._late = [
                name
                for name in late  # those of which all values can be converted: no error comes late
                if schema.names.count(name) == 1
                and _is_any_list(kind := schema.field(name).type)
                and _is_safe(kind)
            ]
            self._source = source

    @property
    def rows(self) -> int:
        """Number of rows of the shard, as its footer states it; 0 if that cannot be read."""
        return self._source.ends[-1] if self._source is not None and self._source.ends else 0

    def take(self, numbers: Sequence[int]) -> list[Line]:
        """The rows with these numbers, which increase; fewer if the shard ends or is damaged."""
        lines: list[Line] = []
        if self._source is not None:
            self.damage = ""  # of one row group; others may be readable
            with self._recorded_damage():
                while len(lines) < len(numbers) and self._go_to(numbers[len(lines)]):
                    end = self._first + len(self._batch)
                    rows = numbers[len(lines) : bisect.bisect_left(numbers, end)]
                    batch = _chosen(self._batch, [row - self._first for row in rows])
                    lines += _partial_lines(batch, self._late) if self._late else json_lines(batch)
                    self.line = rows[-1] + 1
        self.ended = len(lines) < len(numbers)
        return lines

    def close(self) -> None:
        """Closes the file."""
        self._source, self._batches, self._batch = None, iter(()), NO_ROWS
        self._file.close()

    def _go_to(self, row: int) -> bool:
        """Decodes the batch that contains a row; returns false if the shard has no such row."""
        assert self._source is not None
        group = bisect.bisect_right(self._source.ends, row)
        if group == len(self._source.ends):
            return False
        if group != self._group or row < self._first:
            self.enter(group)
        while row >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = NO_ROWS
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"it ends before row {row + 1}")
            self._batch = without_views(batch)
            report_progress()
        return True

    def enter(self, group: int) -> None:
        """Moves to the first row of a row group, without reading it yet."""
        assert self._source is not None
        ends = self._source.ends
        self._group = group
        self._first = ends[group - 1] if group else 0
        self._batch = NO_ROWS
        chunks = self._source.column_chunks(group, self._columns)
        rows = _batch_rows(chunks, ends[group] - self._first, self._late)
        self._batches = self._source.batches(group, self._columns, rows)

    @contextlib.contextmanager
    def _recorded_damage(self) -> Iterator[None]:
        """Turns errors of decoding into `damage`."""
        try:
            yield
        except UserError:  # the Hub cannot be reached
            raise
        except UNSUPPORTED as error:
            raise self._unsupported(error) from error
        except DAMAGED as error:
            refuse_bad_copy(self.path)
            where = f"row group {self._group}" if self._source else "the footer"
            self.damage = f"{where} cannot be read: {error}"
            if self._source is None:
                self._file.seek(0)
                if self._file.read(len(LFS_POINTER)) == LFS_POINTER:
                    self.damage = LFS
            self._group = -1  # to be entered again

    def _unsupported(self, error: Exception) -> DataError:
        """The error about a file that is intact, but has something that cannot be read."""
        listed = ""
        if self._source is not None:
            names = {column.split(".")[0] for column in self._columns or ()}
            fields = [
                f"{field.name}: {field.type}"
                for field in self._source.schema
                if not names or field.name in names
            ]
            listed = f". The columns have the types {', '.join(fields)}"
        return DataError(
            f"{self.path}: not supported: {error}{listed}. Write the file with other types, such "
            "as strings, numbers, lists and structs"
        )


def _batch_rows(chunks: Sequence[ColumnChunk], rows: int, late: Sequence[str]) -> int:
    """How many rows of a row group to decode at a time, from their average size.

    Repeated values are stored once and counted, so the number of values matters, too.
    """
    size = sum(
        (chunk.raw_size + chunk.values * VALUE_BYTES)
        // (LATE_SHARE if is_selected(chunk.leaf.path, late) else 1)
        for chunk in chunks
    )
    return max(min(BATCH_BYTES * rows // max(size, 1), BATCH_ROWS), 1)


def _is_safe(kind: pa.DataType) -> bool:
    """Whether JSON has all values of a type."""
    if types.is_struct(kind) or _is_any_list(kind):
        return all(_is_safe(kind.field(number).type) for number in range(kind.num_fields))
    strings = types.is_string(kind) or types.is_large_string(kind)
    return strings or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose views are cast: few of Arrow's functions take them."""
    kinds = [plain_type(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    return batch.cast(pa.schema([*zip(batch.schema.names, kinds, strict=True)]))


@lru_cache
def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type in which strings, binary values, and lists of them, are no views."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    # A list view of plain values is read as it is: Arrow fails to cast one that has nulls only.
    if [plain_type(value) for value in inner] == inner:
        return kind
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
    return (pa.large_list if is_large else pa.list_)(plain_type(kind.value_type))


def _is_any_list(kind: pa.DataType) -> bool:
    tests = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(kind) for is_kind in tests)


def _chosen(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Some rows of a batch, in increasing order; without a copy if they are consecutive."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return batch.slice(rows[0], len(rows))
    return batch.take(pa.array(rows))


_ENCODER = msgspec.json.Encoder(decimal_format="number")


def json_lines(batch: pa.RecordBatch) -> list[bytes]:
    """The rows of a batch, each as a JSON object.

    Strings that are not UTF-8 are copied as they are; decoding the line reports them.
    """
    if not batch.num_columns:
        return [b"{}"] * batch.num_rows
    return list(map(_ENCODER.encode, _objects(batch.schema, batch.columns)))


def _partial_lines(batch: pa.RecordBatch, late: Sequence[str]) -> list[PartialLine]:
    """The rows of a batch without the late columns, which are lists."""
    late = [name for name in late if name in batch.schema.names]
    columns: list[dict[str, Callable[[], bytes]]] = [{} for _ in range(batch.num_rows)]
    for name in late:
        lists = batch.column(name)
        for row in np.flatnonzero(_lengths(lists)).tolist():
            columns[row][name] = partial(element, lists, row)
    return list(map(PartialLine, json_lines(batch.drop_columns(late)), columns))


def element(array: pa.Array, row: int) -> bytes:
    """The JSON of one element."""
    return _ENCODER.encode(_values(array.slice(row, 1))[0])


def _values(array: pa.Array) -> list[Any]:
    """The elements as Python values, of which JSON is made; a list is a tuple."""
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _texts(array)
    if types.is_integer(kind) or types.is_boolean(kind):
        return array.to_pylist()
    if types.is_struct(kind) and kind.num_fields:
        return _where_valid(array, _objects(kind, array.flatten()))
    if _is_any_list(kind):
        return _where_valid(array, _lists(array))
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if types.is_timestamp(kind):
        return _texts(_iso(array))
    if types.is_binary(kind):
        return _texts(array.view(pa.string()))
    if types.is_large_binary(kind):
        return _texts(array.view(pa.large_string()))
    if types.is_fixed_size_binary(kind):
        return _values(array.cast(pa.binary()))
    if types.is_date(kind):
        return _dates(array).to_pylist()
    return [_shortest(value, kind) for value in array.to_pylist(maps_as_pydicts="lossy")]


def _where_valid(array: pa.Array, values: list[Any]) -> list[Any]:
    """The values of an array, with None where it has null."""
    if not array.null_count:
        return values
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _objects(fields: Iterable[pa.Field], columns: Sequence[pa.Array]) -> list[Any]:
    """An object for each row; of fields of the same name, the last one counts."""
    named = {field.name: column for field, column in zip(fields, columns, strict=True)}
    return list(map(_object_type(tuple(named)), *map(_values, named.values())))


@lru_cache
def _object_type(names: tuple[str, ...]) -> Callable[..., Any]:
    """Makes an object of its values; the garbage collector tracks none of a page's hundreds."""
    fields = {f"field_{number}": name for number, name in enumerate(names)}
    try:
        return msgspec.defstruct("Row", list(fields), rename=fields, gc=False)
    except ValueError:  # JSON escapes a character of a name
        return lambda *values: dict(zip(names, values, strict=True))


def _lengths(array: pa.Array) -> np.ndarray:
    """Of each list; 0 where there is none."""
    lengths = pc.list_value_length(array)
    return (lengths.fill_null(0) if lengths.null_count else lengths).to_numpy()


def _lists(array: pa.Array) -> list[Any]:
    values = tuple(_values(array.flatten()))
    ends = [0, *np.cumsum(_lengths(array)).tolist()]
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]


def _texts(array: pa.Array) -> list[Any]:
    """Strings; one that is not UTF-8 becomes JSON that is not, either."""
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        return [
            None if text is None else _text(text)
            for text in array.cast(pa.large_binary()).to_pylist()
        ]


def _text(text: bytes) -> str | msgspec.Raw:
    try:
        return text.decode()
    except UnicodeDecodeError:
        escaped = json.dumps(text.decode("latin-1"), ensure_ascii=False)
        return msgspec.Raw(escaped.encode("latin-1"))


def _shortest(value: Any, kind: pa.DataType) -> Any:
    """A value, in which each float16 or float32 has the fewest digits that read back as the same.

    Args:
        value: As Python's; a map is a dict.
        kind: Its type in Arrow.
    """
    if value is None or types.is_float64(kind):
        return value
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(kind, pa.BaseExtensionType):
        return _shortest(value, kind.storage_type)
    if types.is_floating(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if types.is_map(kind):
        return {name: _shortest(item, kind.item_type) for name, item in value.items()}
    if types.is_fixed_size_list(kind) or _is_any_list(kind):
        return [_shortest(item, kind.value_type) for item in value]
    if types.is_struct(kind):
        return {field.name: _shortest(value[field.name], field.type) for field in kind}
    return value


def _dates(array: pa.Array) -> pa.Array:
    """Dates, of which those beyond the years that Python's have (1 to 9999) become null."""
    first, last = (pa.scalar(day, array.type) for day in (datetime.date.min, datetime.date.max))
    is_valid = pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))
    return pc.if_else(is_valid, array, pa.scalar(None, array.type))


def _iso(array: pa.TimestampArray) -> pa.Array:
    """As `2019-04-25T12:57:54Z`; with a fraction of the second only if it is not 0."""
    unit = "us" if array.type.unit == "ns" else array.type.unit  # as Python's datetime
    zone = None if array.type.tz is None else "UTC"
    array = array.cast(pa.timestamp(unit, zone), safe=False)
    text = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")

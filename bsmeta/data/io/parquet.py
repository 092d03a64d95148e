"""Reads the rows of a Parquet shard as lines of JSON, from any row on.

The number of a document is the index of its row. The footer states the number of rows in each row
group, so reading can begin at any group without an index. Within a group, rows are decoded page by
page in small batches, so memory does not grow with the group; rows before the first requested row
are decoded, but not converted. Only requested columns are read.

Values are converted column by column: a page may have hundreds of HTML records, and building them
one by one (`to_pylist`) takes several times as long. A struct becomes an object, a list an array, a
timestamp an ISO 8601 string (in UTC if it has a time zone), and a binary value a string. NaN, and
dates beyond the year 9999, become null. A number becomes the shortest decimal that reads back as
the same value of its type. Arrow's views (`string_view`, `list_view`, ...) are read as the
corresponding types without views.

Lists of hundreds of records are converted lazily, only for documents that use them
(`PartialLine`).
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
from bsmeta.data.io.compression import LFS_MESSAGE, LFS_POINTER
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file, refuse_bad_copy
from bsmeta.data.io.parquet_file import DAMAGE_ERRORS, ColumnChunk, ParquetSource, is_selected
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.metadata.records import Line, PartialLine

TARGET_BATCH_BYTES = 2 << 20  # approximate size of a batch, decoded and converted
MAX_BATCH_ROWS = 1024
MIN_VALUE_BYTES = 16  # minimum memory of a value, decoded and converted
LAZY_DISCOUNT = 8  # divides the estimated memory of a lazy column, as few rows are converted
MAX_KEPT_BLOCKS = 8  # of a remote file, in memory: several, because columns are read in turns

# Arrow's own allocator keeps several times as much memory as is in use.
pa.set_memory_pool(pa.system_memory_pool())

NO_ROWS = pa.record_batch([], names=[])

UNSUPPORTED_TYPE_ERRORS = (pa.ArrowNotImplementedError, TypeError)
"""Errors for types that cannot be decoded, or written as JSON."""


class ParquetReader(ShardReader):
    """Reads the rows of one shard as lines.

    Args:
        columns: Names of the columns to read if the shard has them (`a.b` is the field `b` of the
            struct `a`); None reads all.
        lazy_columns: Columns of lists that are converted only when they are needed: the lines are
            then `PartialLine`s.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If a remote file cannot be read or its cached copy is bad, or a column has an
            unsupported type.
    """

    def __init__(
        self,
        path: str | FileRef,
        columns: Collection[str] | None = None,
        lazy_columns: Collection[str] = (),
    ) -> None:
        super().__init__(path)
        self._columns = None if columns is None else sorted(columns)
        self._source: ParquetSource | None = None  # None if the footer is not readable
        self._lazy_columns: list[str] = []
        self._group = -1  # index of the current row group; -1 for none
        self._batches: Iterator[pa.RecordBatch] = iter(())  # the remaining batches of the group
        self._batch = NO_ROWS
        self._first_row = 0  # index in the shard of the batch's first row

        num_kept_blocks = MAX_KEPT_BLOCKS
        if columns is not None:
            num_kept_blocks = min(len(columns) + 1, MAX_KEPT_BLOCKS)
        self._file = open_file(path, num_kept_blocks)  # closed by `close`
        with self._record_damage():
            source = ParquetSource(self._file)
            self._lazy_columns = [
                name for name in lazy_columns if _can_be_lazy(source.schema, name)
            ]
            self._source = source

    @property
    def num_rows(self) -> int:
        """Number of rows of the shard as stated in its footer; 0 if the footer cannot be read."""
        if self._source is None or not self._source.group_ends:
            return 0
        return self._source.group_ends[-1]

    def take(self, numbers: Sequence[int]) -> list[Line]:
        """Returns the rows with the given increasing numbers; fewer at the end or at damage."""
        lines: list[Line] = []
        if self._source is not None:
            self.damage = ""  # row groups other than the damaged one may be readable
            with self._record_damage():
                while len(lines) < len(numbers) and self._go_to(numbers[len(lines)]):
                    batch_end = self._first_row + len(self._batch)
                    rows = numbers[len(lines) : bisect.bisect_left(numbers, batch_end)]
                    lines += self._encode_batch_rows([row - self._first_row for row in rows])
                    self.line = rows[-1] + 1

        self.ended = len(lines) < len(numbers)
        return lines

    def _encode_batch_rows(self, rows: Sequence[int]) -> Sequence[Line]:
        """Returns rows of the current batch as lines, by their increasing indices in the batch."""
        batch = _select_rows(self._batch, rows)
        if self._lazy_columns:
            return _encode_partial_rows(batch, self._lazy_columns)
        return encode_rows(batch)

    def close(self) -> None:
        """Closes the file."""
        self._source = None
        self._batches = iter(())
        self._batch = NO_ROWS
        self._file.close()

    def _go_to(self, row: int) -> bool:
        """Decodes the batch that contains a row; returns False if the shard has no such row.

        Raises:
            DAMAGE_ERRORS: If the batch cannot be decoded.
        """
        assert self._source is not None
        group = bisect.bisect_right(self._source.group_ends, row)
        if group == len(self._source.group_ends):
            return False
        if group != self._group or row < self._first_row:
            self.enter_group(group)

        while row >= self._first_row + len(self._batch):
            self._first_row += len(self._batch)
            self._batch = NO_ROWS
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"it ends before row {row + 1}")
            self._batch = cast_views(batch)
            report_progress()
        return True

    def enter_group(self, group: int) -> None:
        """Moves to the beginning of a row group, without reading rows yet."""
        assert self._source is not None
        group_ends = self._source.group_ends
        self._group = group
        self._first_row = group_ends[group - 1] if group else 0
        self._batch = NO_ROWS

        chunks = self._source.describe_column_chunks(group, self._columns)
        num_rows = group_ends[group] - self._first_row
        batch_rows = _choose_batch_rows(chunks, num_rows, self._lazy_columns)
        self._batches = self._source.read_batches(group, self._columns, batch_rows)

    @contextlib.contextmanager
    def _record_damage(self) -> Iterator[None]:
        """Suppresses errors of damaged content, and records them in `damage`.

        Raises:
            DataError: If the cached copy of a remote file is bad, or a type is not supported.
        """
        try:
            yield
        except UserError:  # for example, if the Hub cannot be reached
            raise
        except UNSUPPORTED_TYPE_ERRORS as error:
            raise self._make_unsupported_error(error) from error
        except DAMAGE_ERRORS as error:
            refuse_bad_copy(self.path)
            damaged_part = f"row group {self._group}" if self._source else "the footer"
            self.damage = f"{damaged_part} cannot be read: {error}"
            if self._source is None:
                self._file.seek(0)
                if self._file.read(len(LFS_POINTER)) == LFS_POINTER:
                    self.damage = LFS_MESSAGE
            self._group = -1  # the next call opens its group again

    def _make_unsupported_error(self, error: Exception) -> DataError:
        """Returns the error for an intact file with unsupported types."""
        column_types = ""
        if self._source is not None:
            names = {column.split(".")[0] for column in self._columns or ()}
            fields = [
                f"{field.name}: {field.type}"
                for field in self._source.schema
                if not names or field.name in names
            ]
            column_types = f". The columns have the types {', '.join(fields)}"
        return DataError(
            f"{self.path}: not supported: {error}{column_types}. Write the file with other types, "
            "such as strings, numbers, lists and structs"
        )


def _can_be_lazy(schema: pa.Schema, name: str) -> bool:
    """Returns whether a column can be converted lazily.

    Its type must be a list whose values can all be converted, so that no error can occur later.
    """
    if schema.names.count(name) != 1:
        return False
    column_type = schema.field(name).type
    return _is_any_list(column_type) and _is_convertible(column_type)


def _choose_batch_rows(
    chunks: Sequence[ColumnChunk], num_rows: int, lazy_columns: Sequence[str]
) -> int:
    """Chooses the number of rows of a row group to decode at a time, by the mean size of a row.

    The size is estimated from both the bytes and the number of values, because a repeated value is
    stored only once.

    Args:
        chunks: The columns of the row group that are read.
        num_rows: The number of rows of the row group.
        lazy_columns: Names of the columns that are converted lazily.
    """
    num_bytes = 0
    for chunk in chunks:
        chunk_bytes = chunk.raw_size + chunk.num_values * MIN_VALUE_BYTES
        is_lazy = is_selected(chunk.leaf.path, lazy_columns)
        num_bytes += chunk_bytes // LAZY_DISCOUNT if is_lazy else chunk_bytes

    target_rows = TARGET_BATCH_BYTES * num_rows // max(num_bytes, 1)
    return max(min(target_rows, MAX_BATCH_ROWS), 1)


def _is_convertible(arrow_type: pa.DataType) -> bool:
    """Returns whether every value of a type can be written as JSON."""
    if types.is_struct(arrow_type) or _is_any_list(arrow_type):
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        return all(_is_convertible(field.type) for field in fields)
    return (
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_boolean(arrow_type)
        or types.is_null(arrow_type)
    )


def cast_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Casts views in a batch to types without views, because few Arrow functions accept views."""
    column_types = [remove_views(column_type) for column_type in batch.schema.types]
    if column_types == batch.schema.types:
        return batch
    fields = list(zip(batch.schema.names, column_types, strict=True))
    return batch.cast(pa.schema(fields))


@lru_cache
def remove_views(arrow_type: pa.DataType) -> pa.DataType:
    """Returns a type without views of strings and binary values, at any depth.

    For example, a list of string views becomes a list of large strings.
    """
    if types.is_string_view(arrow_type):
        return pa.large_string()
    if types.is_binary_view(arrow_type):
        return pa.large_binary()

    # A list view of other values stays: Arrow cannot cast a list view with only nulls.
    inner_types = [arrow_type.field(index).type for index in range(arrow_type.num_fields)]
    if [remove_views(inner_type) for inner_type in inner_types] == inner_types:
        return arrow_type

    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(remove_views(field.type)) for field in arrow_type])
    if types.is_map(arrow_type):
        return pa.map_(remove_views(arrow_type.key_type), remove_views(arrow_type.item_type))
    if types.is_fixed_size_list(arrow_type):
        return pa.list_(remove_views(arrow_type.value_type), arrow_type.list_size)
    if types.is_large_list(arrow_type) or types.is_large_list_view(arrow_type):
        return pa.large_list(remove_views(arrow_type.value_type))
    return pa.list_(remove_views(arrow_type.value_type))


def _is_any_list(arrow_type: pa.DataType) -> bool:
    """Returns whether a type is a list of variable length, or a view of one."""
    return (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )


def _select_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Returns rows of a batch by their increasing indices; copies only if there are gaps."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return batch.slice(rows[0], len(rows))
    return batch.take(pa.array(rows))


_ENCODER = msgspec.json.Encoder(decimal_format="number")


def encode_rows(batch: pa.RecordBatch) -> list[bytes]:
    """Returns each row of a batch as a JSON object.

    Strings that are not UTF-8 are copied unchanged; decoding the line reports them.
    """
    if not batch.num_columns:
        return [b"{}"] * batch.num_rows
    return [_ENCODER.encode(row) for row in _build_objects(batch.schema, batch.columns)]


def _encode_partial_rows(batch: pa.RecordBatch, lazy_columns: Sequence[str]) -> list[PartialLine]:
    """Returns each row of a batch as a line, with encoders that add its non-empty lazy lists."""
    names = [name for name in lazy_columns if name in batch.schema.names]
    encoders: list[dict[str, Callable[[], bytes]]] = [{} for _ in range(batch.num_rows)]
    for name in names:
        lists = batch.column(name)
        for row in np.flatnonzero(_measure_lists(lists)).tolist():
            encoders[row][name] = partial(encode_element, lists, row)

    lines = encode_rows(batch.drop_columns(names))
    return [
        PartialLine(line, line_encoders)
        for line, line_encoders in zip(lines, encoders, strict=True)
    ]


def encode_element(array: pa.Array, row: int) -> bytes:
    """Returns one element of an array as JSON."""
    return _ENCODER.encode(_convert_values(array.slice(row, 1))[0])


def _convert_values(array: pa.Array) -> list[Any]:
    """Converts the elements of an array to values that msgspec encodes; a list becomes a tuple."""
    arrow_type = array.type
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return _convert_to_texts(array)
    if types.is_integer(arrow_type) or types.is_boolean(arrow_type):
        return array.to_pylist()

    if types.is_struct(arrow_type) and arrow_type.num_fields:
        return _restore_nulls(array, _build_objects(arrow_type, array.flatten()))
    if _is_any_list(arrow_type):
        return _restore_nulls(array, _convert_to_tuples(array))
    if types.is_dictionary(arrow_type):
        return _convert_values(array.dictionary_decode())

    if types.is_timestamp(arrow_type):
        return _convert_to_texts(_format_timestamps(array))
    if types.is_date(arrow_type):
        return _drop_distant_dates(array).to_pylist()
    if types.is_duration(arrow_type):
        return _drop_long_durations(array).to_pylist()

    if types.is_binary(arrow_type):
        return _convert_to_texts(array.view(pa.string()))
    if types.is_large_binary(arrow_type):
        return _convert_to_texts(array.view(pa.large_string()))
    if types.is_fixed_size_binary(arrow_type):
        return _convert_values(array.cast(pa.binary()))
    values = array.to_pylist(maps_as_pydicts="lossy")
    return [_make_json_value(value, arrow_type) for value in values]


def _restore_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    """Replaces the values at the nulls of an array with None."""
    if not array.null_count:
        return values
    is_valid = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]


def _build_objects(fields: Iterable[pa.Field], columns: Sequence[pa.Array]) -> list[Any]:
    """Builds an object for each row; of several fields with the same name, the last one is used."""
    named_columns = {field.name: column for field, column in zip(fields, columns, strict=True)}
    build_object = _make_object_builder(tuple(named_columns))
    values_by_column = [_convert_values(column) for column in named_columns.values()]
    return list(map(build_object, *values_by_column))


@lru_cache
def _make_object_builder(names: tuple[str, ...]) -> Callable[..., Any]:
    """Returns a function that builds an object from the values of its fields, in this order.

    The objects are not tracked by the garbage collector, because a page has hundreds of them.
    """
    fields = {f"field_{index}": name for index, name in enumerate(names)}
    try:
        return msgspec.defstruct("Row", list(fields), rename=fields, gc=False)
    except ValueError:  # a name has a character that JSON escapes
        return lambda *values: dict(zip(names, values, strict=True))


def _measure_lists(array: pa.Array) -> np.ndarray:
    """Returns the length of each list in an array (int[n]); 0 for null."""
    lengths = pc.list_value_length(array)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    return lengths.to_numpy()


def _convert_to_tuples(array: pa.Array) -> list[Any]:
    """Converts lists to tuples; null becomes an empty tuple."""
    values = tuple(_convert_values(array.flatten()))
    bounds = [0, *np.cumsum(_measure_lists(array)).tolist()]
    return [values[start:end] for start, end in itertools.pairwise(bounds)]


def _convert_to_texts(array: pa.Array) -> list[Any]:
    """Converts strings; a string that is not UTF-8 becomes raw JSON with the same bytes."""
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        encoded_texts = array.cast(pa.large_binary()).to_pylist()
        return [None if encoded is None else _decode_text(encoded) for encoded in encoded_texts]


def _decode_text(encoded: bytes) -> str | msgspec.Raw:
    """Decodes UTF-8; other bytes become the raw JSON of a string with the same bytes."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        # Latin-1 maps each byte to one character and back, so that only the escapes are added.
        escaped = json.dumps(encoded.decode("latin-1"), ensure_ascii=False)
        return msgspec.Raw(escaped.encode("latin-1"))


def _make_json_value(value: Any, arrow_type: pa.DataType) -> Any:
    """Returns a value that msgspec encodes: bytes are decoded, and floats shortened.

    A float16 or float32 is rounded to the fewest digits that read back as the same value.

    Args:
        value: The value as Arrow converts it; a map is a dict.
        arrow_type: The value's type in Arrow.
    """
    if value is None or types.is_float64(arrow_type):
        return value
    if isinstance(value, bytes):
        return _decode_text(value)
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _make_json_value(value, arrow_type.storage_type)
    if types.is_floating(arrow_type):
        return float(str(arrow_type.to_pandas_dtype()(value)))

    if types.is_map(arrow_type):
        return {name: _make_json_value(item, arrow_type.item_type) for name, item in value.items()}
    if types.is_fixed_size_list(arrow_type) or _is_any_list(arrow_type):
        return [_make_json_value(item, arrow_type.value_type) for item in value]
    if types.is_struct(arrow_type):
        return {field.name: _make_json_value(value[field.name], field.type) for field in arrow_type}
    return value


def _drop_distant_dates(array: pa.Array) -> pa.Array:
    """Replaces dates outside the years that Python supports (1 to 9999) with null."""
    first = pa.scalar(datetime.date.min, array.type)
    last = pa.scalar(datetime.date.max, array.type)
    is_valid = pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))
    return pc.if_else(is_valid, array, pa.scalar(None, array.type))


def _drop_long_durations(array: pa.DurationArray) -> pa.Array:
    """Replaces durations that Python does not support with null; truncates ns to microseconds."""
    if array.type.unit == "ns":
        return array.cast(pa.duration("us"), safe=False)
    unit = pa.scalar(1, array.type).as_py()
    counts = array.cast(pa.int64())
    is_valid = pc.and_(
        pc.greater_equal(counts, _count_units(datetime.timedelta.min, unit)),
        pc.less_equal(counts, _count_units(datetime.timedelta.max, unit)),
    )
    return pc.if_else(is_valid, array, pa.scalar(None, array.type))


def _count_units(duration: datetime.timedelta, unit: datetime.timedelta) -> pa.Scalar:
    """Returns the number of units in a duration, clamped to 64 bits."""
    count = duration // unit
    return pa.scalar(min(max(count, -(1 << 63)), (1 << 63) - 1), pa.int64())


def _format_timestamps(array: pa.TimestampArray) -> pa.Array:
    """Formats times as `2019-04-25T12:57:54Z`, with a fraction of a second unless it is 0."""
    unit = "us" if array.type.unit == "ns" else array.type.unit  # the resolution of datetime
    zone = None if array.type.tz is None else "UTC"
    array = array.cast(pa.timestamp(unit, zone), safe=False)
    text = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")

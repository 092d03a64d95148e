"""Rows of Arrow tables as lines of JSON, so that Parquet shards are read like `.jsonl` shards.

`parquet` reads the rows; every later stage handles the lines like those of any other shard. Arrow's
own kernels assemble the text column by column: a page may have hundreds of html records, and
building them as Python objects first takes ten times as long.

A struct becomes an object, a list an array, a timestamp an ISO 8601 string (in UTC if it has a time
zone), a binary value a string, NaN null.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_SAFE = bytes(byte for byte in range(256) if byte >= 32 and chr(byte) not in '"\\')
"""Bytes that a JSON string need not escape (RFC 8259, section 7)."""


Parts = list[pa.Array | str]
"""What, joined, is the JSON of each element: arrays of strings without nulls, and constants."""


def json_lines(batch: pa.RecordBatch) -> Sequence[memoryview]:
    """The rows of a batch, each as a JSON object.

    Strings that are not UTF-8 are copied as they are; decoding the line reports them.
    """
    if not batch.num_columns:
        return [memoryview(b"{}")] * batch.num_rows
    text, ends = _content(_joined(_parts(batch.to_struct_array())))
    view = memoryview(text)
    spans = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return [view[begin:end] for begin, end in spans]


def _parts(array: pa.Array) -> Parts:
    """The JSON of each element."""
    kind = array.type
    if types.is_dictionary(kind):
        return _parts(array.dictionary_decode())
    if types.is_struct(kind) and kind.num_fields:
        parts = _objects(array)
    elif types.is_list(kind) or types.is_large_list(kind):
        parts = ["[", _lists(array), "]"]
    elif types.is_integer(kind) or types.is_boolean(kind):
        parts = [array.cast(pa.string())]
    elif types.is_timestamp(kind):
        parts = ['"', _iso(array), '"']
    elif types.is_string(kind):
        parts = ['"', _escaped(array), '"']
    elif types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        parts = ['"', _escaped(_strings(array)), '"']
    else:
        values = array.to_pylist(maps_as_pydicts="lossy")
        return [pa.array([_ENCODER.encode(value).decode() for value in values], pa.string())]
    return [pc.if_else(array.is_valid(), _joined(parts), "null")] if array.null_count else parts


def _joined(parts: Parts) -> pa.Array:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")


def _objects(array: pa.StructArray) -> Parts:
    parts: Parts = []
    constant = "{"  # joining is as expensive for a constant as for an array: neighbours are merged
    for field, values in zip(array.type, array.flatten(), strict=True):
        constant += f"{_ENCODER.encode(field.name).decode()}:"
        for part in _parts(values):
            if isinstance(part, str):
                constant += part
            else:
                parts += [constant, part]
                constant = ""
        constant += ","
    return [*parts, f"{constant[:-1]}}}"]


def _lists(array: pa.ListArray | pa.LargeListArray) -> pa.Array:
    """The elements of each list, separated by commas."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(ends, _joined(_parts(array.flatten()))), ",")


def _iso(array: pa.TimestampArray) -> pa.Array:
    """As `2019-04-25T12:57:54Z`; with a fraction of the second only if it is not 0."""
    unit = "us" if array.type.unit == "ns" else array.type.unit  # as Python's datetime
    zone = None if array.type.tz is None else "UTC"
    array = array.cast(pa.timestamp(unit, zone), safe=False)
    text = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")


def _strings(array: pa.Array) -> pa.Array:
    """Binary or large strings as strings, without a check that they are UTF-8."""
    if types.is_binary(array.type):
        return array.view(pa.string())
    return array.cast(pa.large_binary()).cast(pa.binary()).view(pa.string())


def _escaped(array: pa.StringArray) -> pa.Array:
    """The content of JSON strings: only the characters that occur in the array are replaced."""
    text, ends = _content(array)
    found = bytes(memoryview(text)[ends[0] : ends[-1]]).translate(None, _SAFE)
    for char in sorted(map(chr, set(found)), key="\\".__ne__):  # the backslash first
        escaped = _ENCODER.encode(char).decode()[1:-1]
        array = pc.replace_substring(array, char, escaped)
    return array


def _content(array: pa.StringArray) -> tuple[pa.Buffer, np.ndarray]:
    """The characters of all strings, and where each begins and the last one ends."""
    _, offsets, text = array.buffers()
    if not len(array):
        return pa.py_buffer(b""), np.zeros(1, np.int32)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return text if text is not None else pa.py_buffer(b""), ends

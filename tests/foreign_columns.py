"""Rows with columns of other people: names of the package's own columns with another content, and
values that JSON or Python do not have.

Each row is one in a real file, and has an address that ends in its key of the table.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SITE = "https://example.org/"
TEXT = "This is a plain English sentence which is long enough to be read."  # 65 characters

# A column of JSON: its name, and its value.
JSON_COLUMNS: dict[str, tuple[str, bytes]] = {
    "tags-strings": ("metadata_tags", b'["a", "b"]'),
    "tags-numbers": ("metadata_tags", b"[1, null, [2]]"),
    "tags-text": ("metadata_tags", b'"a"'),
    "tags-object": ("metadata_tags", b'{"a": [1]}'),
    "tags-no-value": ("metadata_tags", b'[{"type": "global", "key": "k"}]'),
    "tags-null-value": ("metadata_tags", b'[{"value": null, "type": "global"}]'),
    "tags-other-type": ("metadata_tags", b'[{"value": "a", "type": "page"}]'),
    "tags-range": ("metadata_tags", b"1e400"),
    "tags-nan": ("metadata_tags", b'[{"value": NaN, "type": "global"}]'),
    "html-text": ("metadata_html", b'"<b>"'),
    "html-no-offsets": ("metadata_html", b'[{"value": "b"}]'),
    "html-half-offsets": ("metadata_html", b'[{"value": "b", "char_start_idx": 1}]'),
    "html-null": ("metadata_html", b"[null]"),
    "html-negative": (
        "metadata_html",
        b'[{"value": "b", "char_start_idx": -9, "char_end_idx": -5}]',
    ),
    "html-beyond": (
        "metadata_html",
        b'[{"value": "b", "char_start_idx": 1, "char_end_idx": 9999}]',
    ),
    "html-huge": (
        "metadata_html",
        b'[{"value": "b", "char_start_idx": 1, "char_end_idx": 1' + b"0" * 30 + b"}]",
    ),
    "html-reversed": (
        "metadata_html",
        b'[{"value": "b", "char_start_idx": 5, "char_end_idx": 2}]',
    ),
    "html-words": (
        "metadata_html",
        b'[{"value": "b", "char_start_idx": "1", "char_end_idx": "2"}]',
    ),
    "entity-strings": ("metadata_entity", b'["Ada"]'),
    "entity-no-offsets": ("metadata_entity", b'[{"value": "Ada", "type": "local"}]'),
    "spans-list": ("content_spans", b"[1]"),
    "spans-text": ("content_spans", b'"fast"'),
    "spans-numbers": ("content_spans", b'{"trafilatura": 5}'),
    "spans-beyond": ("content_spans", b'{"trafilatura": [[0, 9999]]}'),
    "spans-reversed": ("content_spans", b'{"trafilatura": [[9, 3]]}'),
    "errors-list": ("annotation_errors", b'["a"]'),
    "titles-text": ("html_title", b'"<title>"'),
    "titles-numbers": ("html_title", b"[1]"),
    "range": ("f", b"1e400"),
    "range-in-list": ("f", b'{"a": [1, -1e999]}'),
    "digits": ("f", b"1" * 400),
    "many-digits": ("f", b"1" * 5000),
    "nan": ("f", b'{"a": {"b": [NaN, Infinity, -Infinity, "NaN"]}}'),
    "half": ("title", rb'"cut \ud83d"'),
    "other-half": ("title", rb'"\udc00 cut"'),
    "half-in-bytes": ("title", b'"cut \xed\xa0\xbd"'),
    "half-in-name": (r"\ud83d", b"1"),
    "depth": ("f", b"[" * 300 + b"]" * 300),
}

# A column of Parquet: its name, and an array with its only value.
PARQUET_COLUMNS: dict[str, tuple[str, pa.Array]] = {
    "tags-strings": ("metadata_tags", pa.array([["a", "b"]])),
    "tags-object": ("metadata_tags", pa.array([{"a": [1]}])),
    "tags-no-value": ("metadata_tags", pa.array([[{"type": "global"}]])),
    "html-text": ("metadata_html", pa.array(["<b>"])),
    "html-bytes": ("metadata_html", pa.array([b"<b>\xff"])),
    "html-no-offsets": ("metadata_html", pa.array([[{"value": "b"}]])),
    "spans-list": ("content_spans", pa.array([[1]])),
    "nan": ("f", pa.array([{"a": [float("nan"), float("-inf")]}])),
    "half": ("title", pa.array([b"cut \xed\xa0\xbd"]).view(pa.string())),
    "half-in-list": (
        "title",
        pa.ListArray.from_arrays([0, 1], pa.array([b"cut \xed\xa0\xbd"]).view(pa.string())),
    ),
    "nanoseconds": ("f", pa.array([1500], pa.duration("ns"))),
    "unknown-zone": ("f", pa.array([0], pa.timestamp("us", "Mars/Base"))),
    "map": ("f", pa.array([[(1, float("nan"))]], pa.map_(pa.int64(), pa.float64()))),
    "uuid": (
        "f",
        pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([uuid.UUID(int=7).bytes], pa.binary(16))
        ),
    ),
}


def write_json_lines(path: Path, keys: Iterable[str] = JSON_COLUMNS) -> Path:
    """Writes a `.jsonl.gz` or `.json.gz` file with a row for each key."""
    lines = []
    for key in keys:
        name, value = JSON_COLUMNS[key]
        lines.append(
            f'{{"text": "{TEXT} It is the row {key}.", "url": "{SITE}{key}", "{name}": '.encode()
            + value
            + b"}\n"
        )
    path.write_bytes(gzip.compress(b"".join(lines)))
    return path


def write_parquet(folder: Path) -> Path:
    """Writes a Parquet file of one row for each key, because each has other columns."""
    folder.mkdir()
    for key, (name, array) in PARQUET_COLUMNS.items():
        columns = {"text": [f"{TEXT} It is the row {key}."], "url": [SITE + key], name: array}
        pq.write_table(pa.table(columns), folder / f"{key}.parquet")
    return folder

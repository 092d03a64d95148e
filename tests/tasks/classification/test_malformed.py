"""Tables that cannot be used are refused with the file, the row and the reason."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from bsmeta.core.errors import UserError
from bsmeta.data.io.zstandard import zstd
from bsmeta.tasks.classification.config import ClassificationDataConfig
from bsmeta.tasks.classification.examples import open_examples
from tests.tasks.classification.helpers import bert_tokenizer, data_config

TOKENIZER = bert_tokenizer()
HEADER = b"text,label,speaker,part\n"
GOOD = b"".join(b"stop %d,left,a%d,train\nsigns %d,right,b%d,test\n" % (4 * (n,)) for n in range(9))
TABLE = HEADER + GOOD
NOISE = random.Random(0).randbytes(4000)
COMPRESSED = gzip.compress(HEADER + b"%b,left,a,train\n" * 9 % (9 * (NOISE.hex().encode(),)))


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"text": ["a"], "label": ["b"]}), sink)
    return sink.getvalue().to_pybytes()


def workbook(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "book.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return (folder / "book.xlsx").read_bytes()


MALFORMED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    # no CSV file
    "empty": (b"", {}, r"table.csv is empty; expected a CSV file with a header"),
    "only a mark": (b"\xef\xbb\xbf", {}, r"table.csv is empty"),
    "only line ends": (b"\n\r\n\n", {}, r"table.csv is empty"),
    "only a header": (b"text,label\n", {}, r"table.csv has a header and no rows$"),
    "binary": (NOISE, {}, r"table.csv is a binary file"),
    "Parquet": (parquet(), {}, r"table.csv is a Parquet file"),
    "old Excel": (b"\xd0\xcf\x11\xe0" + NOISE, {}, r"is an old Excel workbook \(save the sheet"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", {},
        r"is a Git LFS pointer \(fetch its content with git lfs pull\)",
    ),
    "empty ZIP": (b"PK\x05\x06" + bytes(18), {}, r"is an empty ZIP archive"),
    "PDF": (b"%PDF-1.7\n" + NOISE, {}, r"is a PDF file"),
    "HTML": (b"\n<!DOCTYPE html>\n<html>404, not found</html>", {}, r"is an HTML or XML page"),
    "XML": (b"<?xml version='1.0'?><a/>", {}, r"is an HTML or XML page"),
    "JSON lines": (b'{"text": "a", "label": "b"}\n', {}, r"begins like JSON"),
    "JSON": (b'[\n {"text": "a", "label": "b"}]', {}, r"begins like JSON"),
    "bzip2": (bz2.compress(TABLE), {}, r"is a bzip2 file \(only gzip is read\)"),
    "xz": (lzma.compress(TABLE), {}, r"is an xz file"),
    "Zstandard": (zstd.compress(TABLE), {}, r"is a Zstandard file"),
    # gzip
    "gzip of nothing": (gzip.compress(b""), {}, r"table.csv is empty"),
    "gzip of HTML": (gzip.compress(b"<html></html>"), {}, r"is an HTML or XML page"),
    "cut in the gzip header": (COMPRESSED[:5], {}, r"damaged gzip data"),
    "cut gzip": (COMPRESSED[:4000], {}, r"damaged gzip data"),
    "gzip with a wrong checksum": (COMPRESSED[:-8] + b"\0" * 8, {}, r"damaged gzip data"),
    # the header
    "no label column": (
        b"text,lable\na,b\n", {},
        r"no column 'label' \(did you mean lable\?\). The header, line 1, separated by a comma, "
        r"has: text, lable",
    ),
    "no header": (b"stop it,left\nsigns,right\n", {}, r"'text' .*; there is no column 'label'"),
    "duplicate column": (b"text,label,text\na,b,c\n", {}, r"column 'text' occurs 2 times"),
    "no group column": (TABLE, {"split_by": "speakers"}, r"'speakers' \(did you mean speaker\?\)"),
    "no split column": (TABLE, {"split_column": "fold"}, r"there is no column 'fold'"),
    "another separator": (TABLE, {"csv_separator": ";"}, r"no column 'text'.*by a semicolon"),
    "two separators": (TABLE, {"csv_separator": ",,"}, r'csv_separator=",,": expected auto, one'),
    # the rows
    "a row too long": (
        TABLE + b"a,b,left,c,d\n", {},
        r"1 bad row; .*data_config.on_bad_row=skip\n  row 19 \(line 20\): 5 columns, the header ha",
    ),
    "a row too short": (HEADER + b"a\n" + GOOD, {}, r"row 1 \(line 2\): 1 column, the header ha"),
    "no text": (TABLE + b" ,left,x,y\n", {}, r"row 19 \(line 20\): nothing in column 'text'"),
    "no label": (TABLE + b"stop,,x,y\n", {}, r"row 19 \(line 20\): nothing in column 'label'"),
    "no text, no label": (TABLE + b",,,\n", {}, r"nothing in column 'text' and 'label'"),
    "no group": (TABLE + b"a,left,,y\n", {"split_by": "speaker"}, r"nothing in column 'speaker'"),
    "NUL": (TABLE + b"a\0b,left,x,y\n", {}, r"row 19 \(line 20\): a NUL byte"),
    "unclosed quote": (
        TABLE + b'"stop,left,x,y\nsigns,right,x,y\n', {},
        r"row 19 \(line 20\): a quoted cell is not closed at the end of the file",
    ),
    "quote not doubled": (
        TABLE + b'"stop "the" signs",left,x,y\n', {},
        r"row 19 \(line 20\): a quote \(\"\) within a quoted cell is not doubled",
    ),
    "beyond all limits": (
        TABLE + b'"' + b"a" * 2**24, {}, r"row 19 .*: longer than 16,777,216 characters"
    ),
    "nothing but spaces to a tokenizer": (
        TABLE + "\u200b,left,x,y\n".encode(), {}, r"row 19 \(line 20\): no token in column 'text'"
    ),
    "a label of a page": (TABLE + b"a," + b"x" * 999 + b",x,y\n", {}, r"a label of more than 200"),
    "nothing left": (b"text,label\na\nb\n", {"on_bad_row": "skip"}, r"no rows, but 2 that were le"),
    # the encoding
    "not the declared encoding": (
        TABLE + b"caf\xe9,left,x,y\n", {"csv_encoding": "utf-8"},
        r"not text in csv_encoding=utf-8 \(.*correct the file, or declare its encoding",
    ),
    "an unknown encoding": (TABLE, {"csv_encoding": "utf8x"}, r"csv_encoding=utf8x: there is no"),
    "no text encoding": (TABLE, {"csv_encoding": "base64"}, r"csv_encoding=base64: there is no"),
    "cut UTF-16": (TABLE.decode().encode("utf-16")[:-1], {}, r"not text in csv_encoding=utf-16"),
    # labels and splits
    "one label": (HEADER + b"a,left,x,train\n" * 9, {}, r"all rows have the label 'left'"),
    "a rare label": (
        TABLE + b"a,rare,x,y\n", {},
        r"1 of 3 labels have fewer texts than there are splits \(3\): rare \(1\)",
    ),
    "a text column as labels": (TABLE, {"label_column": "text"}, r"18 of 18 labels .* and 8 more"),
    "few groups": (
        TABLE.replace(b",b1,", b",b0,"), {"split_by": "label"},
        r"2 of 2 labels have fewer groups than there are splits \(3\): left \(1\), right \(1\)",
    ),
    "no split of this name": (
        TABLE + b"a,left,x,trian\n", {"split_column": "part"},
        r"row 19 .*'trian' in column 'part'; expected .* \(did you mean train\?\)",
    ),
    "a label that is not trained": (
        TABLE, {"split_column": "part"}, r"'part' leaves no row for training with the label 'right'"
    ),
    "a divided group": (
        HEADER + b"a,left,x,train\nb,right,z,train\nc,left,x,test\n",
        {"split_column": "part", "split_by": "speaker"},
        r"divides a group .*: row 1 is in train, row 3 of the same group in test",
    ),
    "fractions": (TABLE, {"split_fractions": [0.5, 0.2]}, r"found \[0.5, 0.2\], expected"),
    "no training": (TABLE, {"split_fractions": [0, 0.5, 0.5]}, r"training \(above 0\)"),
    "too few rows to divide": (
        TABLE, {"split_fractions": [0.02, 0.49, 0.49]}, r"18 rows are too few to divide into"
    ),
}  # fmt: skip


def refused(path: Path, **more: Any) -> str:
    """The message about a table; nothing is left but the lock."""
    before = {*path.parent.iterdir()}
    with pytest.raises(UserError) as caught:
        open_examples(data_config(path, **more), TOKENIZER)
    assert {*path.parent.iterdir()} - before <= {path.with_name("table.sqlite.lock")}
    return str(caught.value)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_table_is_refused_with_its_row(name: str, tmp_path: Path) -> None:
    content, settings, reason = MALFORMED[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    message = refused(path, **settings)
    assert re.search(reason, message, re.DOTALL), message


def test_a_workbook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(workbook(tmp_path))
    assert "a ZIP archive or an Excel workbook" in refused(tmp_path / "table.csv")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").mkdir()
    assert refused(tmp_path / "table.csv").endswith("table.csv is a folder; expected a CSV file")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.csv")
    assert "table.csv is a pipe, a socket or a device; expected a file" in refused(
        tmp_path / "table.csv"
    )


def test_a_missing_file_is_refused_with_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "tables.csv").write_bytes(TABLE)
    message = refused(tmp_path / "table.csv")
    assert (
        "table.csv cannot be read: No such file or directory (did you mean tables.csv?)" in message
    )


def test_a_configuration_without_a_table_is_refused() -> None:
    with pytest.raises(UserError, match="data_config.csv is not set"):
        open_examples(ClassificationDataConfig(), TOKENIZER)


@pytest.mark.parametrize(
    "name",
    [
        "a row too long", "a row too short", "no text", "no label", "no text, no label", "NUL",
        "unclosed quote", "quote not doubled", "beyond all limits", "a label of a page",
        "nothing but spaces to a tokenizer",
    ],
)  # fmt: skip
def test_bad_rows_can_be_left_out(name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(MALFORMED[name][0])
    examples = open_examples(data_config(path, on_bad_row="skip"), TOKENIZER)
    assert examples.facts["skipped"] == 1
    rows = 18 + (name == "unclosed quote")  # the row after it is read by itself
    counts = [sum(examples.count_labels(one).values()) for one in ("train", "validation", "test")]
    assert sum(counts) == rows

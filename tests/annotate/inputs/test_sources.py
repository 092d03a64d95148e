"""Reading pages: every format, and what is wrong in a file is counted or named."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.stream_io import BrotliWriter
from fastwarc.warc import WarcRecord, WarcRecordType

from bsmeta.annotate.inputs.sources import (
    InputRecord,
    decode_line,
    decode_record,
    list_inputs,
    read_items,
)
from bsmeta.core.errors import DataError
from bsmeta.data.io.zstandard import zstd
from tests.annotate.helpers import warc_record
from tests.hostile import Ending, read_all

PAGE_BYTES = 100_000
HTML = b"<p>caf\xc3\xa9</p>"


def records(path: Path, skip: int = 0) -> list[InputRecord]:
    items = read_items(str(path), PAGE_BYTES, skip)
    return [decode_record(item, PAGE_BYTES) for item, _ in items]


def write_warc(path: Path, *responses: object, compressed: bool = True) -> Path:
    with path.open("wb") as file:
        for response in responses:
            content = io.BytesIO()
            response.write(content)  # type: ignore[attr-defined]
            data = content.getvalue()
            file.write(gzip.compress(data) if compressed else data)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst"])
def test_json_lines_of_any_compression_are_read(suffix: str, tmp_path: Path) -> None:
    lines = [
        {"url": "https://a.org/1", "timestamp": "2019-04-05", "html": "<p>1"},
        {"url": "https://a.org/2", "html": "<p>2", "crawl": {"id": 7}},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    compress = {".gz": gzip.compress, ".zst": zstd.compress}
    path = tmp_path / f"pages{suffix}"
    path.write_bytes(compress.get(path.suffix, bytes)(content))
    assert list_inputs(str(tmp_path)) == [(str(path), "pages")]
    first, second = records(path)
    assert first == InputRecord("https://a.org/1", "2019-04-05", "<p>1")
    assert (second.html, bytes(second.columns["crawl"])) == ("<p>2", b'{"id": 7}')
    assert records(path, skip=1) == [second]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not_json"),
        (b"[1]", "not_json"),
        (b'{"url": "\xff"}', "not_json"),
        (b'{"text": "a", "x": "\xff"}', "not_json"),
        (b'{"url": 7, "html": "a"}', "wrong_type"),
        (b'{"url": "a", "html": ["a"]}', "wrong_type"),
        (b'{"url": "a"}', "no_html"),
        (b'{"url": "a", "html": ""}', "no_html"),
        (b'{"url": "a", "html": "%s"}' % (b"x" * 100_001), "too_large"),
    ],
)
def test_unusable_lines_become_records_with_a_problem(line: bytes, problem: str) -> None:
    assert decode_record(line, PAGE_BYTES).problem == problem


def test_shards_keep_their_columns() -> None:
    line = b'{"text": "t", "url": "u", "c4_timestamp": "2019", "metadata_url": [{"value": "u"}]}'
    record = decode_line(line)
    assert (record.text, record.timestamp, record.html) == ("t", "2019", None)
    assert bytes(record.columns["metadata_url"]) == b'[{"value": "u"}]'


@pytest.mark.parametrize(
    ("time", "timestamp"),
    [("1556196000", "1556196000"), ("1556196000.5", "1556196000.5"), ("null", None)],
)
def test_a_timestamp_may_be_a_number(time: str, timestamp: str | None) -> None:
    record = decode_line(b'{"html": "a", "timestamp": %s}' % time.encode())
    assert (record.problem, record.html, record.timestamp) == ("", "a", timestamp)


def test_empty_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text('{"url": "a", "html": "b"}\n\n  \n{"url": "c", "html": "d"}')
    assert [record.problem for record in records(path)] == ["", "empty_line", "empty_line", ""]


@pytest.mark.parametrize("compressed", [True, False])
def test_responses_of_a_warc_file_are_read(compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.warc.gz" if compressed else "a.warc")
    write_warc(
        path,
        warc_record("https://a.org/1", HTML, "text/html; charset=utf-8"),
        warc_record("https://a.org/2", b"caf\xe9", "text/html; charset=latin-1"),
        warc_record("https://a.org/3", HTML),
        compressed=compressed,
    )
    input_records = records(path)
    assert [record.url for record in input_records] == [
        f"https://a.org/{number}" for number in (1, 2, 3)
    ]
    assert [record.html for record in input_records] == ["<p>café</p>", "café", "<p>café</p>"]
    assert input_records[0].timestamp == "2019-04-05T06:07:08Z"
    assert records(path, skip=2) == input_records[2:]


def test_plain_text_of_common_crawl_is_read(tmp_path: Path) -> None:
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.conversion)
    record.headers["WARC-Target-URI"] = "https://a.org/1"
    record.set_bytes_content("café".encode())
    path = write_warc(tmp_path / "CC-MAIN-00000.warc.wet.gz", record)
    assert list_inputs(str(tmp_path)) == [(str(path), "CC-MAIN-00000")]
    assert [(record.url, record.text) for record in records(path)] == [("https://a.org/1", "café")]


def brotli(content: bytes) -> bytes:
    output = io.BytesIO()
    writer = BrotliWriter(output)
    writer.write(content)
    writer.close()
    return output.getvalue()


def test_encoded_responses_are_decoded_up_to_a_limit(tmp_path: Path) -> None:
    bomb = b"<p>" + b"0" * 50_000_000
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HTML), HTML)
    path = write_warc(
        tmp_path / "a.warc.gz",
        warc_record("https://a.org/1", gzip.compress(HTML), Content_Encoding="gzip"),
        warc_record("https://a.org/2", brotli(HTML), Content_Encoding="br"),
        warc_record("https://a.org/3", chunked, Transfer_Encoding="chunked"),
        warc_record("https://a.org/4", gzip.compress(bomb), Content_Encoding="gzip"),
        warc_record("https://a.org/5", brotli(bomb), Content_Encoding="br"),
        warc_record("https://a.org/6", bomb),  # a bomb of the WARC's own compression
        warc_record("https://a.org/7", bytes(range(99)), Content_Encoding="gzip"),
        warc_record("https://a.org/8", bytes(range(99)), Content_Encoding="compress"),
        warc_record("https://a.org/9", HTML),
    )
    input_records = records(path)
    assert [record.html for record in input_records if record.html] == ["<p>café</p>"] * 4
    assert [record.problem for record in input_records] == [
        "", "", "", "too_large", "too_large", "too_large", "content_encoding", "content_encoding",
        "",
    ]  # fmt: skip


def test_responses_that_are_not_pages_are_counted(tmp_path: Path) -> None:
    path = write_warc(
        tmp_path / "a.warc",
        warc_record("https://a.org/1", HTML, status="404 Not Found"),
        warc_record("https://a.org/2", b"\x89PNG", "image/png"),
        warc_record("https://a.org/3", HTML),
        compressed=False,
    )
    assert [record.problem for record in records(path)] == ["http_status", "content_type", ""]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("size", "problem"), [(40_000, ""), (2_000_000, ""), (17_000_000, "header_too_large")]
)
@pytest.mark.parametrize("lines", [1, 500])
def test_a_long_http_header_loses_no_other_page(
    lines: int, size: int, problem: str, compressed: bool, tmp_path: Path
) -> None:
    long = {f"X_{number}": "a" * (size // lines) for number in range(lines)}
    path = write_warc(
        tmp_path / ("a.warc.gz" if compressed else "a.warc"),
        warc_record("https://a.org/1", HTML),
        warc_record("https://a.org/2", HTML, **long),
        warc_record("https://a.org/3", HTML),
        compressed=compressed,
    )
    page = "" if problem else "<p>café</p>"
    assert [(record.url, record.html or "", record.problem) for record in records(path)] == [
        ("https://a.org/1", "<p>café</p>", ""),
        ("https://a.org/2", page, problem),
        ("https://a.org/3", "<p>café</p>", ""),
    ]
    assert len(records(path, skip=2)) == 1


def test_a_long_header_of_a_warc_record_loses_no_other_page(tmp_path: Path) -> None:
    record = warc_record("https://a.org/1", HTML)
    record.headers["WARC-Concurrent-To"] = "a" * 40_000
    path = write_warc(tmp_path / "a.warc.gz", record, warc_record("https://a.org/2", HTML))
    assert [record.problem for record in records(path)] == ["", ""]


def test_rows_of_parquet_are_read(tmp_path: Path) -> None:
    rows = [{"url": f"https://a.org/{n}", "html": f"<p>{n}", "quality": n / 2} for n in range(150)]
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=40)
    input_records = records(path)
    assert [(record.url, record.html, record.columns["quality"]) for record in input_records] == [
        (row["url"], row["html"], row["quality"]) for row in rows
    ]
    assert records(path, skip=95) == input_records[95:]


def test_rows_of_parquet_that_json_lacks_are_counted(tmp_path: Path) -> None:
    raw = pa.array([b"<p>a", b"caf\xe9", b"<p>b", b"<p>c"]).view(pa.string())
    days = pa.array([0, 1, 3_000_000, 2], pa.date32())  # the third is after the year 9999
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"html": raw, "day": days}), path)
    assert [(record.html, record.problem) for record in records(path)] == [
        ("<p>a", ""), (None, "not_json"), (None, "not_json"), ("<p>c", ""),
    ]  # fmt: skip
    assert [record.html for record in records(path, skip=3)] == ["<p>c"]


def test_a_row_of_parquet_with_lists_that_expand_is_counted(tmp_path: Path) -> None:
    lists = [["a"], ["x" * 1_000_000] * 100, ["b", None]]
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"html": ["<p>1", "<p>2", "<p>3"], "list": lists}), path)
    input_records = records(path)
    assert [record.problem for record in input_records] == ["", "too_large", ""]
    assert [record.columns["list"] for record in input_records[::2]] == [["a"], ["b", None]]


@pytest.mark.parametrize("groups", [[0], [0, 2], [2, 0, 3]])
def test_empty_row_groups_of_parquet_are_read(groups: list[int], tmp_path: Path) -> None:
    path = tmp_path / "pages.parquet"
    rows = [{"html": f"<p>{number}"} for number in range(sum(groups))]
    schema = pa.schema({"html": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for end, count in zip(itertools.accumulate(groups), groups, strict=True):
            writer.write_table(pa.Table.from_pylist(rows[end - count : end], schema))
    assert [record.html for record in records(path)] == [row["html"] for row in rows]


def read(path: Path) -> None:
    for item, _ in read_items(str(path), 8_000_000):
        decode_record(item, 8_000_000)


def parquet(**columns: object) -> bytes:
    output = io.BytesIO()
    pq.write_table(pa.table(columns), output, compression="zstd")
    return output.getvalue()


@pytest.mark.long
def test_memory_is_limited_before_parquet_is_decoded() -> None:
    repeated = parquet(html=["x" * 4_750_000] * 64)
    expanded = parquet(html=["x" * 300_000_000])
    assert len(repeated) < 1200
    outcomes = [*read_all(read, [repeated, expanded], intact=parquet(html=["a"]), name="a.parquet")]
    assert [outcome.ending for outcome in outcomes] == [Ending.OK, Ending.REFUSED], outcomes
    assert "a.parquet: damaged after 0 records (" in outcomes[1].detail
    assert "would become 300,000,004, most of them in html; " in outcomes[1].detail


def test_nanoseconds_in_parquet_are_truncated(tmp_path: Path) -> None:
    time = pa.timestamp("ns", "UTC")
    kinds = {"at": time, "took": pa.duration("ns"), "more": pa.struct({"seen": pa.list_(time)})}
    row = {"html": "a", "at": 1_556_197_074_123_456_789, "took": 1_000_000_999}
    row["more"] = {"seen": [1_556_197_074_000_000_000]}
    schema = pa.schema({"html": pa.string(), **kinds})
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema), path)
    (record,) = records(path)
    assert msgspec.json.encode(record.columns) == (
        b'{"at":"2019-04-25T12:57:54.123456Z","took":"PT1S",'
        b'"more":{"seen":["2019-04-25T12:57:54Z"]}}'
    )


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet"])
def test_a_damaged_file_is_named_after_its_readable_pages(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"pages{suffix}"
    pages = [{"url": f"https://a.org/{n}", "html": f"<p>{n}"} for n in range(2000)]
    if suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(page) + "\n" for page in pages).encode()))
    else:
        pq.write_table(pa.Table.from_pylist(pages), path, row_group_size=100)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    path.write_bytes(content if suffix != ".jsonl.gz" else content[:middle])
    with pytest.raises(DataError, match=rf"{path.name}: damaged after [\d,]+ records"):
        records(path)


def damaged_warc(path: Path) -> Path:
    """Writes three pages, the second damaged, and a truncated member."""
    members = [
        write_warc(path, warc_record(f"https://a.org/{n}", HTML)).read_bytes() for n in "1234"
    ]
    second = bytearray(members[1])
    second[40:60] = bytes(20)
    path.write_bytes(members[0] + second + members[2] + members[3][:-20])
    return path


def test_damaged_records_are_refused_skipped_or_salvaged(tmp_path: Path) -> None:
    path = damaged_warc(tmp_path / "a.warc.gz")

    def read(on_bad_record: str) -> Iterator[InputRecord]:
        for item, _ in read_items(str(path), PAGE_BYTES, on_bad_record=on_bad_record):
            assert isinstance(item, InputRecord)
            yield item

    refused = read("refuse")
    assert next(refused).url == "https://a.org/1"
    with pytest.raises(DataError, match=r"damaged after 1 record \(byte \d+: a gzip member cannot"):
        next(refused)

    skipped = read("skip")
    assert [next(skipped).problem for _ in range(3)] == ["", "bad_record", ""]
    with pytest.raises(DataError, match="damaged after 3 records .*within a gzip member"):
        next(skipped)

    salvaged = list(read("salvage"))
    assert [item.problem for item in salvaged] == ["", "bad_record", "", "bad_record"]
    assert salvaged[1].url.startswith("byte ")


def test_pages_without_http_are_read_and_other_records_counted(tmp_path: Path) -> None:
    def write(record_type: WarcRecordType, content_type: str) -> WarcRecord:
        record = warc_record("https://a.org/1", b"")
        record.record_type = record_type
        record.headers["Content-Type"] = content_type
        record.set_bytes_content(b"caf\xe9")
        return record

    path = write_warc(
        tmp_path / "a.warc.gz",
        write(WarcRecordType.resource, "text/html; charset=latin-1"),
        write(WarcRecordType.resource, "image/png"),
        write(WarcRecordType.revisit, "application/http"),
        write(WarcRecordType.metadata, "text/html"),
    )
    others: Counter[str] = Counter()
    (item,) = [item for item, _ in read_items(str(path), PAGE_BYTES, others=others)]
    assert decode_record(item, PAGE_BYTES).html == "café"
    assert others == {"resource": 1, "revisit": 1, "metadata": 1}


@pytest.mark.parametrize("suffix", [".warc.gz", ".warc"])
@pytest.mark.parametrize("kept", [2, 100, -12])  # bytes of the third record, or missing ones
def test_a_truncated_warc_file_is_damaged(kept: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    pages = [warc_record(f"https://a.org/{n}", HTML) for n in range(3)]
    whole, cut = (
        write_warc(path, *part, compressed=suffix == ".warc.gz").read_bytes()
        for part in (pages[:2], pages[2:])
    )
    path.write_bytes(whole + cut[:kept])
    items = read_items(str(path), PAGE_BYTES)
    assert [decode_record(next(items)[0], PAGE_BYTES).url for _ in range(2)] == [
        "https://a.org/0", "https://a.org/1",
    ]  # fmt: skip
    with pytest.raises(DataError, match=rf"a{suffix}: damaged after [23] records"):
        list(items)


@pytest.mark.parametrize("suffix", [".warc.gz", ".warc"])
def test_a_warc_file_may_end_with_a_line_end_or_be_empty(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    write_warc(path, warc_record("https://a.org/", HTML), compressed=suffix == ".warc.gz")
    with path.open("ab") as file:
        file.write(b"\n")
    assert len(records(path)) == 1
    path.write_bytes(b"")
    assert records(path) == []


def test_a_warc_file_compressed_as_a_whole_is_read_and_noted(tmp_path: Path) -> None:
    pages = [warc_record(f"https://a.org/{n}", bytes(50_000)) for n in range(9)]
    path = write_warc(tmp_path / "a.warc", *pages, compressed=False)
    whole = gzip.compress(path.read_bytes())
    path = tmp_path / "a.warc.gz"
    path.write_bytes(whole)
    assert len(records(path)) == 9
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="damaged after 9 records"):
        records(path)

"""WARC files of other writers, whole and damaged; warcio is the peer."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from bsmeta.annotate.inputs.http_response import parse_response
from bsmeta.annotate.inputs.warc import MEMBER_CUT_OFF, RECORD_CUT_OFF, Damage, Record, read_records

LIMIT = 1_000_000


def read(data: bytes, limit: int = LIMIT) -> list[Record | Damage]:
    return list(read_records(io.BytesIO(data), limit))


def contents(data: bytes) -> list[bytes | str]:
    """Returns the contents of records, and the reasons of damage."""
    return [item.content if isinstance(item, Record) else item.reason for item in read(data)]


def make_record(
    content: bytes,
    *,
    version: str = "WARC/1.0",
    end: bytes = b"\r\n",
    length: int | str | None = "right",
    fields: Sequence[str] = ("WARC-Type: resource",),
) -> bytes:
    length_fields = {None: [], "right": [f"Content-Length: {len(content)}"]}
    lines = [version, *fields, *length_fields.get(length, [f"Content-Length: {length}"])]
    return end.join([*(line.encode() for line in lines), b"", content, b"", b""])


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("version", ["WARC/0.17", "WARC/0.18", "WARC/1.0", "WARC/1.1"])
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_any_version_and_line_ending_is_read(
    end: bytes, version: str, compress: Callable[[bytes], bytes]
) -> None:
    records = [make_record(content, version=version, end=end) for content in (b"one", b"", b"two")]
    assert contents(b"".join(map(compress, records))) == [b"one", b"", b"two"]
    assert contents(compress(b"".join(records))) == [b"one", b"", b"two"]


def test_gzip_blocks_may_end_inside_records() -> None:
    data = b"".join(make_record(b"%d" % number * 100) for number in range(9))
    blocks = [gzip.compress(data[start : start + 50]) for start in range(0, len(data), 50)]
    assert contents(b"".join(blocks)) == [b"%d" % number * 100 for number in range(9)]


def test_the_fields_of_a_record_are_parsed() -> None:
    fields = ["WARC-TYPE:Response ", "WARC-Target-URI: https://a.org/", "WARC-Type: other"]
    fields += ["Folded: one", "\ttwo", "no field"]
    (record,) = read(make_record(b"a", fields=fields))
    assert isinstance(record, Record)
    assert (record.type, record.content, record.offset) == ("response", b"a", 0)
    assert record.parse_header() == {
        "warc-type": "Response",
        "warc-target-uri": "https://a.org/",
        "folded": "one two",
        "content-length": "1",
    }


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("length", [0, 2, 7, 500, 10**17, None, "x", "-1"])
def test_a_wrong_length_loses_no_other_record(
    length: int | str | None, compress: Callable[[bytes], bytes]
) -> None:
    contents_written = [b"first", b"wrong\n\nb", b"third"]
    records = [
        make_record(content, length=length if number == 1 else "right")
        for number, content in enumerate(contents_written)
    ]
    assert contents(b"".join(map(compress, records))) == contents_written


def test_a_last_record_without_its_end_is_truncated() -> None:
    whole = make_record(b"first") + make_record(b"second")
    for missing in range(5, len(make_record(b"second"))):
        read_contents = contents(whole[:-missing])
        assert read_contents == [b"first", RECORD_CUT_OFF], missing
    assert contents(whole[:-4]) == [b"first", b"second"]


def test_a_last_member_without_its_end_is_truncated() -> None:
    last = gzip.compress(make_record(b"second"))
    for missing in range(1, len(last)):
        data = gzip.compress(make_record(b"first")) + last[:-missing]
        assert contents(data) in (
            [b"first", MEMBER_CUT_OFF],
            [b"first", b"second", MEMBER_CUT_OFF],
        ), missing


@pytest.mark.parametrize("position", [12, 60, -6])  # in the data, and in the checksum
def test_a_damaged_member_loses_only_its_record(position: int) -> None:
    members = [gzip.compress(make_record(b"%d" % n * 200)) for n in range(4)]
    damaged = bytearray(members[2])
    damaged[position] ^= 0xFF
    data = b"".join([*members[:2], damaged, members[3]])
    items = read(data)
    damage = items[2]
    assert isinstance(damage, Damage)
    assert damage.offset == len(members[0]) + len(members[1])
    assert damage.reason.startswith("a gzip member cannot be decompressed")
    assert not damage.is_cut_off
    assert [item.content[:1] for item in items if isinstance(item, Record)] == [b"0", b"1", b"3"]


def test_records_before_damage_are_read_from_a_file_compressed_as_a_whole() -> None:
    content = bytes(range(256)) * 40
    data = bytearray(gzip.compress(b"".join(make_record(content) for _ in range(200)), 1))
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    items = read(bytes(data))
    assert 80 < len(items) < 120
    assert all(isinstance(item, Record) and item.content == content for item in items[:-1])
    assert isinstance(items[-1], Damage)


@pytest.mark.parametrize("padding", [b"\0" * 512, b"\r\n", b"\n\n\0"])
def test_padding_is_not_damage(padding: bytes) -> None:
    member = gzip.compress(make_record(b"a"))
    assert contents(member + padding + member + padding) == [b"a", b"a"]


def test_garbage_between_members_and_records_loses_no_record() -> None:
    member = gzip.compress(make_record(b"a"))
    assert contents(member + b"garbage\x1f\x8b\x08!" + member + b"more") == [
        b"a",
        "no gzip member begins there",
        b"a",
        "no gzip member begins there",
    ]
    record = make_record(b"a")
    assert contents(b"garbage\r\n" + record) == ["no record begins there", b"a"]


def test_a_header_without_an_end_loses_no_other_record() -> None:
    header = b"WARC/1.0\r\nWARC-Type: resource\r\nWARC/1.0 follows\r\n"
    data = header + make_record(b"a")
    assert contents(data) == [b"a"] or contents(data) == ["the header of a record has no end", b"a"]
    member = gzip.compress(header)
    assert contents(member + gzip.compress(make_record(b"a"))) == [
        "the header of a record has no end",
        b"a",
    ]


def test_content_beyond_the_limit_is_skipped() -> None:
    data = make_record(b"a" * 5000) + make_record(b"b")
    assert [len(item.content) for item in read(data, limit=100)] == [101, 1]  # type: ignore[union-attr]


def test_a_record_larger_than_the_buffer_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsmeta.annotate.inputs.warc.MAX_BUFFERED_BYTES", 1000)
    large = make_record(b"a" * 3_000_000)
    for compress in (bytes, gzip.compress):
        data = compress(large) + compress(make_record(b"b"))
        assert [len(content) for content in contents(data)] == [LIMIT + 1, 1]
    wrong = gzip.compress(make_record(b"a" * 5000, length=10**9))
    assert contents(wrong + gzip.compress(make_record(b"b")))[-1] == b"b"


def test_an_empty_file_has_no_records() -> None:
    assert read(b"") == []
    assert read(gzip.compress(b"")) == []


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=60)
BODIES = TEXT.map(str.encode) | st.sampled_from(
    [b"<p>text</p>" * 40, b"<p>\r\n\r\nWARC/1.0 is a format</p>", b"5\r\nhello\r\n", b"<p>\n\n</p>"]
)


@dataclass(frozen=True)
class Page:
    """A response to write."""

    body: bytes
    coding: str
    is_coded: bool  # or only announced
    is_chunked: str  # `no`, `yes`, or `announced`

    def response(self) -> bytes:
        encode: dict[str, Callable[[bytes], bytes]] = {
            "gzip": gzip.compress,
            "deflate": zlib.compress,
            "br": brotli.compress,
        }
        body = encode.get(self.coding, bytes)(self.body) if self.is_coded else self.body
        fields = [b"HTTP/1.1 200 OK", b"Content-Type: text/html"]
        if self.coding:
            fields.append(b"Content-Encoding: " + self.coding.encode())
        if self.is_chunked != "no":
            fields.append(b"Transfer-Encoding: chunked")
        if self.is_chunked == "yes":
            half = len(body) // 2
            parts = [part for part in (body[:half], body[half:]) if part]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return b"\r\n".join([*fields, b"", body])


PAGES = st.builds(
    Page,
    BODIES.map(lambda body: b"<html>" + body),
    st.sampled_from(["", "", "gzip", "deflate", "br", "utf-8", "none"]),
    st.booleans(),
    st.sampled_from(["no", "no", "yes", "announced"]),
)
DAMAGES = ("none", "none", "length", "flip", "padding", "garbage", "cut")


@dataclass(frozen=True)
class Archive:
    """A file, and the pages written to it, by address."""

    data: bytes
    pages: dict[str, bytes]


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    """Draws an archive in the style of a writer, perhaps damaged at one position."""
    end = draw(st.sampled_from([b"\r\n", b"\n"]))
    version = draw(st.sampled_from(["WARC/0.18", "WARC/1.0", "WARC/1.1"]))
    damage = draw(st.sampled_from(DAMAGES))
    form = draw(st.sampled_from(["plain", "members", "whole"]))
    pages = draw(st.lists(PAGES, min_size=1, max_size=5))
    bad = draw(st.integers(0, len(pages) - 1))

    members: list[bytes] = []
    for number, page in enumerate(pages):
        content = page.response()
        length: int | str = "right"
        if damage == "length" and number == bad:
            length = max(len(content) + draw(st.integers(-20, 200)), 0)
        fields = ["WARC-Type: response", f"WARC-Target-URI: https://a.org/{number}"]
        fields += ["WARC-Date: 2024-01-01T00:00:00Z", "Content-Type: application/http"]
        record = make_record(content, version=version, end=end, length=length, fields=fields)
        member = gzip.compress(record, mtime=0) if form == "members" else record
        if number == bad and damage in ("padding", "garbage"):
            member += bytes(64) if damage == "padding" and form == "members" else b"\r\n"
            member += b"garbage\r\n" if damage == "garbage" else b""
        if number == bad and damage == "flip" and form == "members":
            flipped = bytearray(member)
            flipped[draw(st.integers(10, len(member) - 1))] ^= 1 << draw(st.integers(0, 7))
            member = bytes(flipped)
        members.append(member)

    data = b"".join(members)
    data = gzip.compress(data, mtime=0) if form == "whole" else data
    data = data[: -draw(st.integers(1, 40))] if damage == "cut" else data
    bodies = {f"https://a.org/{number}": page.body for number, page in enumerate(pages)}
    return Archive(data, bodies)


def pages_by_warcio(data: bytes) -> dict[str, bytes]:
    """Returns the pages that warcio reads before an error, by address."""
    pages: dict[str, bytes] = {}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
        for record in ArchiveIterator(io.BytesIO(data)):
            headers = record.http_headers
            if record.rec_type == "response" and headers and headers.get_statuscode() == "200":
                url = record.rec_headers.get_header("WARC-Target-URI")
                pages[url] = record.content_stream().read()
    return pages


def pages_by_us(data: bytes) -> dict[str, bytes]:
    pages: dict[str, bytes] = {}
    for item in read(data):
        if isinstance(item, Record) and item.type == "response":
            response = parse_response(item.content, LIMIT)
            if not response.problem:
                pages[item.parse_header()["warc-target-uri"]] = response.body
    return pages


@settings(max_examples=150)
@given(archives())
def test_every_page_that_warcio_reads_intact_is_read(archive: Archive) -> None:
    ours = pages_by_us(archive.data)
    intact = {
        url: body
        for url, body in pages_by_warcio(archive.data).items()
        if body == archive.pages[url]
    }
    if any(isinstance(item, Damage) and item.is_cut_off for item in read(archive.data)):
        # A record that is cut off is damaged, even if only its checksum or white space is missing.
        intact.pop([*archive.pages][-1], None)
    assert intact.items() <= ours.items()

"""HTTP responses as crawlers store them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest

from bsmeta.annotate.inputs.http_response import (
    Response,
    decode_content,
    find_charset,
    is_html,
    join_chunks,
    parse_response,
)
from bsmeta.data.io.zstandard import zstd

HTML = b"<p>caf\xc3\xa9</p>" * 20


def bare_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


CODINGS = [
    ("gzip", gzip.compress),
    ("X-GZIP", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare_deflate),
    ("br", brotli.compress),
    ("zstd", zstd.compress),
]


@pytest.mark.parametrize(("name", "encode"), CODINGS)
def test_a_body_is_decoded_if_it_has_the_announced_coding(
    name: str, encode: Callable[[bytes], bytes]
) -> None:
    assert decode_content(encode(HTML), name, 1000) == HTML
    assert decode_content(HTML, name, 1000) == HTML
    assert decode_content(b"a", name, 1000) == b"a"
    assert decode_content(encode(HTML), f"utf-8, {name}", 1000) == HTML


@pytest.mark.parametrize(("name", "encode"), CODINGS)
def test_a_decoded_body_is_bounded(name: str, encode: Callable[[bytes], bytes]) -> None:
    assert decode_content(encode(b"a" * 50_000_000), name, 1000) == b"a" * 1001


@pytest.mark.parametrize(("name", "encode"), CODINGS)
def test_content_is_decoded_up_to_a_missing_end(
    name: str, encode: Callable[[bytes], bytes]
) -> None:
    text = b" ".join(b"%d" % (number * number) for number in range(20_000))
    decoded = decode_content(encode(text)[:-1000], name, 1_000_000)
    assert decoded is not None
    assert text.startswith(decoded)
    assert len(decoded) > len(text) // 2


def test_several_codings_are_decoded_in_order() -> None:
    assert decode_content(brotli.compress(gzip.compress(HTML)), "gzip, br", 1000) == HTML


@pytest.mark.parametrize("name", ["", "identity", "none", "utf-8", "compress"])
def test_unknown_codings_have_no_effect(name: str) -> None:
    assert decode_content(HTML, name, 1000) == HTML


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd", "compress"])
def test_binary_data_that_cannot_be_decoded_is_refused(name: str) -> None:
    assert decode_content(bytes(range(256)) * 4, name, 1000) is None


@pytest.mark.parametrize(
    ("body", "joined"),
    [
        (b"3\r\nabc\r\n2;name=value\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"3\nabc\n0\n\n", b"abc"),
        (b"3\r\nabc\r\n5\r\nde", b"abcde"),  # cut off
        (b"3\r\nabc\r\nno chunk", b"abc"),
        (b"0\r\n\r\n", b""),
        (b"<html>", b"<html>"),
        (b"3\r\nis no length of a chunk", b"3\r\nis no length of a chunk"),
    ],
)
def test_a_chunked_body_is_joined(body: bytes, joined: bytes) -> None:
    assert join_chunks(body) == joined


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("text/html", True),
        ("Text/HTML; charset=utf-8", True),
        ("text/html,text/html", True),
        ("application/xhtml+xml", True),
        ("", True),
        ("image/png", False),
        ("text/plain, text/html", False),
    ],
)
def test_content_types_of_pages_are_recognized(content_type: str, expected: bool) -> None:
    assert is_html(content_type) is expected


@pytest.mark.parametrize(
    "content_type",
    ["text/html; charset=Latin-1", "text/html;charset = 'Latin-1'", 'a; CHARSET="Latin-1";b=c'],
)
def test_the_charset_is_read_from_the_content_type(content_type: str) -> None:
    assert find_charset(content_type) == "Latin-1"
    assert find_charset("text/html") is None


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "http_status"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n", "content_type"),
        (b"200 OK\r\n\r\n", "not_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html", "not_http"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 101, "too_large"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\0\1\2\3\4\5\6",
            "content_encoding",
        ),
    ],
)
def test_responses_without_a_page_are_refused_with_a_reason(response: bytes, problem: str) -> None:
    assert parse_response(response, 100) == Response(problem)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("status", [b"HTTP/1.0 200 OK", b"HTTP/2 200"])
def test_a_response_with_a_page_is_parsed(status: bytes, end: bytes) -> None:
    header = [status, b"content-type: text/html; charset=latin-1", b"", b"<p>"]
    assert parse_response(end.join(header), 100) == Response(body=b"<p>", charset="latin-1")

"""Pages that come as bytes are decoded as their authors meant, whatever they declare."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bsmeta.annotate.page import decode_html, parse_page

GERMAN = "<p>Grüße aus Köln, schöne Straße, viele Bäume. " * 5
RUSSIAN = "<p>Привет, мир! Это русский текст о погоде. " * 5
JAPANESE = "<p>これは日本語のテキストです。①番目の文章。" * 5


@pytest.mark.parametrize(
    ("html", "encoding", "http_charset"),
    [
        (GERMAN, "utf-8", None),
        (GERMAN, "cp1252", None),
        (GERMAN, "cp1252", "utf-8"),
        (GERMAN, "utf-8", "iso-8859-1"),
        (f"<meta charset=utf-8>{GERMAN}", "cp1252", None),
        (f"<meta charset='latin1'>{GERMAN}", "utf-8", None),
        (f"<META content='text/html; charset=koi8-r'>{RUSSIAN}", "koi8-r", ""),
        (RUSSIAN, "cp1251", "windows-1251"),
        (RUSSIAN, "cp1251", None),
        (f"<meta charset=x-unknown>{RUSSIAN}", "cp1251", "no such charset"),
        (f"<meta charset=Shift_JIS>{JAPANESE}", "cp932", None),
        (JAPANESE, "iso2022_jp_2004", "iso-2022-jp-2004"),
        (GERMAN, "utf-16-le", None),
        (GERMAN, "utf-16-be", "utf-16"),
        (f"<meta charset=utf-16>{GERMAN}", "utf-8", None),
    ],
)  # fmt: skip
def test_charset(html: str, encoding: str, http_charset: str | None) -> None:
    if encoding == "iso2022_jp_2004":
        html, encoding = html.replace("①", ""), "iso2022_jp"
    assert decode_html(html.encode(encoding), http_charset) == html


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_a_byte_order_mark_wins(mark: bytes, encoding: str) -> None:
    html = f"<meta charset=koi8-r>{GERMAN}"
    assert decode_html(mark + html.encode(encoding), "windows-1251") == html


@given(st.text())
def test_valid_utf8_is_read_whatever_is_declared(text: str) -> None:
    assume("\x1b" not in text)  # may be ISO-2022
    assume(not text.startswith(("\ufeff", "<\0", "\0<")))  # a mark, or UTF-16
    assert decode_html(text.encode(), "windows-1251") == text


@pytest.mark.parametrize(
    ("junk", "expected"),
    [
        (b"\xff", "ÿ"),  # as Windows-1252, which the detector takes for it
        (b"\x80" * 100, "€" * 100),
        ("ü".encode() + b"\xff", "ü\ufffd"),
        (bytes(range(256)) * 4, bytes(range(256)).decode("utf-8", "replace") * 4),
    ],
)
def test_invalid_bytes_are_replaced_in_the_detected_encoding(junk: bytes, expected: str) -> None:
    assert decode_html(junk, "utf-8") == expected


def test_a_page_of_bytes_is_parsed() -> None:
    page = parse_page(f"<title>Köln</title>{GERMAN}".encode("cp1252"), profile="all")
    assert page.title == "Köln"
    assert page.text.splitlines()[0] == "Grüße aus Köln, schöne Straße, viele Bäume."

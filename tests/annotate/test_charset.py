"""Pages that come as bytes are decoded as their authors meant, whatever they declare."""

from __future__ import annotations

import codecs

import pytest

from bsmeta.annotate.charset import decode_html
from bsmeta.annotate.page import parse_page

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


@pytest.mark.parametrize("junk", [b"", b"\xff", b"\x80" * 100, bytes(range(256)) * 4, b"\0" * 10])
def test_any_bytes_are_decoded(junk: bytes) -> None:
    decode_html(junk, "utf-8").encode()


def test_a_page_of_bytes_is_parsed() -> None:
    page = parse_page(f"<title>Köln</title>{GERMAN}".encode("cp1252"), profile="all")
    assert page.title == "Köln"
    assert page.text.splitlines()[0] == "Grüße aus Köln, schöne Straße, viele Bäume."

"""The encoding of a page that comes as bytes."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Iterator

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(rb"""<meta[^>]{0,1000}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_META_BYTES = 4096  # a browser reads the first 1,024
_DETECTOR_BYTES = 1 << 17
_SUPERSETS = {"shift_jis": "cp932", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs"}
_ESCAPE = b"\x1b"  # begins the sequences of ISO-2022, which is ASCII and thus UTF-8 otherwise


def decode_html(html: bytes, http_charset: str | None = None) -> str:
    """Decodes a page.

    In order: a byte order mark; UTF-8, if the page is valid UTF-8, whatever it says; the charset of
    the HTTP header; that of a `<meta>`; what resiliparse's detector finds. A charset with which the
    page cannot be decoded is passed over; at the end, invalid bytes become U+FFFD.
    """
    for mark, encoding in _MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")
    for encoding in _candidates(html, http_charset):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return html.decode(encoding)
    found = detect_encoding(html, _DETECTOR_BYTES) or "utf-8"
    return html.decode(_SUPERSETS.get(found, found), "replace")


def _candidates(html: bytes, http_charset: str | None) -> Iterator[str]:
    """The encodings to try strictly."""
    sixteen_bits = _sixteen_bits(html)
    if sixteen_bits is not None:
        yield sixteen_bits
    if _ESCAPE not in html:
        yield "utf-8"
    declared = _META.search(html, 0, _META_BYTES)
    for label in (http_charset, declared and declared[1].decode("ascii", "replace")):
        encoding = map_encoding_to_html5(label, fallback_utf8=False) if label else None
        # A page whose declaration can be read as ASCII is not in UTF-16, as in a browser.
        if encoding is not None and not encoding.startswith("utf-16"):
            yield _SUPERSETS.get(encoding, encoding)


def _sixteen_bits(html: bytes) -> str | None:
    """UTF-16 without a byte order mark: every other byte of the first tag is zero."""
    if html[:4].startswith(b"<\0") and html[3:4] == b"\0":
        return "utf-16-le"
    if html[:4].startswith(b"\0<") and html[2:3] == b"\0":
        return "utf-16-be"
    return None

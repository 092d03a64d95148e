"""The prescan of the HTML standard: what declares a charset, and what only looks like it."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.annotate.html.declared_charset import PRESCAN_BYTES, find_declared_charset
from bsmeta.annotate.html.page import decode_html


@pytest.mark.parametrize(
    ("html", "encoding"),
    [
        (b"<meta charset=koi8-r>", "koi8-r"),
        (b"<META\nCHARSET = 'KOI8-R' />", "koi8-r"),
        (b'<meta/charset="latin1">', "cp1252"),
        (b"<meta charset=koi8-r/>", "koi8-r"),
        (b"<meta http-equiv=content-type content='text/html; charset=koi8-r'>", "koi8-r"),
        (b"<meta content='text/html;charset=\"koi8-r\"' http-equiv=Content-Type>", "koi8-r"),
        (b"<meta name=content-type content='text/html; charset=koi8-r'>", "koi8-r"),
        (b"<meta content='charset; charset = koi8-r;' http-equiv=content-type>", "koi8-r"),
        (b"<!doctype html><html lang=ru><head><title>a</title><meta charset=koi8-r>", "koi8-r"),
        (b"<meta charset=x-none><meta charset=koi8-r>", "koi8-r"),
        (b"<meta name=a><meta charset=koi8-r><meta charset=latin1>", "koi8-r"),
        # Not declared
        (b"", None),
        (b"<p>charset=koi8-r</p>", None),
        (b"<meta name=description content='set charset=koi8-r first'>", None),
        (b"<metadata charset=koi8-r>", None),
        (b"<link charset=koi8-r>", None),
        (b"</meta charset=koi8-r>", None),
        (b"<?meta charset=koi8-r?>", None),
        (b"<meta charset=koi8-r", None),
        # In a comment, of any form that the standard knows
        (b"<!-- <meta charset=koi8-r> --><meta charset=latin1>", "cp1252"),
        (b"<!-- <meta charset=koi8-r> -->", None),
        (b"<!--<meta charset=koi8-r>", None),
        (b"<!-- > <meta charset=koi8-r> -- > --><meta charset=latin1>", "cp1252"),
        (b"<!-- a --!> <meta charset=koi8-r>", None),
        (b"<!--[if IE]><meta charset=koi8-r><![endif]--><meta charset=latin1>", "cp1252"),
        # What looks like a comment, or like its beginning, and is none
        (b"<!--><meta charset=koi8-r>", "koi8-r"),
        (b"<!---><meta charset=koi8-r>", "koi8-r"),
        (b"<!----><meta charset=koi8-r>", "koi8-r"),
        (b"<!- ><meta charset=koi8-r>", "koi8-r"),
        (b"<![if IE]><meta charset=koi8-r><![endif]>", "koi8-r"),
        (b"<meta name=a content='<!--'><meta charset=koi8-r>", "koi8-r"),
        (b"<a title='<!--'></a><meta charset=koi8-r>", "koi8-r"),
        (b"--><meta charset=koi8-r>", "koi8-r"),
        # In an attribute of another element
        (b"<a title='<meta charset=koi8-r>'><meta charset=latin1>", "cp1252"),
        (b"<a title=\"<meta charset=koi8-r><meta charset=latin1>", None),
        (b"<a b = '<meta charset=koi8-r>", None),
        # The first bytes only
        (b" " * (PRESCAN_BYTES - 21) + b"<meta charset=koi8-r>", "koi8-r"),
        (b" " * (PRESCAN_BYTES - 20) + b"<meta charset=koi8-r>", None),
    ],
)  # fmt: skip
def test_the_charset_follows_the_prescan_of_the_standard(html: bytes, encoding: str | None) -> None:
    assert find_declared_charset(html) == encoding


def test_a_page_is_not_decoded_by_the_charset_in_a_comment() -> None:
    html = "<!-- <meta charset='koi8-r'> --><meta charset='windows-1252'><p>Grüße aus Köln"
    assert decode_html(html.encode("cp1252")) == html


@given(
    st.lists(
        st.sampled_from(
            [b"<meta charset=koi8-r>", b"<a b='", b"'", b">", b"<!", b"-", b"--", b" ", b"/", b"="]
        )
    ).map(b"".join)
)
def test_declarations_in_a_comment_are_ignored(comment: bytes) -> None:
    html = b"<!-- " + comment.replace(b"-->", b" ") + b" --><meta charset=windows-1251>"
    assert find_declared_charset(html) == "cp1251"


@given(st.binary(max_size=200))
def test_any_bytes_give_a_codec_or_none(html: bytes) -> None:
    """The result is a codec that Python knows, or None."""
    charset = find_declared_charset(b"<meta " + html)
    assert charset is None or codecs.lookup(charset).name

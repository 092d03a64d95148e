"""Text of data that is shown acts on nothing, and is otherwise as it was."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.printable import make_printable

DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
TEXTS = st.text(st.characters(exclude_categories=()))  # with control characters and surrogates


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;QUFB\x07", "\\x1b]52;c;QUFB\\x07"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b31m \x7f \0", "\\x9b31m \\x7f \\x00"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\udc80 \ud83d", "\\udc80 \\ud83d"),
        ("progress\rdone", "progress\\rdone"),
        ("one\ttwo\r\nthree\n", "one\ttwo\r\nthree\n"),
        ("naïve 你好 مرحبا\u200f 😀 C:\\new", "naïve 你好 مرحبا\u200f 😀 C:\\new"),
    ],
)
def test_control_characters_are_escaped_and_other_text_is_unchanged(text: str, shown: str) -> None:
    assert make_printable(text) == shown


def test_a_text_in_one_line_has_no_line_ends() -> None:
    assert (
        make_printable("a\tb\r\nc\u2028d\u2029e f", one_line=True)
        == "a\\tb\\r\\nc\\u2028d\\u2029e f"
    )
    assert make_printable("a\nb") == "a\nb"


@given(TEXTS)
def test_no_printable_text_has_control_characters(text: str) -> None:
    shown = make_printable(text)
    kept = shown.replace("\r\n", "\n").replace("\n", "").replace("\t", "")
    assert not [character for character in kept if unicodedata.category(character) in ("Cc", "Cs")]
    assert not set(DIRECTIONS) & set(kept)
    assert make_printable(shown) == shown
    shown.encode()


@given(TEXTS)
def test_any_text_becomes_a_single_line(text: str) -> None:
    assert len(make_printable(text, one_line=True).splitlines()) <= 1


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert make_printable(text) == text

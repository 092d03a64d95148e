"""Texts are compared without regard to case, composition and white space; offsets are kept."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bsmeta.data.text.caseless import CaselessText, make_caseless

LETTERS = st.sampled_from(
    "aAİıßẞſKÅǰΐΣςᾳ각\u1100\u1161\u11a8\u0301\u0345\u0323\u093c \t\n\u00a0\u3000\1"
    "京がか\u3099กิำ\u200b\ufe0f❤"
)
# A text that begins with a variation selector, which chooses nothing, has no offset for it.
TEXTS = st.text(st.one_of(LETTERS, st.characters(exclude_categories=["Cs"])), max_size=30).filter(
    lambda text: make_caseless(text[:1]) != "" or text[:1].isspace() or not text
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("New York", "new york"),
        ("  New\n\tYork\u00a0", "new york"),
        ("Straße", "strasse"),
        ("STRASSE", "strasse"),
        ("cafe\u0301", "caf\u00e9"),
        ("CAFÉ", "caf\u00e9"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("a\1b", "a b"),
        ("\u1112\u1161\u11ab", "\ud55c"),  # Hangul, decomposed
        (" ", ""),
        ("❤\ufe0f", "❤"),
        ("葛\U000e0100飾", "葛飾"),
        ("北\n京", "北京"),
        ("カ\u3099 \r\n\u3000ス", "ガス"),
        ("北\n\n京 人\tA\n京", "北 京 人 a 京"),  # paragraphs; written with a space; spaced scripts
        ("กรุง\u200bเทพ ក\u200bខ a\u200bb", "กรุงเทพ កខ a\u200bb"),
        ("ไทย\nไทย", "ไทย ไทย"),
    ],
)
def test_a_text_is_folded_to_its_caseless_form(text: str, expected: str) -> None:
    assert make_caseless(text) == expected


@pytest.mark.long
def test_every_character_has_one_caseless_form() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in ("Cs", "Co", "Cn"):
            continue
        key = make_caseless(character)
        assert make_caseless(key) == make_caseless(unicodedata.normalize("NFD", character)) == key
        for pair in (f"x{character}", f"\u1100{character}", f"{character}\u0301"):
            assert CaselessText.from_text(pair).text.strip(" ") == make_caseless(pair), hex(number)


@given(TEXTS)
@example("x\u0301\u0323 \u1100\u1161\u11a8")
def test_forms_that_are_equivalent_are_equal(text: str) -> None:
    key = make_caseless(text)
    assert make_caseless(key) == key
    for form in ("NFC", "NFD"):
        assert make_caseless(unicodedata.normalize(form, text)) == key
    assert make_caseless(f"\n{text} ") == key
    assert make_caseless(text.casefold()) == key


@given(TEXTS)
@example("İİ ßx\u0301\u0323  y")
def test_every_part_maps_to_its_offsets_in_the_text(text: str) -> None:
    folded = CaselessText.from_text(text)
    assert folded.text.strip(" ") == make_caseless(text)
    joined = 0
    for first in range(len(folded.text)):
        for last in range(first + 1, len(folded.text) + 1):
            original = folded.find_original(first, last)
            if original is None:
                continue
            part = text[slice(*original)]
            assert CaselessText.from_text(part).text == folded.text[first:last]
            joined = max(joined, original[1])
    assert joined == len(text)
    if folded.text:
        assert folded.find_original(0, len(folded.text)) == (0, len(text))


def test_words_map_to_their_offsets_in_the_original_text() -> None:
    text = "Die  STRAẞE, das Cafe\u0301 \u2013 ok"
    folded = CaselessText.from_text(text)
    assert folded.text == "die strasse, das caf\u00e9 \u2013 ok"
    for word, expected in (("strasse", "STRAẞE"), ("caf\u00e9", "Cafe\u0301"), ("ok", "ok")):
        start = folded.text.index(word)
        original = folded.find_original(start, start + len(word))
        assert original is not None
        assert text[slice(*original)] == expected
    assert folded.find_original(folded.text.index("ss"), folded.text.index("ss") + 1) is None

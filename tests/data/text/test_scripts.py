"""The classes of characters are those of the Unicode Standard, by the properties of `regex`."""

from __future__ import annotations

import re
import sys
import unicodedata

import regex

from bsmeta.data.text import scripts

ASSIGNED = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) not in ("Cn", "Co", "Cs")
]
"""The characters that this Python knows; a class may have others of its blocks."""

DICTIONARY = r"\p{Line_Break=Complex_Context}"


def of_class(ranges: str) -> set[str]:
    return {character for character in ASSIGNED if re.match(f"[{ranges}]", character)}


def of_property(pattern: str) -> set[str]:
    compiled = regex.compile(pattern, regex.VERSION1)
    return {character for character in ASSIGNED if compiled.match(character)}


def test_letters_of_chinese_and_japanese() -> None:
    expected = of_property(
        r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{sc=Han}ー〆ｰ]&&\w--\p{M}]"
    )
    assert of_class(scripts.HAN_AND_KANA) == expected


def test_letters_and_marks_of_scripts_that_need_a_dictionary() -> None:
    letters = of_class(scripts.DICTIONARY_LETTERS)
    vowels = of_class(scripts.LEADING_VOWELS)
    marks = of_class(scripts.DICTIONARY_MARKS)
    assert vowels == of_property(r"\p{Logical_Order_Exception}")
    assert (
        marks
        == of_property(rf"[{DICTIONARY}&&[\p{{M}}\p{{Grapheme_Cluster_Break=SpacingMark}}]]")
        - vowels
    )
    assert letters | vowels | marks == of_property(rf"[{DICTIONARY}&&[\w\p{{M}}]]")
    assert not letters & vowels | letters & marks | vowels & marks
    stackers = rf"[{DICTIONARY}&&\p{{Indic_Syllabic_Category=Invisible_Stacker}}]"
    assert of_class(scripts.STACKERS) == of_property(stackers)


def test_variation_selectors_and_emoji() -> None:
    assert of_class(scripts.VARIATION_SELECTORS) == of_property(r"\p{Variation_Selector}")
    assert of_class(scripts.FLAG_LETTERS) == of_property(r"\p{Regional_Indicator}")
    emoji = of_property(r"[\p{Emoji}--\p{ASCII}--\p{Regional_Indicator}]")
    pictographs = of_class(scripts.PICTOGRAPHS)
    assert emoji - pictographs <= {*"ℹ🏻🏼🏽🏾🏿"}  # a letter; skin tones, which follow others
    assert {unicodedata.category(sign) for sign in pictographs - emoji} <= {
        "So",
        "Ps",
        "Pe",
        "No",
        "Sm",
    }
    assert not {*"|│─■●◊°§→†"} & pictographs


def test_blocks_have_all_that_is_searched_by_script() -> None:
    searched = scripts.UNSPACED_LETTERS + scripts.VARIATION_SELECTORS
    searched += scripts.FLAG_LETTERS + scripts.KEYCAP
    assert of_class(searched) <= of_class(scripts.COARSE_RANGES)
    assert not {*"é–—‘’“”…•→€™©°½Жßمह한"} & of_class(scripts.COARSE_RANGES)

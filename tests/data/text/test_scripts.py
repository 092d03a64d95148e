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


def match_class(ranges: str) -> set[str]:
    return {character for character in ASSIGNED if re.match(f"[{ranges}]", character)}


def match_property(pattern: str) -> set[str]:
    compiled = regex.compile(pattern, regex.VERSION1)
    return {character for character in ASSIGNED if compiled.match(character)}


def test_the_class_of_chinese_and_japanese_letters_follows_unicode() -> None:
    expected = match_property(
        r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{sc=Han}ー〆ｰ]&&\w--\p{M}]"
    )
    assert match_class(scripts.HAN_AND_KANA) == expected


def test_the_classes_of_dictionary_scripts_follow_unicode() -> None:
    letters = match_class(scripts.DICTIONARY_LETTERS)
    vowels = match_class(scripts.LEADING_VOWELS)
    marks = match_class(scripts.DICTIONARY_MARKS)
    assert vowels == match_property(r"\p{Logical_Order_Exception}")
    assert (
        marks
        == match_property(rf"[{DICTIONARY}&&[\p{{M}}\p{{Grapheme_Cluster_Break=SpacingMark}}]]")
        - vowels
    )
    assert letters | vowels | marks == match_property(rf"[{DICTIONARY}&&[\w\p{{M}}]]")
    assert not letters & vowels | letters & marks | vowels & marks
    stackers = rf"[{DICTIONARY}&&\p{{Indic_Syllabic_Category=Invisible_Stacker}}]"
    assert match_class(scripts.STACKERS) == match_property(stackers)


def test_the_classes_of_variation_selectors_and_emoji_follow_unicode() -> None:
    assert match_class(scripts.VARIATION_SELECTORS) == match_property(r"\p{Variation_Selector}")
    assert match_class(scripts.FLAG_LETTERS) == match_property(r"\p{Regional_Indicator}")
    emoji = match_property(r"[\p{Emoji}--\p{ASCII}--\p{Regional_Indicator}]")
    pictographs = match_class(scripts.PICTOGRAPHS)
    assert emoji - pictographs <= {*"ℹ🏻🏼🏽🏾🏿"}  # a letter; skin tones, which follow others
    assert {unicodedata.category(sign) for sign in pictographs - emoji} <= {
        "So",
        "Ps",
        "Pe",
        "No",
        "Sm",
    }
    assert not {*"|│─■●◊°§→†"} & pictographs


def test_blocks_contain_all_characters_searched_by_script() -> None:
    searched = scripts.UNSPACED_LETTERS + scripts.VARIATION_SELECTORS
    searched += scripts.FLAG_LETTERS + scripts.KEYCAP
    assert match_class(searched) <= match_class(scripts.COARSE_RANGES)
    assert not {*"é–—‘’“”…•→€™©°½Жßمह한"} & match_class(scripts.COARSE_RANGES)

"""Classifies words by their characters, for rules of correction and reports of false alarms."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

from bsmeta.data.text.sentences import find_word_core

LOWER_CASE = "lower case"
CAPITALIZED = "capitalized"
ACRONYM = "acronym"
INNER_CAPITALS = "inner capitals"
NON_ASCII = "non-ASCII letters"
SYMBOLS = "digits or symbols"
KINDS = (LOWER_CASE, CAPITALIZED, ACRONYM, INNER_CAPITALS, NON_ASCII, SYMBOLS)

_LETTER = r"[^\W\d_]"
_SHORT_ACRONYM = re.compile(rf"{_LETTER}(?:\.?{_LETTER}){{1,4}}(?:['’]?s)?")
_MARKS = frozenset("#&@\\/_")


@lru_cache(2**18)
def find_word_kind(word: str) -> str:
    """Returns the kind of a word, one of `KINDS`; "" for a word without letters.

    A word of several kinds counts as the last of them in `KINDS`.

    Args:
        word: A token, which may have punctuation around it.
    """
    span = find_word_core(word)
    if span is None:
        return ""
    if has_digit_or_symbol(word):
        return SYMBOLS

    core = word[span.start : span.end]
    if any(not character.isascii() and character.isalpha() for character in core):
        return NON_ASCII
    if has_inner_capital(core):
        return ACRONYM if core.isupper() or is_short_acronym(core) else INNER_CAPITALS
    return CAPITALIZED if core[0].isupper() else LOWER_CASE


def has_digit_or_symbol(word: str) -> bool:
    """Returns whether a token has a digit, or a symbol such as the signs of `C++` and `R&D`.

    A grave accent is not a symbol, because it serves as a quotation mark.
    """
    if word.isalpha():
        return False
    return any(
        character.isdigit()
        or character in _MARKS
        or (character != "`" and unicodedata.category(character)[0] == "S")
        for character in word
    )


def has_inner_capital(core: str) -> bool:
    """Returns whether a capital follows a letter (`kW`) or a full stop (`H.M`) in a word."""
    return any(
        character.isupper() and (previous.isalpha() or previous == ".")
        for previous, character in pairwise(core)
    )


def is_short_acronym(core: str) -> bool:
    """Returns whether a word is two to five capitals, such as `NATO`, `H.M`, `CDs` or `FBI's`."""
    match = _SHORT_ACRONYM.fullmatch(core)
    return match is not None and core.rstrip("s").rstrip("'’").isupper()

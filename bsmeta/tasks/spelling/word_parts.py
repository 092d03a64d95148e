"""Divides a token into its words, without punctuation.

A token, from one white space to the next, may hold several words: `"Yes"—then`. A word is letters
with their combining marks, joined by single apostrophes and hyphens (`don't`, `well-known`). All
other characters stand between words; no correction changes, removes or adds one.
"""

from __future__ import annotations

import re
import unicodedata

from bsmeta.data.text.sentences import Span

_JOINERS = frozenset("'\u2019-")

# Types of characters, each as one character, so that patterns can be matched against them.
_LETTER = "l"
_MARK = "m"
_JOINER = "j"
_OTHER = " "

_RUN = re.compile(f"{_LETTER}[{_LETTER}{_MARK}]*(?:{_JOINER}{_LETTER}[{_LETTER}{_MARK}]*)*")
_ELISION = re.compile(r"(?:[cdjlmnost]|qu)['\u2019](?=\w\w)", re.IGNORECASE)


def find_word_runs(token: str) -> list[Span]:
    """Returns the positions of the words of a token."""
    if token.isalpha():
        return [Span(0, len(token))]
    types = "".join(map(_classify_character, token))
    return [Span(*match.span()) for match in _RUN.finditer(types)]


def is_word(text: str) -> bool:
    """Returns whether a text is exactly one word."""
    return find_word_runs(text) == [Span(0, len(text))]


def measure_elision(word: str) -> int:
    """Returns the length of an elided word at the start of a word (`L'Or`: 2); 0 without one."""
    elision = _ELISION.match(word)
    return elision.end() if elision else 0


def _classify_character(character: str) -> str:
    if character.isalpha():
        return _LETTER
    if unicodedata.category(character).startswith("M"):
        return _MARK
    return _JOINER if character in _JOINERS else _OTHER

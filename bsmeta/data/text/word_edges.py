r"""Finds where words begin and end, in any script. All code that matches aliases uses this module.

In scripts with spaces, a word is a run of letters, digits and their marks, as for `\b` in `re`.

Chinese, Japanese, Thai, Lao, Khmer and Burmese do not separate words with spaces. The default rules
for word boundaries (Unicode Standard Annex 29) leave these scripts to dictionaries. With a
dictionary, the words of a name would depend on the text around it, and unknown names would be
divided arbitrarily. Here, every letter with its marks is a word, so that any name can be matched;
of several names that match, a table chooses the longest. The price is that a short name also
matches inside a longer word that is not in the table.

An emoji with its skin tone is a word, and so are a sequence of joined emoji and a flag.
"""

from __future__ import annotations

import re

from bsmeta.data.text.caseless import is_combining
from bsmeta.data.text.scripts import (
    COARSE_RANGES,
    DICTIONARY_LETTERS,
    DICTIONARY_MARKS,
    EMOJI_PARTS,
    FLAG_LETTERS,
    HAN_AND_KANA,
    KANA_MARKS,
    KEYCAP,
    LEADING_VOWELS,
    PICTOGRAPHS,
    STACKERS,
    UNSPACED_LETTERS,
    VARIATION_SELECTORS,
)

_EDGE = re.compile(r"\b")
_MAYBE_MARK = re.compile(r"[^\w\s\x00-\x7f]")

_MARKS = rf"\u0300-\u036f{KANA_MARKS}{DICTIONARY_MARKS}{VARIATION_SELECTORS}"
_LETTER = f"[{HAN_AND_KANA}{DICTIONARY_LETTERS}][{_MARKS}]*+"
_EMOJI_PART = f"[{PICTOGRAPHS}][{EMOJI_PARTS}]*+"
_JOINED_EMOJI = rf"{_EMOJI_PART}(?:\u200d{_EMOJI_PART})*+"
_EMOJI = rf"[{FLAG_LETTERS}]{{2}}|[#*0-9][{VARIATION_SELECTORS}]?{KEYCAP}|{_JOINED_EMOJI}"

_JOINED_EMOJI_PATTERN = re.compile(_JOINED_EMOJI)
_EMOJI_PATTERN = re.compile(_EMOJI)
_WORD = re.compile(
    rf"[{LEADING_VOWELS}]*+{_LETTER}(?:(?<=[{STACKERS}]){_LETTER})*+|[{LEADING_VOWELS}]+"
    rf"|{_EMOJI}|(?:[^\W{UNSPACED_LETTERS}]|[{_MARKS}])+"
)
_MAYBE_OTHER_MARK = re.compile(rf"[^\w\s\x00-\x7f{_MARKS}{EMOJI_PARTS}{PICTOGRAPHS}]")
_MAY_NEED_WORD = re.compile(f"[{COARSE_RANGES}]")


def find_word_edges(text: str) -> list[int]:
    """Returns the offsets at which words begin and end, ascending.

    If a word directly follows another word, their common offset is listed twice: as the end of the
    first, and as the beginning of the second. Combining characters belong to their words.
    """
    if text.isascii():
        return [match.start() for match in _EDGE.finditer(text)]

    edges: list[int] = []
    if _MAY_NEED_WORD.search(text):
        with_letters = _MAYBE_OTHER_MARK.sub(_replace_mark, text)
        for match in _WORD.finditer(with_letters):
            edges += match.span()
        return edges

    # Most texts that are not ASCII, such as texts with a dash. `_WORD` would find the same edges,
    # but three times as slowly.
    for match in _JOINED_EMOJI_PATTERN.finditer(text):
        edges += match.span()
    has_emoji = bool(edges)
    with_letters = _MAYBE_MARK.sub(_replace_mark, text)
    edges += [match.start() for match in _EDGE.finditer(with_letters)]
    return sorted(edges) if has_emoji else edges


def has_word(text: str) -> bool:
    """Returns whether a text has a letter, a digit or an emoji; other texts cannot be a mention."""
    return any(map(str.isalnum, text)) or _EMOJI_PATTERN.search(text) is not None


def _replace_mark(match: re.Match[str]) -> str:
    """Replaces a combining character with a letter, so that it is part of a word."""
    return "a" if is_combining(match[0]) else match[0]

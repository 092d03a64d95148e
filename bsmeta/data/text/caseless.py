"""Computes the caseless form of texts, to compare them regardless of case and white space.

The caseless form of a text is its full case folding, so that `Straße`, `STRASSE` and `strasse` are
equal, in normalization form C (Unicode Standard, section 3.13, D145). Each run of white space and
control characters becomes one space. Variation selectors, which only choose between glyphs (an
emoji in color), are removed. Gaps inside a word are also removed in scripts without spaces: a line
break between Chinese or Japanese letters, or an invisible space (U+200B) between letters of any
such script. `CaselessText` keeps the offsets in the original text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from bsmeta.data.text.scripts import (
    COARSE_RANGES,
    DICTIONARY_MARKS,
    HAN_AND_KANA,
    KANA_MARKS,
    UNSPACED_LETTERS,
    VARIATION_SELECTORS,
)

_SPACE = re.compile(r"[\s\x00-\x1f]+")
_SPACE_RUN = re.compile(r"[\s\x00-\x1f]{2}")

_SELECTOR = re.compile(f"[{VARIATION_SELECTORS}]")

# Gaps, which do not separate words: a single line break between Chinese or Japanese letters
# (browsers also drop it: CSS Text 3, 4.1.3), and invisible spaces.
_LINE_BREAK = (
    rf"(?<=[{HAN_AND_KANA}{KANA_MARKS}])[{VARIATION_SELECTORS}]*+"
    rf"[ \t\u3000]*+(?:\r\n|[\n-\r\x85\u2028])[ \t\u3000]*+(?=[{HAN_AND_KANA}])"
)
_INVISIBLE_SPACE = (
    rf"(?<=[{UNSPACED_LETTERS}{KANA_MARKS}{DICTIONARY_MARKS}])[{VARIATION_SELECTORS}]*+"
    rf"\u200b[\u200b{VARIATION_SELECTORS}]*+(?=[{UNSPACED_LETTERS}])"
)
_GAP = re.compile(f"{_LINE_BREAK}|{_INVISIBLE_SPACE}")

# White space; a run of ASCII characters not followed by a combining character; any other character.
_PART = re.compile(
    r"(?P<space>[\s\x00-\x1f]+)|(?P<plain>(?:[!-~](?![^\x00-\x7f]))+)|(?P<other>.)", re.DOTALL
)
# The same with gaps, for texts that may contain gaps or variation selectors.
_PART_OR_GAP = re.compile(
    rf"(?P<plain>(?:[!-~](?![^\x00-\x7f]))+)|(?P<gap>{_LINE_BREAK}|{_INVISIBLE_SPACE})"
    rf"|(?P<space>[\s\x00-\x1f][\s\x00-\x1f{VARIATION_SELECTORS}]*+)|(?P<other>.)",
    re.DOTALL,
)
_MAY_HAVE_GAP = re.compile(f"[{COARSE_RANGES}]")

# Vowels and final consonants of Hangul syllables.
_FIRST_JAMO = "\u1160"
_LAST_JAMO = "\u11ff"


def make_caseless(text: str) -> str:
    """Returns the caseless form of a text, without spaces at its ends."""
    folded = _fold_text(text)
    if not folded.isascii():
        folded = _GAP.sub("", folded)
    return _SPACE.sub(" ", folded).strip(" ")


# A plain tuple, because a text has thousands of segments: a named tuple would take a third longer.
Segment = tuple[int, int, bool]
"""Start and end of a part of a text, and whether it is plain: uncombined ASCII characters."""


@dataclass(frozen=True)
class CaselessText:
    """The caseless form of a text, not stripped, with offsets in the original text.

    Attributes:
        text: The caseless form.
        starts: For each character of `text`, the offset of the first original character from which
            it was made; None if both texts have the same offsets.
        ends: For each character of `text`, the offset after the last such original character; None
            if both texts have the same offsets.
    """

    text: str
    starts: list[int] | None
    ends: list[int] | None

    @classmethod
    def from_text(cls, text: str) -> CaselessText:
        """Computes the caseless form of a text."""
        # Fast path for most lines: printable, so spaces are their only white space.
        if text.isascii() and text.isprintable() and "  " not in text:
            return cls(text.lower(), None, None)
        if text.isascii() and not _SPACE_RUN.search(text):
            return cls(_SPACE.sub(" ", text.lower()), None, None)

        folded_segments: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, end, is_plain in _divide_segments(text):
            if is_plain:
                folded = text[start:end].lower()
                starts += range(start, end)
                ends += range(start + 1, end + 1)
            else:
                folded = _fold_segment(text[start:end])
                starts += [start] * len(folded)
                ends += [end] * len(folded)
            folded_segments.append(folded)
        return cls("".join(folded_segments), starts, ends)

    def find_original(self, start: int, end: int) -> tuple[int, int] | None:
        """Finds the original text of a non-empty part of the caseless form.

        Args:
            start: Start of the part in the caseless form.
            end: End of the part, exclusive.

        Returns:
            The start and end in the original text; None if the part divides an original character,
            or separates it from characters that combine with it.
        """
        if self.starts is None or self.ends is None:
            return start, end

        first = self.starts[start]
        last = self.ends[end - 1]
        divides_first = start > 0 and self.ends[start - 1] > first
        divides_last = end < len(self.text) and self.starts[end] < last
        return None if divides_first or divides_last else (first, last)


@lru_cache(maxsize=1 << 16)
def is_combining(character: str) -> bool:
    """Returns whether normalization may join a character to the previous character."""
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or _FIRST_JAMO <= character <= _LAST_JAMO


def _divide_segments(text: str) -> list[Segment]:
    """Divides a text into segments whose caseless forms can be concatenated; skips gaps."""
    segments: list[Segment] = []
    can_continue = False  # whether a combining character may be added to the last segment
    parts = _PART_OR_GAP if _MAY_HAVE_GAP.search(text) else _PART
    for match in parts.finditer(text):
        start, end = match.span()
        if match.lastgroup == "gap":
            can_continue = False
            continue
        if match.lastgroup == "other" and can_continue and is_combining(match[0]):
            first_start, _, _ = segments[-1]
            segments[-1] = (first_start, end, False)
            continue
        segments.append((start, end, match.lastgroup == "plain"))
        can_continue = match.lastgroup == "other"
    return segments


@lru_cache(maxsize=1 << 16)
def _fold_segment(text: str) -> str:
    """Returns the caseless form of a segment."""
    return _SPACE.sub(" ", _fold_text(text))


def _fold_text(text: str) -> str:
    """Removes variation selectors, folds case, and composes characters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", _SELECTOR.sub("", text))
    return unicodedata.normalize("NFC", decomposed.casefold())

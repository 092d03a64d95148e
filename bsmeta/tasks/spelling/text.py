"""Long texts in chunks that a model can read, and the words of a text with their places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from bsmeta.data.text.sentences import sentences

_WORD = re.compile(r"\S+")
_WORD_AND_SPACES = re.compile(r"\s*\S+\s*|\s+")
_PART = re.compile(r"[^-–—/]+")


class Span(NamedTuple):
    """A part of a text: text[start:end]."""

    start: int
    end: int


def words(text: str) -> list[Span]:
    """The places of the words of a text, as `text.split()` separates them."""
    return [Span(*match.span()) for match in _WORD.finditer(text)]


def core(word: str) -> Span | None:
    """The part of a word from its first letter to its last; None if it has no letter."""
    letters = [at for at, character in enumerate(word) if character.isalpha()]
    return Span(letters[0], letters[-1] + 1) if letters else None


def cut(text: str, limit: int) -> list[str]:
    """Cuts a text into chunks that, joined, are the text again.

    Chunks end where a sentence ends; a longer sentence is cut between words. Whitespace between two
    chunks belongs to the first. A word is never divided: a chunk with a longer word has no other.

    Args:
        text: Any text.
        limit: Characters of a chunk at most, without the whitespace at its ends.
    """
    chunks: list[str] = []
    chunk = ""
    for part in _parts(text, limit):
        if chunk.strip() and len((chunk + part).strip()) > limit:
            chunks.append(chunk)
            chunk = part
        else:
            chunk += part
    return [*chunks, chunk] if chunk else chunks


def _parts(text: str, limit: int) -> Iterator[str]:
    """The sentences of a text, and the words of those that are longer than the limit."""
    starts = [start for start, _ in sentences(text, "rules")]
    for start, end in pairwise([0, *starts[1:], len(text)]):
        if len(text[start:end].strip()) <= limit:
            yield text[start:end]
        else:
            yield from _WORD_AND_SPACES.findall(text, start, end)


def joined_parts(word: str) -> list[Span]:
    """The parts of a compound, between hyphens, dashes and slashes."""
    return [Span(*match.span()) for match in _PART.finditer(word)]

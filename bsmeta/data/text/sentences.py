"""Splits texts into sentences and words by rules, and long texts into chunks for a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple

_FULL_STOP = re.compile(r"\.")

# The end of a sentence, with the closing quotation marks and brackets after it. The possessive
# quantifiers prevent that a run of dots without a space after it is scanned again from each dot.
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]+[」』”]*|\n\s*\n")

_LAST_WORD = re.compile(r"(?<![\w.])[\w.]++$")

_LOWER_CASE_FOLLOWS = re.compile(r"\s++[a-z]")

ABBREVIATIONS = frozenset(
    """adj adv al approx apr art aug ca cf ch co corp dec dept dr ed eds adm e.g eq est etc ex feb
    fig figs gen gov hon i.e inc jan jr jul jun lt ltd mar mr mrs ms mt no nos nov nr oct op p pp
    ph.d prof pt ref rev sec sen sep sept sr st u.k u.s viz vol vs z.b""".split()  # noqa: SIM905
)

_MAX_ABBREVIATION_CHARS = max(map(len, ABBREVIATIONS))

_WORD = re.compile(r"\S+")

_WORD_AND_SPACES = re.compile(r"\s*\S+\s*|\s+")

_COMPOUND_PART = re.compile(r"[^-–—/]+")


def find_sentences(text: str, splitter: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of the sentences of a text.

    Args:
        splitter: `full_stops` (as published) splits at each full stop, and drops the text after the
            last one. `rules` does not split at abbreviations, initials and decimals, and leaves out
            the space around sentences.
    """
    if splitter == "full_stops":
        stops = (match.start() for match in _FULL_STOP.finditer(text))
        yield from pairwise(chain([0], stops))
        return

    start = 0
    for match in chain(_SENTENCE_END.finditer(text), [None]):  # None: the end of the text
        end = len(text) if match is None else match.end()
        if match is not None and _is_inside_sentence(text, start, match):
            continue

        sentence = text[start:end]
        stripped = sentence.strip()
        if stripped:
            stripped_start = start + len(sentence) - len(sentence.lstrip())
            yield stripped_start, stripped_start + len(stripped)
        start = end


def _is_inside_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Returns whether a full stop does not end its sentence.

    This is so after an abbreviation or an initial, and before lower case.

    Args:
        start: Start of the sentence.
        match: The possible end of the sentence.
    """
    if match.group() != ".":
        return False

    # The sentence may be the whole text, so only its end is searched: longer words are not
    # abbreviations. `$` also matches before a line break.
    search_start = max(start, match.start() - _MAX_ABBREVIATION_CHARS - 1)
    last_word = _LAST_WORD.search(text, search_start, match.start())
    if last_word is not None:
        word = last_word.group()
        is_initial = len(word) == 1 and word.isupper()
        if is_initial or word.lower() in ABBREVIATIONS:
            return True
    return _LOWER_CASE_FOLLOWS.match(text, match.end()) is not None


class Span(NamedTuple):
    """The position of a part of a text: text[start:end]."""

    start: int
    end: int


def find_words(text: str) -> list[Span]:
    """Returns the spans of the words of a text, as `text.split()` separates them."""
    return [Span(*match.span()) for match in _WORD.finditer(text)]


def find_word_core(word: str) -> Span | None:
    """Returns the span from the first to the last letter of a word; None if it has no letter."""
    letters = [index for index, character in enumerate(word) if character.isalpha()]
    return Span(letters[0], letters[-1] + 1) if letters else None


def cut_text(text: str, limit: int) -> list[str]:
    """Cuts a text into chunks whose concatenation is the text.

    Chunks end at the end of a sentence; a sentence longer than the limit is cut between words.
    Whitespace between two chunks belongs to the first. Words are never divided, so a word longer
    than the limit is a chunk by itself.

    Args:
        limit: Maximum number of characters of a chunk, without the whitespace at its ends.
    """
    if not text:
        return []

    chunks: list[str] = []
    chunk_start = 0
    content: Span | None = None  # the chunk without whitespace at its ends; None if it is empty
    for part in _divide_text(text, limit):
        part_content = _strip_span(text, part)
        if part_content is None:
            continue

        if content is None:
            content = part_content
        elif part_content.end - content.start <= limit:
            content = Span(content.start, part_content.end)
        else:
            chunks.append(text[chunk_start : part.start])
            chunk_start = part.start
            content = part_content
    return [*chunks, text[chunk_start:]]


def _strip_span(text: str, span: Span) -> Span | None:
    """Returns a span without the whitespace at its ends; None if it is all whitespace."""
    part = text[span.start : span.end]
    length = len(part.strip())
    start = span.end - len(part.lstrip())
    return Span(start, start + length) if length else None


def _divide_text(text: str, limit: int) -> Iterator[Span]:
    """Yields the sentences of a text with the space around them, or the words of long sentences."""
    starts = [start for start, _ in find_sentences(text, "rules")]
    for start, end in pairwise([0, *starts[1:], len(text)]):
        if len(text[start:end].strip()) <= limit:
            yield Span(start, end)
        else:
            for match in _WORD_AND_SPACES.finditer(text, start, end):
                yield Span(*match.span())


def divide_compound(word: str) -> list[Span]:
    """Returns the spans of the parts of a compound between hyphens, dashes and slashes."""
    return [Span(*match.span()) for match in _COMPOUND_PART.finditer(word)]

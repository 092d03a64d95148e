"""The annotator of the main content: what extractors keep of a page, as spans of its text.

Extractors return text with other white space, bullets and separators, and without what they leave
out. Its words are matched with those of the text in order: runs of words that occur once in both
are anchors (as in the "patience" diff), the longest sequence of anchors that is in order in both is
kept, and each is extended over the equal words around it. What lies between anchors is matched in
the same way by runs that occur a few times (a page may have its article twice, for wide and for
narrow screens) and by shorter ones, and what is left after that by runs in any place. So the time
is that of sorting, whatever the texts.
"""

from __future__ import annotations

import importlib
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text

from bsmeta.annotate.annotator import NO_HTML, AnnotationError, Annotator, Columns, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.content import COLUMN

Extract = Callable[[str], str]

_WORD = re.compile(r"\w+")
_SEPARATOR = re.compile(r"(\W+)")
# Of the anchors in turn: the number of words, and of places in the extract and in the text.
_ANCHORS = ((4, 1), (4, 8), (2, 8), (1, 8))
_SINGLE_WORDS = 2.0  # an anchor of one word is trusted up to this ratio of words left in the text
_MOVED_WORDS = 4
_HASH = np.uint64(0x9E3779B97F4A7C15)

Span = tuple[int, int]
_Gap = tuple[int, int, int, int]
_UInt64 = NDArray[np.uint64]


class Content(Annotator):
    """The spans of the text that each extractor takes for the page's content.

    An extractor's own text is only used to find these spans. If an extractor fails, the column has
    null for it.
    """

    name = "content"
    version = 2
    columns = (COLUMN,)
    settings = ("content_extractors", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self._extract = {name: EXTRACTORS[name]() for name in config.content_extractors}

    def annotate(self, row: Row) -> Columns:
        if row.html is None:
            raise AnnotationError(NO_HTML)
        text = Text(row.text)
        spans: dict[str, list[tuple[int, int]] | None] = {}
        errors = []
        for name, extract in self._extract.items():
            try:
                spans[name] = text.align(extract(row.html))
            except Exception as error:  # whatever an extractor does not foresee
                spans[name] = None
                errors.append(f"{name}_{type(error).__name__}")
        if errors:
            raise AnnotationError(",".join(errors), columns={COLUMN: spans})
        return {COLUMN: spans}

    def fingerprint(self) -> str:
        return self.digest({name: version(name) for name in self._extract})


def _resiliparse() -> Extract:
    return lambda html: extract_plain_text(html, main_content=True, alt_texts=False)


def _trafilatura() -> Extract:
    # Imported for the run, not with the module: it takes a second.
    try:
        trafilatura = importlib.import_module("trafilatura")
    except ImportError as error:
        raise ConfigurationError(
            f"content_extractors: trafilatura cannot be imported ({error}); install what "
            "requirements.txt names, or set content_extractors=[resiliparse]"
        ) from error
    return lambda html: trafilatura.extract(html, fast=True, include_comments=False) or ""


EXTRACTORS: dict[str, Callable[[], Extract]] = {
    "resiliparse": _resiliparse,
    "trafilatura": _trafilatura,
}


class Text:
    """A text with which extracts are aligned."""

    def __init__(self, text: str) -> None:
        self._text = text
        parts = _SEPARATOR.split(text)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        words = [part for part in parts[::2] if part]  # the first and the last may be empty
        self._ends = [end for part, end in zip(parts[::2], ends[::2], strict=True) if part]
        self._starts = [end - len(word) for word, end in zip(words, self._ends, strict=True)]
        self._numbers: dict[str, int] = {}
        self._words = [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def align(self, extract: str) -> list[Span]:
        """The spans of the text that an extract consists of: in order, disjoint.

        The extract has parts of the text, mostly in its order, with any spaces and punctuation.
        Spans begin and end with words, and the punctuation that touches these. There is none if the
        extract is empty, or at most single words of it are in the text.
        """
        words = [self._numbers.get(word, -1) for word in _WORD.findall(extract)]
        if words == self._words:
            return [(0, len(self._text))] if words else []
        alignment = _Alignment(words, self._words)
        gaps = [(0, len(words), 0, len(self._words))]
        for count, places in _ANCHORS:
            gaps = [rest for gap in gaps for rest in alignment.match(gap, count, places)]
        if words:
            alignment.match_moved(min(_MOVED_WORDS, len(words)))
        return self._spans(alignment.is_found)

    def _spans(self, is_found: bytearray) -> list[Span]:
        """The spans of the words found, each with the punctuation that touches it."""
        text = self._text
        spans: list[Span] = []
        for first, after in _ranges(is_found, 1):
            start, end = self._starts[first], self._ends[after - 1]
            floor = self._ends[first - 1] if first else 0
            ceiling = self._starts[after] if after < len(self._starts) else len(text)
            floor = max(floor, spans[-1][1] if spans else 0)
            while start > floor and not text[start - 1].isspace():
                start -= 1
            while end < ceiling and not text[end].isspace():
                end += 1
            spans.append((start, end))
        return spans


class _Alignment:
    """Which words of an extract (`others`) are which of a text; words are numbers.

    `is_found` is 1 for each word of the text that is one of the extract.
    """

    def __init__(self, others: list[int], words: list[int]) -> None:
        self._others, self._words = others, words
        self._is_used = bytearray(len(others))
        self.is_found = bytearray(len(words))

    def match(self, gap: _Gap, count: int, places: int) -> Iterator[_Gap]:
        """Matches words of a gap, in order, from anchors; yields what is left.

        Anchors have `count` words, which occur at most `places` times in either text.
        """
        others, words = self._others, self._words
        other, other_end, word, word_end = gap
        if count == 1 and word_end - word > _SINGLE_WORDS * (other_end - other) + 2:
            return
        for at, place in self._anchors(gap, count, places):
            if at < other or place < word:
                continue  # within what the anchor before was extended over
            while at > other and place > word and others[at - 1] == words[place - 1]:
                at -= 1
                place -= 1
            if at > other and place > word:
                yield other, at, word, place
            length = self._mark(at, place, min(other_end - at, word_end - place))
            other, word = at + length, place + length
        if other < other_end and word < word_end:
            yield other, other_end, word, word_end

    def _anchors(self, gap: _Gap, count: int, places: int) -> list[Span]:
        """Places in both of the anchors of a gap; see `match` for the arguments.

        Of several copies in the text the first is taken; before all other anchors the last, which
        is the nearest to them: menus come first, and repeat titles of the content.
        """
        other, other_end, word, word_end = gap
        others, words = self._others[other:other_end], self._words[word:word_end]
        if word > 0 or word_end == len(self._words):
            found = _rising_runs(others, words, count, places)
            return [(other + at, word + place) for at, place in found]
        found = _rising_runs(others[::-1], words[::-1], count, places)
        return [(other_end - count - at, word_end - count - place) for at, place in found[::-1]]

    def match_moved(self, count: int) -> None:
        """Matches runs of that length that are left in both, in any order, at their first place.

        An extractor has moved them, or they are in too many places for anchors.
        """
        left = [(start, end) for start, end in _ranges(self._is_used, 0) if end - start >= count]
        runs = (run for start, end in left for run in _runs(self._others[start:end], count))
        places: dict[tuple[int, ...], deque[int]] = {run: deque() for run in runs}
        if not places:
            return
        for start, end in _ranges(self.is_found, 0):
            for place, run in enumerate(_runs(self._words[start:end], count), start):
                if run in places:
                    places[run].append(place)
        for start, end in left:
            after = start
            for at, run in enumerate(_runs(self._others[start:end], count), start):
                while at >= after and places[run]:
                    place = places[run].popleft()
                    if 1 not in self.is_found[place : place + count]:
                        found = self.is_found.find(1, place)
                        most = (len(self._words) if found < 0 else found) - place
                        after = at + self._mark(at, place, min(end - at, most))

    def _mark(self, at: int, place: int, most: int) -> int:
        """Marks the equal words from two places on, up to a limit; returns their number."""
        others, words = self._others, self._words
        length = 0
        while length < most and others[at + length] == words[place + length]:
            length += 1
        self._is_used[at : at + length] = self.is_found[place : place + length] = b"\1" * length
        return length


def _ranges(marks: bytearray, mark: int) -> Iterator[Span]:
    """Start and end of each range of a mark, which is 0 or 1."""
    start = marks.find(mark)
    while start >= 0:
        end = marks.find(1 - mark, start)
        end = len(marks) if end < 0 else end
        yield start, end
        start = marks.find(mark, end)


def _runs(words: list[int], count: int) -> Iterator[tuple[int, ...]]:
    return zip(*(words[shift:] for shift in range(count)), strict=False)


def _rising_runs(
    others: list[int], words: list[int], count: int, places: int
) -> list[tuple[int, int]]:
    """The longest sequence of equal runs of `count` words whose places rise in both lists.

    A run may have `places` places in either list.
    """
    theirs, ours = _hashes(others, count), _hashes(words, count)
    order = np.argsort(ours, kind="stable")
    ours = ours[order]
    last = np.searchsorted(ours, theirs, "right")
    number = last - np.searchsorted(ours, theirs, "left")
    _, run, copies = np.unique(theirs, return_inverse=True, return_counts=True)
    at = np.flatnonzero((number > 0) & (number <= places) & (copies[run] <= places))
    number, last = number[at], last[at]
    # Pairs by their first place; those of one from the last, so that only one of them rises.
    nth = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    firsts = np.repeat(at, number).tolist()
    seconds = order[np.repeat(last - 1, number) - nth].tolist()
    return [(firsts[pair], seconds[pair]) for pair in _longest_rise(seconds)]


def _hashes(words: list[int], count: int) -> _UInt64:
    numbers = np.array(words, np.int64).view(np.uint64)
    hashes = np.zeros(max(len(words) - count + 1, 0), np.uint64)
    for shift in range(count):
        hashes = (hashes ^ numbers[shift : shift + len(hashes)]) * _HASH
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _longest_rise(values: list[int]) -> list[int]:
    """The places of the longest sequence that rises; of several, that of the lowest values."""
    lowest: list[int] = []  # the lowest end of a rising sequence of each length
    ends: list[int] = []  # and its place
    before: list[int] = []
    for place, value in enumerate(values):
        if not lowest or value > lowest[-1]:
            before.append(ends[-1] if ends else -1)
            lowest.append(value)
            ends.append(place)
            continue
        length = bisect_left(lowest, value)
        before.append(ends[length - 1] if length else -1)
        lowest[length] = value
        ends[length] = place
    rising = []
    place = ends[-1] if ends else -1
    while place >= 0:
        rising.append(place)
        place = before[place]
    return rising[::-1]

"""Annotates main content: the spans of a page's text that extractors keep.

Extractors change white space, bullets and separators, and drop parts of the page. The words of an
extract are matched with the words of the text, in order, in three rounds:

1. Runs of words that occur once in both are anchors (as in the "patience" diff). The longest
   sequence of anchors that is in order in both is kept, and each anchor is extended over the equal
   words around it.
2. The gaps between anchors are matched in the same way by runs that occur a few times (a page may
   have its article twice, for wide and for narrow screens) and by shorter runs.
3. The remaining words are matched by runs in any position.

Sorting dominates the time, which is O(n log n) for any texts.
"""

from __future__ import annotations

import importlib
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text

from bsmeta.annotate.annotator import NO_HTML, AnnotationError, Annotator, Columns, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.annotated_columns import CONTENT_SPANS

Extractor = Callable[[str], str]
"""Returns the main content of an HTML page as text."""

_WORD = re.compile(r"\w+")
_SEPARATOR = re.compile(r"(\W+)")
_MAX_SINGLE_WORD_RATIO = 2.0
"""Maximum ratio of text words to extract words in a gap whose single words may be anchors."""
_MOVED_RUN_WORDS = 4
"""Number of words in a run that is matched in any position."""
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Span = tuple[int, int]
"""Start and end of a range, the end excluded."""
_UInt64 = NDArray[np.uint64]


class _AnchorPass(NamedTuple):
    """A pass over the gaps between anchors.

    Attributes:
        words: Number of words in an anchor.
        max_copies: Maximum number of copies of an anchor in either side of the gap.
    """

    words: int
    max_copies: int


_ANCHOR_PASSES = (
    _AnchorPass(words=4, max_copies=1),
    _AnchorPass(words=4, max_copies=8),
    _AnchorPass(words=2, max_copies=8),
    _AnchorPass(words=1, max_copies=8),
)


class Content(Annotator):
    """Records the spans of the text that each extractor keeps as the main content.

    The output of an extractor is only used to find these spans. If an extractor fails, its entry in
    the column is null.
    """

    name = "content"
    version = 2
    columns = (CONTENT_SPANS,)
    settings = ("content_extractors", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self._extractors = {name: EXTRACTORS[name]() for name in config.content_extractors}

    def annotate(self, row: Row) -> Columns:
        if row.html is None:
            raise AnnotationError(NO_HTML)

        text = Text(row.text)
        spans: dict[str, list[Span] | None] = {}
        errors = []
        for name, extract in self._extractors.items():
            try:
                spans[name] = text.align_extract(extract(row.html))
            except Exception as error:  # extractors may raise anything
                spans[name] = None
                errors.append(f"{name}_{type(error).__name__}")

        if errors:
            raise AnnotationError(",".join(errors), columns={CONTENT_SPANS: spans})
        return {CONTENT_SPANS: spans}

    def fingerprint(self) -> str:
        return self.digest({name: version(name) for name in self._extractors})


def _make_resiliparse_extractor() -> Extractor:
    return lambda html: extract_plain_text(html, main_content=True, alt_texts=False)


def _make_trafilatura_extractor() -> Extractor:
    try:  # imported here because the import takes a second
        trafilatura = importlib.import_module("trafilatura")
    except ImportError as error:
        raise ConfigurationError(
            f"content_extractors: trafilatura cannot be imported ({error}); install what "
            "requirements.txt names, or set content_extractors=[resiliparse]"
        ) from error
    return lambda html: trafilatura.extract(html, fast=True, include_comments=False) or ""


EXTRACTORS: dict[str, Callable[[], Extractor]] = {
    "resiliparse": _make_resiliparse_extractor,
    "trafilatura": _make_trafilatura_extractor,
}
"""The functions that make an extractor, by its name."""


class Text:
    """Aligns extracts of a page with its text."""

    def __init__(self, text: str) -> None:
        self._text = text

        # Words alternate with separators; the first and the last word may be empty.
        chunks = _SEPARATOR.split(text)
        chunk_ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
        words = [word for word in chunks[::2] if word]
        self._ends = [end for word, end in zip(chunks[::2], chunk_ends[::2], strict=True) if word]
        self._starts = [end - len(word) for word, end in zip(words, self._ends, strict=True)]

        self._numbers: dict[str, int] = {}
        self._words = [self._numbers.setdefault(word, len(self._numbers)) for word in words]

    def align_extract(self, extract: str) -> list[Span]:
        """Returns the spans of the text that an extract contains, in order and disjoint.

        The extract must consist of parts of the text, mostly in its order; spaces and punctuation
        may differ. Spans begin and end with words and their adjacent punctuation. There are none if
        the extract is empty, or shares only single words with the text.
        """
        words = [self._numbers.get(word, -1) for word in _WORD.findall(extract)]
        if words == self._words:
            return [(0, len(self._text))] if words else []

        alignment = _Alignment(words, self._words)
        gaps = [_Gap(0, len(words), 0, len(self._words))]
        for anchor_pass in _ANCHOR_PASSES:
            unmatched: list[_Gap] = []
            for gap in gaps:
                unmatched += alignment.match_gap(gap, anchor_pass.words, anchor_pass.max_copies)
            gaps = unmatched

        if words:
            alignment.match_moved(min(_MOVED_RUN_WORDS, len(words)))
        return self._find_spans_of_words(alignment.is_matched)

    def _find_spans_of_words(self, is_matched: bytearray) -> list[Span]:
        """Returns the spans of runs of matched words, each with its adjacent punctuation.

        Args:
            is_matched: 1 for each matched word of the text.
        """
        text = self._text
        spans: list[Span] = []
        for first, after in _find_marked_ranges(is_matched, 1):
            start = self._starts[first]
            end = self._ends[after - 1]

            # A span reaches at most to the words around it, and to the span before it.
            floor = self._ends[first - 1] if first else 0
            if spans:
                floor = max(floor, spans[-1][1])
            ceiling = self._starts[after] if after < len(self._starts) else len(text)

            while start > floor and not text[start - 1].isspace():
                start -= 1
            while end < ceiling and not text[end].isspace():
                end += 1
            spans.append((start, end))
        return spans


class _Gap(NamedTuple):
    """Unmatched words between two anchors: a range of the extract and a range of the text."""

    extract_start: int
    extract_end: int
    text_start: int
    text_end: int


class _Alignment:
    """Matches the words of an extract with the words of a text; words are given as numbers.

    Attributes:
        is_matched: 1 for each word of the text that has been matched.
    """

    def __init__(self, extract_words: list[int], text_words: list[int]) -> None:
        self._extract_words = extract_words
        self._text_words = text_words
        self._is_used = bytearray(len(extract_words))
        self.is_matched = bytearray(len(text_words))

    def match_gap(self, gap: _Gap, count: int, max_copies: int) -> Iterator[_Gap]:
        """Matches the words of a gap at anchors and around them; yields the remaining gaps.

        Args:
            count: Number of words in an anchor.
            max_copies: Maximum number of copies of an anchor in either side of the gap.
        """
        extract_words = self._extract_words
        text_words = self._text_words
        extract_start, extract_end, text_start, text_end = gap
        # Among many words, single ones are often equal by chance.
        max_text_words = _MAX_SINGLE_WORD_RATIO * (extract_end - extract_start) + 2
        if count == 1 and text_end - text_start > max_text_words:
            return

        for extract_position, text_position in self._find_anchors(gap, count, max_copies):
            if extract_position < extract_start or text_position < text_start:
                continue  # the previous anchor was extended over this one

            while (
                extract_position > extract_start
                and text_position > text_start
                and extract_words[extract_position - 1] == text_words[text_position - 1]
            ):
                extract_position -= 1
                text_position -= 1
            if extract_position > extract_start and text_position > text_start:
                yield _Gap(extract_start, extract_position, text_start, text_position)

            limit = min(extract_end - extract_position, text_end - text_position)
            length = self._mark_equal_words(extract_position, text_position, limit)
            extract_start = extract_position + length
            text_start = text_position + length

        if extract_start < extract_end and text_start < text_end:
            yield _Gap(extract_start, extract_end, text_start, text_end)

    def _find_anchors(self, gap: _Gap, count: int, max_copies: int) -> list[tuple[int, int]]:
        """Returns the positions of a gap's anchors in the extract and in the text.

        If there are several copies in the text, the first one is used. In the gap before all other
        anchors it is the last one, because menus at the top of a page repeat titles of the content.
        Takes the arguments of `match_gap`.
        """
        extract_start, extract_end, text_start, text_end = gap
        extract_words = self._extract_words[extract_start:extract_end]
        text_words = self._text_words[text_start:text_end]

        if text_start > 0 or text_end == len(self._text_words):
            pairs = _find_rising_runs(extract_words, text_words, count, max_copies)
            return [
                (extract_start + extract_position, text_start + text_position)
                for extract_position, text_position in pairs
            ]

        # In the reversed lists, the last copy comes first.
        pairs = _find_rising_runs(extract_words[::-1], text_words[::-1], count, max_copies)
        return [
            (extract_end - count - extract_position, text_end - count - text_position)
            for extract_position, text_position in pairs[::-1]
        ]

    def match_moved(self, count: int) -> None:
        """Matches unmatched runs of `count` words in any order, each with its first free copy.

        Such runs have been moved by an extractor, or have too many copies to be anchors.
        """
        unused_spans = [
            (start, end)
            for start, end in _find_marked_ranges(self._is_used, 0)
            if end - start >= count
        ]
        positions = self._locate_runs(unused_spans, count)
        for start, end in unused_spans:
            matched_end = start
            runs = _slice_runs(self._extract_words[start:end], count)
            for extract_position, run in enumerate(runs, start):
                while extract_position >= matched_end and positions[run]:
                    text_position = positions[run].popleft()
                    if 1 not in self.is_matched[text_position : text_position + count]:
                        length = self._extend_run(extract_position, end, text_position)
                        matched_end = extract_position + length

    def _extend_run(self, extract_position: int, extract_end: int, text_position: int) -> int:
        """Matches equal words up to the end of an unused part; returns their number."""
        next_matched = self.is_matched.find(1, text_position)
        text_end = len(self._text_words) if next_matched < 0 else next_matched
        limit = min(extract_end - extract_position, text_end - text_position)
        return self._mark_equal_words(extract_position, text_position, limit)

    def _locate_runs(
        self, unused_spans: list[Span], count: int
    ) -> dict[tuple[int, ...], deque[int]]:
        """Lists the unmatched positions in the text of each run of the extract's unused parts."""
        positions: dict[tuple[int, ...], deque[int]] = {}
        for start, end in unused_spans:
            for run in _slice_runs(self._extract_words[start:end], count):
                positions[run] = deque()
        if not positions:
            return positions

        for start, end in _find_marked_ranges(self.is_matched, 0):
            runs = _slice_runs(self._text_words[start:end], count)
            for text_position, run in enumerate(runs, start):
                if run in positions:
                    positions[run].append(text_position)
        return positions

    def _mark_equal_words(self, extract_position: int, text_position: int, limit: int) -> int:
        """Marks equal words as matched, starting at a position in each list; returns their number.

        Args:
            limit: Maximum number of words.
        """
        extract_words = self._extract_words
        text_words = self._text_words
        length = 0
        while (
            length < limit
            and extract_words[extract_position + length] == text_words[text_position + length]
        ):
            length += 1

        self._is_used[extract_position : extract_position + length] = b"\1" * length
        self.is_matched[text_position : text_position + length] = b"\1" * length
        return length


def _find_marked_ranges(marks: bytearray, mark: int) -> Iterator[Span]:
    """Yields the ranges of consecutive entries equal to a mark.

    Args:
        marks: Entries that are 0 or 1.
        mark: 0 or 1.
    """
    start = marks.find(mark)
    while start >= 0:
        end = marks.find(1 - mark, start)
        if end < 0:
            end = len(marks)
        yield start, end
        start = marks.find(mark, end)


def _slice_runs(words: list[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yields every sequence of `count` consecutive words."""
    return zip(*(words[shift:] for shift in range(count)), strict=False)


def _find_rising_runs(
    extract_words: list[int], text_words: list[int], count: int, max_copies: int
) -> list[tuple[int, int]]:
    """Finds the longest sequence of common runs of `count` words that is in order in both lists.

    Runs with more than `max_copies` copies in either list are ignored.

    Returns:
        The positions of each run in the extract and in the text.
    """
    extract_hashes = _hash_runs(extract_words, count)
    text_hashes = _hash_runs(text_words, count)
    text_order = np.argsort(text_hashes, kind="stable")
    text_hashes = text_hashes[text_order]

    # For each run of the extract: the end of its copies in `text_order`, their number, and the
    # number of its copies in the extract.
    copies_end = np.searchsorted(text_hashes, extract_hashes, "right")
    text_copies = copies_end - np.searchsorted(text_hashes, extract_hashes, "left")
    _, run, copies = np.unique(extract_hashes, return_inverse=True, return_counts=True)
    extract_copies = copies[run]

    is_anchor = (text_copies > 0) & (text_copies <= max_copies) & (extract_copies <= max_copies)
    anchor_positions = np.flatnonzero(is_anchor)
    text_copies = text_copies[anchor_positions]
    copies_end = copies_end[anchor_positions]

    # Pairs of positions, sorted by the position in the extract. The pairs of one run go from its
    # last copy in the text to its first, so that a rising sequence has at most one of them.
    pairs_before = np.cumsum(text_copies) - text_copies
    nth_copy = np.arange(text_copies.sum()) - np.repeat(pairs_before, text_copies)
    extract_positions = np.repeat(anchor_positions, text_copies).tolist()
    text_positions = text_order[np.repeat(copies_end - 1, text_copies) - nth_copy].tolist()
    return [
        (extract_positions[pair], text_positions[pair])
        for pair in _find_longest_rise(text_positions)
    ]


def _hash_runs(words: list[int], count: int) -> _UInt64:
    """Hashes every sequence of `count` consecutive words."""
    numbers = np.array(words, np.int64).view(np.uint64)
    hashes = np.zeros(max(len(words) - count + 1, 0), np.uint64)
    for shift in range(count):
        hashes = (hashes ^ numbers[shift : shift + len(hashes)]) * _HASH_MULTIPLIER
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _find_longest_rise(values: list[int]) -> list[int]:
    """Returns the positions of the longest increasing subsequence, by patience sorting.

    If there are several, it is the one with the lowest values.
    """
    lowest_ends: list[int] = []  # lowest last value of a subsequence, by its length - 1
    end_positions: list[int] = []  # positions of `lowest_ends`
    predecessors: list[int] = []  # previous position in the subsequence of each position, or -1

    for position, value in enumerate(values):
        if not lowest_ends or value > lowest_ends[-1]:
            predecessors.append(end_positions[-1] if end_positions else -1)
            lowest_ends.append(value)
            end_positions.append(position)
            continue

        length = bisect_left(lowest_ends, value)
        predecessors.append(end_positions[length - 1] if length else -1)
        lowest_ends[length] = value
        end_positions[length] = position

    rising = []
    position = end_positions[-1] if end_positions else -1
    while position >= 0:
        rising.append(position)
        position = predecessors[position]
    return rising[::-1]

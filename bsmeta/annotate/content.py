"""The annotator of the main content: what extractors keep of a page, as spans of its text.

Extractors return text with other white space, bullets and separators, and without what they leave
out. Its words are matched with those of the text in order: words that occur once in both are
anchors (as in the "patience" diff), the longest sequence of anchors that is in order in both is
kept, and each is extended over the equal words around it. What lies between anchors is matched in
the same way with fewer words, so the time is that of sorting, whatever the texts.
"""

from __future__ import annotations

import importlib
import re
from bisect import bisect_left
from collections.abc import Callable
from importlib.metadata import version

from resiliparse.extract.html2text import extract_plain_text

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.charset import decode_html
from bsmeta.annotate.row import NO_HTML, AnnotationError, Columns, Row
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.metadata.content import COLUMN


class Content(Annotator):
    """The spans of the text that each extractor takes for the page's content.

    An extractor's own text is only used to find these spans. If an extractor fails, the column has
    null for it.
    """

    name = "content"
    columns = (COLUMN,)
    settings = ("content_extractors", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self._extract = {name: EXTRACTORS[name]() for name in config.content_extractors}

    def annotate(self, row: Row) -> Columns:
        if row.html is None:
            raise AnnotationError(NO_HTML)
        html = row.html if isinstance(row.html, str) else decode_html(row.html)
        text = Text(row.text)
        spans: dict[str, list[tuple[int, int]] | None] = {}
        errors = []
        for name, extract in self._extract.items():
            try:
                spans[name] = text.align(extract(html))
            except Exception as error:  # whatever an extractor does not foresee
                spans[name] = None
                errors.append(f"{name}_{type(error).__name__}")
        if errors:
            raise AnnotationError(",".join(errors), columns={COLUMN: spans})
        return {COLUMN: spans}

    def fingerprint(self) -> str:
        return self.digest({name: version(name) for name in self._extract})


Extract = Callable[[str], str]


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


_WORD = re.compile(r"\w+")
_ANCHOR_WORDS = (4, 2, 1)
_SINGLE_WORDS = 2.0  # an anchor of one word is trusted where the text has at most so many more

Span = tuple[int, int]
_Gap = tuple[int, int, int, int]


class Text:
    """A text with which extracts are aligned.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._places = [match.span() for match in _WORD.finditer(text)]
        self._words = [text[start:end] for start, end in self._places]

    def align(self, extract: str) -> list[Span]:
        """The spans of the text that an extract consists of.

        Args:
            extract: Parts of the text in its order, with any white space and punctuation.

        Returns:
            Start and end of each, in order, disjoint; they begin and end with words, and the
            punctuation that touches these.
        """
        words = self._words
        others = _WORD.findall(extract)
        if others == words:
            return [(0, len(self._text))] if words else []
        is_found = bytearray(len(words))
        gaps = [(0, len(others), 0, len(words))]
        for count in _ANCHOR_WORDS:
            gaps = [rest for gap in gaps for rest in _match(others, words, gap, count, is_found)]
        return self._spans(is_found)

    def _spans(self, is_found: bytearray) -> list[Span]:
        """The spans of the words found, each with the punctuation that touches it."""
        text, places = self._text, self._places
        spans: list[Span] = []
        number = is_found.find(1)
        while number >= 0:
            after = is_found.find(0, number)
            after = len(places) if after < 0 else after
            start, end = places[number][0], places[after - 1][1]
            floor = places[number - 1][1] if number else 0
            ceiling = places[after][0] if after < len(places) else len(text)
            floor = max(floor, spans[-1][1] if spans else 0)
            while start > floor and not text[start - 1].isspace():
                start -= 1
            while end < ceiling and not text[end].isspace():
                end += 1
            spans.append((start, end))
            number = is_found.find(1, after)
        return spans


def _match(
    others: list[str], words: list[str], gap: _Gap, count: int, is_found: bytearray
) -> list[_Gap]:
    """Marks the words of a gap that match; returns the gaps between them."""
    other, other_end, word, word_end = gap
    if count == 1 and word_end - word > _SINGLE_WORDS * (other_end - other) + 2:
        return []
    gaps = []
    for at, place in _anchors(others, words, gap, count):
        if at < other or place < word:
            continue  # within what the anchor before was extended over
        while at > other and place > word and others[at - 1] == words[place - 1]:
            at -= 1
            place -= 1
        if at > other and place > word:
            gaps.append((other, at, word, place))
        other, word = at, place
        while other < other_end and word < word_end and others[other] == words[word]:
            is_found[word] = 1
            other += 1
            word += 1
    if other < other_end and word < word_end:
        gaps.append((other, other_end, word, word_end))
    return gaps


def _anchors(others: list[str], words: list[str], gap: _Gap, count: int) -> list[tuple[int, int]]:
    """Places in both of what occurs once in both: the longest sequence that rises in both."""
    other, other_end, word, word_end = gap
    theirs = _once(others, other, other_end, count)
    ours = _once(words, word, word_end, count)
    both = [(at, ours[run]) for run, at in theirs.items() if at >= 0 and ours.get(run, -1) >= 0]
    lowest: list[int] = []  # the lowest end of a rising sequence of each length
    ends: list[int] = []  # and the pair that it is from
    before: list[int] = []
    for number, (_, place) in enumerate(both):
        length = bisect_left(lowest, place)
        before.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [place]
        ends[length : length + 1] = [number]
    rising = []
    number = ends[-1] if ends else -1
    while number >= 0:
        rising.append(both[number])
        number = before[number]
    return rising[::-1]


def _once(words: list[str], start: int, end: int, count: int) -> dict[tuple[str, ...], int]:
    """The place of each run of so many words; -1 if it occurs more than once."""
    places: dict[tuple[str, ...], int] = {}
    runs = zip(*(words[start + shift : end] for shift in range(count)), strict=False)
    for place, run in enumerate(runs, start):
        places[run] = -1 if run in places else place
    return places

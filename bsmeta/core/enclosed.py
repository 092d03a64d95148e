"""Replaces enclosed parts of a text, such as comments, in linear time.

A pattern such as `<!--.*?-->` takes quadratic time: for each opening without an end, it searches
the whole remaining text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

Span = tuple[int, int]

_BEFORE_TEXT: Span = (-1, -1)  # precedes every start position, so that the first call searches
_NOWHERE: Span = (sys.maxsize, sys.maxsize)  # follows every start position


class Finder:
    """Finds strings and patterns in a text from increasing start positions.

    However often it is called, it passes over the text only once for each string or pattern.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._next_spans: dict[str | re.Pattern[str], Span] = {}

    def find(self, target: str | re.Pattern[str], start: int) -> Span | None:
        """Returns the first span of a string or pattern from `start` on; None if there is none.

        Args:
            start: Position in the text; must not decrease between calls for the same target.
        """
        span = self._next_spans.get(target, _BEFORE_TEXT)
        if span[0] < start:
            span = self._search(target, start)
            self._next_spans[target] = span
        return None if span is _NOWHERE else span

    def _search(self, target: str | re.Pattern[str], start: int) -> Span:
        """Searches a text from `start` on; returns `_NOWHERE` if the target does not occur."""
        if isinstance(target, str):
            position = self._text.find(target, start)
            return _NOWHERE if position < 0 else (position, position + len(target))

        match = target.search(self._text, start)
        return _NOWHERE if match is None else match.span()


Replace = Callable[[re.Match[str], Finder], tuple[int, str] | None]
"""Callback that takes the match of an opening; returns the end of the enclosed part and its
replacement, or None if the part has no end."""


def replace_enclosed(text: str, opening: re.Pattern[str], replace: Replace) -> str:
    """Replaces the parts of a text that begin with an opening; openings inside a part are ignored.

    Args:
        opening: Must not match the last character of any replaced part.
        replace: Finds the end and the replacement of a part; see `Replace`.
    """
    finder = Finder(text)
    chunks: list[str] = []
    copied_to = 0
    for match in opening.finditer(text):
        start = match.start()
        if start < copied_to:
            continue

        replaced = replace(match, finder)
        if replaced is not None:
            end, replacement = replaced
            chunks += (text[copied_to:start], replacement)
            copied_to = end

    chunks.append(text[copied_to:])
    return "".join(chunks)


def remove_enclosed(text: str, opening: str, closing: str | re.Pattern[str]) -> str:
    """Removes each part from an opening to the first closing after it, including both."""

    def replace(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
        span = finder.find(closing, match.end())
        return None if span is None else (span[1], "")

    return replace_enclosed(text, re.compile(re.escape(opening)), replace)

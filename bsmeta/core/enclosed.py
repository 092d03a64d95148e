"""Replaces enclosed parts of a text, such as comments, in linear time.

A pattern such as `<!--.*?-->` takes quadratic time: it searches the remaining text again for each
opening without an end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

Span = tuple[int, int]

_BEFORE_TEXT: Span = (-1, -1)  # the first search begins after it
_NOWHERE: Span = (sys.maxsize, sys.maxsize)


class Finder:
    """Finds strings and patterns in a text from increasing start positions.

    It searches the text only once for each string or pattern, however often it is called.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str | re.Pattern[str], Span] = {}

    def find(self, target: str | re.Pattern[str], start: int) -> Span | None:
        """Returns the first span of a string or pattern from `start` on; None if there is none.

        Args:
            start: Must not decrease between calls for the same target.
        """
        span = self._next.get(target, _BEFORE_TEXT)
        if span[0] < start:
            span = self._next[target] = self._search(target, start)
        return None if span is _NOWHERE else span

    def _search(self, target: str | re.Pattern[str], start: int) -> Span:
        if isinstance(target, str):
            position = self._text.find(target, start)
            return _NOWHERE if position < 0 else (position, position + len(target))

        match = target.search(self._text, start)
        return _NOWHERE if match is None else match.span()


Replace = Callable[[re.Match[str], Finder], tuple[int, str] | None]
"""Callback for the match of an opening; returns the end of the enclosed part and its replacement,
or None if the part has no end."""


def replace_enclosed(text: str, opening: re.Pattern[str], replace: Replace) -> str:
    """Replaces the parts of a text that begin with an opening; openings inside a part are ignored.

    Args:
        opening: Must not match the last character of any replaced part.
        replace: Finds the end of a part; see `Replace`.
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

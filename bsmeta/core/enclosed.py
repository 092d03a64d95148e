"""Replacing what stands between an opening and its end, such as a comment, in linear time.

A pattern such as `<!--.*?-->` searches the rest of the text again for each opening without an end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

Span = tuple[int, int]

_BEFORE = -1, -1  # the text
_NOWHERE = sys.maxsize, sys.maxsize


class Finder:
    """Finds strings and patterns in a text, each from places that never decrease.

    The text is searched once for each, however many places there are.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str | re.Pattern[str], Span] = {}

    def find(self, wanted: str | re.Pattern[str], start: int) -> Span | None:
        """The first span from `start` on of a string or of a match; None if there is none."""
        span = self._next.get(wanted, _BEFORE)
        if span[0] < start:
            span = self._next[wanted] = self._search(wanted, start)
        return None if span is _NOWHERE else span

    def _search(self, wanted: str | re.Pattern[str], start: int) -> Span:
        if isinstance(wanted, str):
            place = self._text.find(wanted, start)
            return _NOWHERE if place < 0 else (place, place + len(wanted))
        match = wanted.search(self._text, start)
        return _NOWHERE if match is None else match.span()


Replace = Callable[[re.Match[str], Finder], tuple[int, str] | None]
"""The end of what a match opens, and its replacement; None if it has no end."""


def replace_enclosed(text: str, opening: re.Pattern[str], replace: Replace) -> str:
    """Replaces what begins with an opening; what lies within it opens nothing.

    An opening must not contain the last character of anything that is replaced.
    """
    finder = Finder(text)
    parts: list[str] = []
    done = 0
    for match in opening.finditer(text):
        start = match.start()
        if start < done:
            continue
        replaced = replace(match, finder)
        if replaced is not None:
            end, replacement = replaced
            parts += (text[done:start], replacement)
            done = end
    parts.append(text[done:])
    return "".join(parts)


def remove_enclosed(text: str, opening: str, closing: str | re.Pattern[str]) -> str:
    """Removes everything from an opening to the first closing after it, with both."""

    def replace(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
        span = finder.find(closing, match.end())
        return None if span is None else (span[1], "")

    return replace_enclosed(text, re.compile(re.escape(opening)), replace)

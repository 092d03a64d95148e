"""The sentences of a text, by rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, pairwise

_FULL_STOP = re.compile(r"\.")
# An end of a sentence, with the closing quotation marks and brackets after it.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”]*|\n\s*\n")
_LAST_WORD = re.compile(r"[\w.]+$")
_LOWER_CASE_FOLLOWS = re.compile(r"\s+[a-z]")
ABBREVIATIONS = frozenset(
    """adj adv al approx apr art aug ca cf ch co corp dec dept dr ed eds adm e.g eq est etc ex feb
    fig figs gen gov hon i.e inc jan jr jul jun lt ltd mar mr mrs ms mt no nos nov nr oct op p pp
    ph.d prof pt ref rev sec sen sep sept sr st u.k u.s viz vol vs z.b""".split()  # noqa: SIM905
)


def sentences(text: str, splitter: str) -> Iterator[tuple[int, int]]:
    """The spans of the sentences of a text.

    Args:
        splitter: `full_stops`: as published, from each full stop to the next, and no last sentence
            without one; `rules`: without the space around a sentence, and not split at
            abbreviations, initials and decimals.
    """
    if splitter == "full_stops":
        stops = (match.start() for match in _FULL_STOP.finditer(text))
        yield from pairwise(chain([0], stops))
        return
    start = 0
    for match in chain(_SENTENCE_END.finditer(text), [None]):
        end = len(text) if match is None else match.end()
        if match is not None and _is_abbreviation(text, start, match):
            continue
        sentence = text[start:end]
        stripped = sentence.strip()
        if stripped:
            begin = start + len(sentence) - len(sentence.lstrip())
            yield begin, begin + len(stripped)
        start = end


def _is_abbreviation(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a full stop belongs to an abbreviation or an initial, or the sentence continues."""
    if match.group() != ".":
        return False
    word = _LAST_WORD.search(text, start, match.start())
    if word is not None and word.group().lower() in ABBREVIATIONS:
        return True
    is_initial = word is not None and len(word.group()) == 1 and word.group().isupper()
    return is_initial or _LOWER_CASE_FOLLOWS.match(text, match.end()) is not None

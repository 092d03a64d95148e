"""What a system changes in a text, with character offsets: for people, programs and `patch`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from bsmeta.tasks.spelling.alignment import word_groups
from bsmeta.tasks.spelling.text import Span, words

_WRONG, _RIGHT, _FLAGGED = "9;31", "32", "4;31"  # struck out in red, green, underlined in red
MOST_CELLS = 1 << 24
"""Pairs of characters up to which a run of changed words is aligned; a longer run is one change."""


@dataclass(frozen=True)
class Change:
    """A part of a text in which something is wrong.

    Attributes:
        start: Where it begins in the text, in characters.
        end: Where it ends (exclusive).
        text: What is there.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Correction(Change):
    """A changed part of a text; `correction` is what belongs there."""

    correction: str


@dataclass(frozen=True)
class Flag(Change):
    """A word (or a text) that is flagged as wrong, and the probability that it is."""

    probability: float


def find_corrections(text: str, corrected: str) -> list[Correction]:
    """The changes of words from a text to its correction; whitespace is that of the text.

    Words are aligned by their edit distance, and runs of changed words by characters: each changed
    word is a correction, and words that are merged or split together are one.
    """
    old, new = words(text), corrected.split()
    blocks = Levenshtein.opcodes([text[start:end] for start, end in old], new)
    found = []
    for block in _runs(blocks):
        spans, replacements = old[block.source], new[block.destination]
        if not spans:
            found.append(_inserted(text, old, block.source.start, replacements))
        else:
            found += _replaced(text, spans, replacements)
    return [change for change in found if change.text != change.correction]


def _replaced(
    text: str, spans: Sequence[Span], replacements: Sequence[str]
) -> Iterator[Correction]:
    """The corrections of words that others replace."""
    source = " ".join(text[start:end] for start, end in spans)
    target = " ".join(replacements)
    groups = [(range(len(spans)), range(len(replacements)))]
    if replacements and len(source) * len(target) <= MOST_CELLS:
        groups = word_groups(source, target)
    for own, became in groups:
        start, end = spans[own.start].start, spans[own.stop - 1].end
        new = " ".join(replacements[became.start : became.stop])
        yield Correction(start, end, text[start:end], new)


@dataclass(frozen=True)
class _Run:
    """Neighboring edits of words: which words of the text, and of its correction."""

    source: slice
    destination: slice


def _runs(blocks: Iterable[Any]) -> Iterator[_Run]:
    """Joins edits that follow each other without an equal word between them."""
    run: _Run | None = None
    for block in blocks:
        if block.tag == "equal":
            if run is not None:
                yield run
            run = None
        else:
            source = block.src_start if run is None else run.source.start
            destination = block.dest_start if run is None else run.destination.start
            run = _Run(slice(source, block.src_end), slice(destination, block.dest_end))
    if run is not None:
        yield run


def _inserted(text: str, old: Sequence[Span], before: int, added: Sequence[str]) -> Correction:
    """Added words, with a space on the side of a word of the text."""
    joined = " ".join(added)
    if before:
        at = old[before - 1].end
        return Correction(at, at, "", f" {joined}")
    at = old[0].start if old else len(text)
    return Correction(at, at, "", f"{joined} " if old else joined)


def apply_corrections(text: str, corrections: Iterable[Correction]) -> str:
    """The corrected text.

    Args:
        text: The text.
        corrections: Its corrections, in order.
    """
    parts, at = [], 0
    for change in corrections:
        parts += [text[at : change.start], change.correction]
        at = change.end
    return "".join([*parts, text[at:]])


def joined(lines: Sequence[str], found: Iterator[list[Correction]]) -> list[Correction]:
    """The corrections of the lines of a text, with their places in the text."""
    at, moved = 0, []
    for line, own in zip(lines, found, strict=False):
        moved += [
            Correction(at + change.start, at + change.end, change.text, change.correction)
            for change in own
        ]
        at += len(line)
    return moved


def restricted(
    text: str, corrections: Iterable[Correction], flags: Sequence[bool] | np.ndarray
) -> list[Correction]:
    """Those of the corrections all of whose words may be changed.

    Args:
        text: The text.
        corrections: Its corrections; an inserted word changes none, and is left out.
        flags: Whether each word of the text may be changed.
    """
    spans = words(text)
    kept = []
    for change in corrections:
        touched = [
            bool(flag)
            for (start, end), flag in zip(spans, flags, strict=True)
            if start < change.end and change.start < end
        ]
        if touched and all(touched):
            kept.append(change)
    return kept


def highlighted(text: str, changes: Iterable[Change]) -> str:
    """The text for a terminal: what is wrong in red, its correction after it in green."""
    parts, at = [], 0
    for change in changes:
        parts.append(text[at : change.start])
        if isinstance(change, Correction):
            parts += [_styled(change.text, _WRONG), _styled(change.correction, _RIGHT)]
        else:
            parts.append(_styled(change.text, _FLAGGED))
        at = change.end
    return "".join([*parts, text[at:]])


def _styled(text: str, style: str) -> str:
    """Text in a style of terminals (ECMA-48, `SGR`); line ends are outside of it."""
    lines = text.splitlines(keepends=True)
    bare = [line.rstrip("\r\n") for line in lines]
    return "".join(
        f"\x1b[{style}m{own}\x1b[0m{line[len(own) :]}" if own else line
        for own, line in zip(bare, lines, strict=True)
    )


def as_record(text: str, changes: Sequence[Any], *, corrects: bool) -> dict[str, Any]:
    """What a system makes of a text, as columns: the corrected text if it corrects; the changes."""
    found = [asdict(change) for change in changes]
    if not corrects:
        return {"changes": found}
    return {"corrected": apply_corrections(text, changes), "changes": found}


def render(text: str, changes: Sequence[Any], form: str, name: str, *, corrects: bool) -> str:
    """The changes of a text in one of the forms of `predict.py`.

    Args:
        text: The text.
        changes: Its changes, in order.
        form: One of those of the task (`ChangesText.forms`).
        name: The name of the text.
        corrects: Whether the changes are corrections, not flags.
    """
    if form == "color":
        return highlighted(text, changes)
    if form == "json":
        record = {"text": text, **as_record(text, changes, corrects=corrects)}
        return json.dumps(record, ensure_ascii=False) + "\n"
    corrected = apply_corrections(text, changes)
    return corrected if form == "text" else unified_diff(text, corrected, name)


def unified_diff(text: str, corrected: str, name: str) -> str:
    """The changes as a unified diff of lines, which `patch` applies; empty if there are none."""
    old, new = (_lines(content) for content in (text, corrected))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    )


def _lines(text: str) -> list[str]:
    """The lines of a text with their ends, which only \\n is, as for `patch`."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + [lines[-1]] * bool(lines[-1])

"""What a system changes in a text, with character offsets: for people, programs and `patch`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein
from rich.text import Text

from bsmeta.config.errors import ConfigurationError
from bsmeta.tasks.spelling.text import Span, words

_WRONG, _RIGHT, _FLAGGED = "red strike", "green", "red underline"


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

    Words are aligned by their edit distance. Where as many words replace others, each is a
    correction; other runs of words, which are merged or split, are one.
    """
    old, new = words(text), corrected.split()
    blocks = Levenshtein.opcodes([text[start:end] for start, end in old], new)
    found = []
    for block in _runs(blocks):
        spans, replacements = old[block.source], new[block.destination]
        if len(spans) == len(replacements):
            pairs = zip(spans, replacements, strict=True)
            found += [_correction(text, span, word) for span, word in pairs]
        elif spans:
            whole = Span(spans[0].start, spans[-1].end)
            found.append(_correction(text, whole, " ".join(replacements)))
        else:
            found.append(_inserted(text, old, block.source.start, replacements))
    return [change for change in found if change.text != change.correction]


@dataclass(frozen=True)
class _Run:
    """Neighbouring edits of words: which words of the text, and of its correction."""

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


def _correction(text: str, span: Span, replacement: str) -> Correction:
    return Correction(span.start, span.end, text[span.start : span.end], replacement)


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


def colour(text: str, changes: Iterable[Change]) -> Text:
    """The text for a terminal: what is wrong in red, its correction after it in green."""
    found, at = Text(), 0
    for change in changes:
        found.append(text[at : change.start])
        if isinstance(change, Correction):
            found.append(change.text, _WRONG).append(change.correction, _RIGHT)
        else:
            found.append(change.text, _FLAGGED)
        at = change.end
    return found.append(text[at:])


def as_record(text: str, changes: Sequence[Change]) -> dict[str, Any]:
    """The text and its changes, for JSON; with the corrected text, if they are corrections."""
    record: dict[str, Any] = {"text": text}
    corrections = [change for change in changes if isinstance(change, Correction)]
    if len(corrections) == len(changes):
        record["corrected"] = apply_corrections(text, corrections)
    return {**record, "changes": [asdict(change) for change in changes]}


def render(text: str, changes: Sequence[Change], form: str, name: str) -> Text | str:
    """The changes of a text as `colour`, `json` or `diff`.

    Raises:
        ConfigurationError: If a diff of flags is asked for, which correct nothing.
    """
    if form == "colour":
        return colour(text, changes)
    if form == "json":
        return json.dumps(as_record(text, changes), ensure_ascii=False) + "\n"
    corrections = [change for change in changes if isinstance(change, Correction)]
    if len(corrections) < len(changes):
        raise ConfigurationError(
            "show=diff: the model flags words and corrects none; expected colour or json", ["show"]
        )
    return unified_diff(text, apply_corrections(text, corrections), name)


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

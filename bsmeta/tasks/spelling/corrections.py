"""What a system changes in a text, with character offsets, and how its corrections are counted.

They are counted as in the published evaluation of NSC (github.com/ad-freiburg/spell_check, after M.
Hertel, "Neural Language Models for Spelling Correction", master's thesis, Freiburg 2019): texts are
aligned by characters, where a space is inserted or deleted but never replaced, so that words that a
system merges or splits are counted.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from bsmeta.data.text.sentences import Span, words

_SPACE = ord(" ")

_WRONG, _RIGHT, _FLAGGED = "9;31", "32", "4;31"  # struck out in red, green, underlined in red

MOST_CELLS = 1 << 24
"""Pairs of characters up to which a run of changed words is aligned; a longer run is one change."""


class _Edit(NamedTuple):
    """An edit of a character: its operation, and the positions in both texts."""

    operation: Literal["insert", "delete", "replace"]
    source: int
    target: int


class Corrections(NamedTuple):
    """Numbers of words of one line; `changed`: those that the prediction changes at all."""

    true_positives: int
    false_positives: int
    false_negatives: int
    changed: int


def count_corrections(corrupt: str, predicted: str, correct: str) -> Corrections:
    """Counts the words of one corrected line.

    Errors are words of the correct line that differ in the corrupt one: true positives if the
    prediction has them, otherwise false negatives. False positives are words of the corrupt line
    that the prediction changes, unless all that became of them is in the correct line. (So a word
    that is only left out is a false negative, or none.)

    Args:
        corrupt: The line with errors; its words, as those of the others, separated by one space.
        predicted: The line as the system corrected it.
        correct: The line without errors.
    """
    changes = list(_edits(corrupt, predicted))
    errors = _words_edited(_edits(corrupt, correct), corrupt, correct)[1]
    changed = _words_edited(changes, corrupt, predicted)[0]
    in_predicted, in_correct = matching_blocks(predicted.split(), correct.split())
    right = _words_that_became(in_predicted, changes, corrupt, predicted)
    return Corrections(
        true_positives=len(errors & in_correct),
        false_positives=len(changed - right),
        false_negatives=len(errors - in_correct),
        changed=len(changed),
    )


def _edits(source: str, target: str) -> Iterator[_Edit]:
    """The edits of an optimal alignment, from the last to the first.

    Among equally good alignments: as in the published code, going backwards, a deletion comes
    before an insertion, and that before a match or a replacement.
    """
    if source == target:
        return
    costs = edit_costs(source, target)
    i, j = len(source), len(target)
    while i or j:
        cost = costs[i, j]
        if i and costs[i - 1, j] + 1 == cost:
            i -= 1
            yield _Edit("delete", i, j)
        elif j and costs[i, j - 1] + 1 == cost:
            j -= 1
            yield _Edit("insert", i, j)
        else:
            i, j = i - 1, j - 1
            if source[i] != target[j]:
                yield _Edit("replace", i, j)


def edit_costs(source: str, target: str) -> np.ndarray:
    """Edit distances of all prefixes, where spaces are not replaced: int32 [source+1, target+1]."""
    letters = np.fromiter(map(ord, target), dtype=np.int32, count=len(target))
    columns = np.arange(len(target) + 1, dtype=np.int32)
    # Two is as much as a deletion and an insertion, so a replacement by a space never pays.
    replaced = np.where(letters == _SPACE, 2, 1).astype(np.int32)
    costs = np.empty((len(source) + 1, len(target) + 1), dtype=np.int32)
    costs[0] = columns
    for i, character in enumerate(map(ord, source), start=1):
        previous, row = costs[i - 1], costs[i]
        substitution = np.where(letters == character, 0, 2 if character == _SPACE else replaced)
        row[0] = i
        np.minimum(previous[1:] + 1, previous[:-1] + substitution, out=row[1:])
        # Insertions: the least cost to the left, plus the distance to there.
        row[:] = np.minimum.accumulate(row - columns) + columns
    return costs


def _word_numbers(text: str) -> list[int]:
    """The index of the word at each position of a text and at its end; a space is the last part of
    the word before it.
    """
    return [0, *accumulate(character == " " for character in text)]


def _words_edited(
    edits: Iterator[_Edit] | list[_Edit], source: str, target: str
) -> tuple[set[int], set[int]]:
    """The indices of the edited words of the source and of the target.

    A deleted space concerns both words around it in the source; an inserted one, in the target.
    """
    in_source, in_target = _word_numbers(source), _word_numbers(target)
    sources, targets = set(), set()
    for edit in edits:
        sources.add(in_source[edit.source])
        targets.add(in_target[edit.target])
        if edit.operation == "delete" and source[edit.source] == " ":
            sources.add(in_source[edit.source] + 1)
        if edit.operation == "insert" and target[edit.target] == " ":
            targets.add(in_target[edit.target] + 1)
    return sources, targets


def matching_blocks(predicted: list[str], correct: list[str]) -> tuple[set[int], set[int]]:
    """The indices of the words of a longest common subsequence, in each of two lists of words.

    Among equally long ones: as in the published code, going backwards, both words are passed before
    one of the correct line alone, and that before one of the predicted line alone.
    """
    lengths = _common_lengths(predicted, correct)
    in_predicted, in_correct = set(), set()
    i, j = len(predicted), len(correct)
    while i and j:
        is_match = predicted[i - 1] == correct[j - 1]
        if lengths[i - 1, j - 1] + is_match == lengths[i, j]:
            i, j = i - 1, j - 1
            if is_match:
                in_predicted.add(i)
                in_correct.add(j)
        elif lengths[i, j - 1] == lengths[i, j]:
            j -= 1
        else:
            i -= 1
    return in_predicted, in_correct


def _common_lengths(predicted: list[str], correct: list[str]) -> np.ndarray:
    """Lengths of the longest common subsequences of all prefixes: int32 [predicted + 1,
    correct + 1].
    """
    numbers = {word: number for number, word in enumerate(dict.fromkeys(correct))}
    words = np.array([numbers[word] for word in correct], np.int32)
    lengths = np.zeros((len(predicted) + 1, len(correct) + 1), np.int32)
    for i, word in enumerate(predicted, start=1):
        matched = lengths[i - 1, :-1] + (words == numbers.get(word, -1))
        np.maximum.accumulate(np.maximum(lengths[i - 1, 1:], matched), out=lengths[i, 1:])
    return lengths


def _words_that_became(
    matching: set[int], edits: list[_Edit], corrupt: str, predicted: str
) -> set[int]:
    """The words of the corrupt line that became, merged or split, only words in `matching`."""
    groups = _groups(edits, corrupt, predicted)
    return {word for old, new in groups if matching.issuperset(new) for word in old}


def word_groups(source: str, target: str) -> list[tuple[range, range]]:
    """Which words of a text became which of another: one each, unless words are merged or split.

    Args:
        source: Words, separated by one space; at least one.
        target: The same.
    """
    return [*_groups(list(_edits(source, target)), source, target)]


def _groups(edits: list[_Edit], source: str, target: str) -> Iterator[tuple[range, range]]:
    numbers = _word_numbers(source)
    merged, splits = set(), [0] * (numbers[-1] + 1)
    for edit in edits:
        word = numbers[edit.source]
        if edit.operation == "delete" and source[edit.source] == " ":
            merged.add(word)
        if edit.operation == "insert" and target[edit.target] == " ":
            splits[word] += 1
    first = start = end = 0
    for word in range(numbers[-1] + 1):
        end += splits[word]
        if word in merged:
            continue
        end += 1
        yield range(first, word + 1), range(start, end)
        first, start = word + 1, end


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

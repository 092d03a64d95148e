"""How a correction is counted: which words were wrong, which were changed, which are right.

As in the published evaluation of NSC (github.com/ad-freiburg/spell_check, after M. Hertel, "Neural
Language Models for Spelling Correction", master's thesis, Freiburg 2019): texts are aligned by
characters, where a space is inserted or deleted but never replaced, so that words that a system
merges or splits are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

_SPACE = ord(" ")


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

"""What a system changes in a text, with character offsets, and how its corrections are counted.

They are counted as in the published evaluation of NSC (github.com/ad-freiburg/spell_check, after M.
Hertel, "Neural Language Models for Spelling Correction", master's thesis, Freiburg 2019): texts are
aligned by characters, where a space is inserted or deleted but never replaced, so that words that a
system merges or splits are counted. Every metric is a ratio of sums over lines, so the bootstrap of
`bsmeta.report.inference` applies, and two systems can be compared on the same draws.
"""

from __future__ import annotations

import difflib
import io
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.core.printable import printable
from bsmeta.data.text.sentences import Span, words
from bsmeta.report.inference import Estimate, central, resampled

_SPACE = ord(" ")

_WRONG, _RIGHT, _FLAGGED = "9;31", "32", "4;31"  # struck out in red, green, underlined in red

MOST_CELLS = 1 << 24
"""Pairs of characters up to which a run of changed words is aligned; a longer run is one change."""


_BLOCK = 64  # chunks that are aligned together


class _Edit(NamedTuple):
    """An edit of a character: its operation, and the positions in both texts."""

    operation: str
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
    that is only left out is a false negative, or none.) Words are separated by one space.
    """
    changes = list(_edits(corrupt, predicted))
    errors = _words_edited(_edits(corrupt, correct), corrupt, correct)[1]
    changed = _words_edited(changes, corrupt, predicted)[0]
    in_predicted, in_correct = matching_blocks(predicted.split(), correct.split())
    groups = _groups(changes, corrupt, predicted)
    right = {word for old, new in groups if in_predicted.issuperset(new) for word in old}
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


def _words_edited(edits: Iterable[_Edit], source: str, target: str) -> tuple[set[int], set[int]]:
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
    numbers = {word: number for number, word in enumerate(dict.fromkeys(correct))}
    words = np.array([numbers[word] for word in correct], np.int32)
    # The lengths of the longest common subsequences of all prefixes.
    lengths = np.zeros((len(predicted) + 1, len(correct) + 1), np.int32)
    for i, word in enumerate(predicted, start=1):
        matched = lengths[i - 1, :-1] + (words == numbers.get(word, -1))
        np.maximum.accumulate(np.maximum(lengths[i - 1, 1:], matched), out=lengths[i, 1:])
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


def word_groups(source: str, target: str) -> list[tuple[range, range]]:
    """Which words of a text became which of another: one each, unless words are merged or split.
    Words are separated by one space; there is at least one.
    """
    return [*_groups(_edits(source, target), source, target)]


def _groups(edits: Iterable[_Edit], source: str, target: str) -> Iterator[tuple[range, range]]:
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
    """A part of a text in which something is wrong."""

    start: int  # in characters
    end: int  # exclusive
    text: str  # what is there


@dataclass(frozen=True)
class Correction(Change):
    """A changed part of a text."""

    correction: str  # what belongs there


@dataclass(frozen=True)
class Flag(Change):
    """A word (or a text) that is flagged as wrong."""

    probability: float  # that it is


def find_corrections(text: str, corrected: str) -> list[Correction]:
    """The changes of words from a text to its correction; whitespace is that of the text.

    Words are aligned by their edit distance, and runs of changed words by characters: each changed
    word is a correction, and words that are merged or split together are one.
    """
    old, new = words(text), corrected.split()
    blocks = Levenshtein.opcodes([text[start:end] for start, end in old], new)
    found: list[Correction] = []
    for is_equal, run in groupby(blocks, lambda block: block.tag == "equal"):
        if is_equal:
            continue
        edits = [*run]
        start, spans = edits[0].src_start, old[edits[0].src_start : edits[-1].src_end]
        replacements = new[edits[0].dest_start : edits[-1].dest_end]
        if spans:
            found += _replaced(text, spans, replacements)
        else:
            found.append(_inserted(text, old, start, replacements))
    return [change for change in found if change.text != change.correction]


def align_chunks(chunks: Sequence[str], corrected: Sequence[str]) -> list[Correction]:
    """The changes from the chunks of a text, which joined are the text, to their corrections.

    Blocks of chunks are aligned one after the other, because the time of an alignment grows with
    the square of the number of words.
    """
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(chunks), _BLOCK)]
    texts = ["".join(chunks[block]) for block in blocks]
    found = (
        find_corrections(text, " ".join(corrected[block]))
        for text, block in zip(texts, blocks, strict=True)
    )
    return joined(texts, found)


def _replaced(
    text: str, spans: Sequence[Span], replacements: Sequence[str]
) -> Iterator[Correction]:
    source = " ".join(text[start:end] for start, end in spans)
    target = " ".join(replacements)
    groups = [(range(len(spans)), range(len(replacements)))]
    if replacements and len(source) * len(target) <= MOST_CELLS:
        groups = word_groups(source, target)
    for own, became in groups:
        start, end = spans[own.start].start, spans[own.stop - 1].end
        new = " ".join(replacements[became.start : became.stop])
        yield Correction(start, end, text[start:end], new)


def _inserted(text: str, old: Sequence[Span], before: int, added: Sequence[str]) -> Correction:
    """Added words, with a space on the side of a word of the text."""
    joined = " ".join(added)
    if before:
        at = old[before - 1].end
        return Correction(at, at, "", f" {joined}")
    at = old[0].start if old else len(text)
    return Correction(at, at, "", f"{joined} " if old else joined)


def apply_corrections(text: str, corrections: Iterable[Correction]) -> str:
    """The corrected text; the corrections are in order."""
    parts, at = [], 0
    for change in corrections:
        parts += [text[at : change.start], change.correction]
        at = change.end
    return "".join([*parts, text[at:]])


def joined(lines: Sequence[str], found: Iterator[list[Correction]]) -> list[Correction]:
    """The corrections of the lines of a text, with their places in the text."""
    at, moved = 0, []
    for line, own in zip(lines, found, strict=False):
        moved += [replace(change, start=at + change.start, end=at + change.end) for change in own]
        at += len(line)
    return moved


def restricted(
    text: str, corrections: Iterable[Correction], flags: Sequence[bool] | np.ndarray
) -> list[Correction]:
    """Those of the corrections all of whose words may be changed, as flags say for each word of the
    text; an inserted word changes none, and is left out.
    """
    spans = words(text)
    assert len(spans) == len(flags)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    kept = []
    for change in corrections:
        touched = flags[bisect_right(ends, change.start) : bisect_left(starts, change.end)]
        if len(touched) and all(touched):
            kept.append(change)
    return kept


def highlighted(text: str, changes: Iterable[Change]) -> str:
    """The text for a terminal, printable: errors in red, each correction after it in green."""
    parts, at = [], 0
    for change in changes:
        parts.append(printable(text[at : change.start]))
        if isinstance(change, Correction):
            parts += [_styled(change.text, _WRONG), _styled(change.correction, _RIGHT)]
        else:
            parts.append(_styled(change.text, _FLAGGED))
        at = change.end
    return "".join([*parts, printable(text[at:])])


def _styled(text: str, style: str) -> str:
    """Text in a style of terminals (ECMA-48, `SGR`); line ends are outside of it."""
    return re.sub(r"[^\r\n]+", lambda line: f"\x1b[{style}m{line[0]}\x1b[0m", printable(text))


def as_record(text: str, changes: Sequence[Any], *, corrects: bool) -> dict[str, Any]:
    """What a system makes of a text, as columns: the corrected text if it corrects; the changes."""
    found = [asdict(change) for change in changes]
    if not corrects:
        return {"changes": found}
    return {"corrected": apply_corrections(text, changes), "changes": found}


def render(text: str, changes: Sequence[Any], form: str, name: str, *, corrects: bool) -> str:
    """The changes of a text in one of the forms of the task (`ChangesText.forms`) for `predict.py`;
    `corrects`: whether they are corrections, not flags.
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
    # A line ends with \n only, as for `patch`.
    old, new = (io.StringIO(content, newline="\n").readlines() for content in (text, corrected))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    )


@dataclass(frozen=True)
class Counts:
    """What a system got right and wrong in each line; float64 [lines] each."""

    true_positives: np.ndarray  # errors that it found, or corrected
    false_positives: np.ndarray  # correct units that it flagged; words that it changed wrongly
    false_negatives: np.ndarray  # errors that it missed
    flagged: np.ndarray  # units that it flagged; all words that it changed
    units: np.ndarray  # words, or lines, that it judged
    distance: np.ndarray  # normalized edit distance to the correct text; 0 for detection

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> Counts:
        """Counts from one row per line, with the values in the order of the attributes."""
        return cls(*np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls))).T)

    @property
    def precision(self) -> float:
        """Share of the flagged units that are errors; 0 if none is flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the errors that are found; 0 if there are none."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall over all units (micro); 0 without any error."""
        return _ratio(*self.f1_terms)

    @property
    def f1_terms(self) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of F1 per line: float64 [lines] each."""
        found = 2 * self.true_positives
        return found, found + self.false_positives + self.false_negatives

    @property
    def sequence_f1(self) -> float:
        """Mean of the F1 of each line, as the published evaluation of corrections averages it: 1
        for a line without errors and changes, 0 for another line without a true positive.
        """
        top, bottom = self.f1_terms
        errors = self.true_positives + self.false_negatives
        is_untouched = (errors == 0) & (self.flagged == 0)
        rows = np.where(is_untouched, 1.0, top / np.maximum(bottom, 1))
        return float(rows.mean()) if len(rows) else 0.0

    @property
    def accuracy(self) -> float:
        """Share of the units that are judged right, for detection."""
        return _ratio(self.units - self.false_positives - self.false_negatives, self.units)

    @property
    def mean_distance(self) -> float:
        """Mean normalized edit distance of the lines (edit distance / length of the longer)."""
        return float(self.distance.mean()) if len(self.distance) else 0.0

    @property
    def flagged_rate(self) -> float:
        """Share of the units that are flagged: on clean text, the rate of false alarms."""
        return _ratio(self.flagged, self.units)


def detection_counts(
    predicted: Sequence[Sequence[int]], correct: Sequence[Sequence[int]]
) -> Counts:
    """Counts of error detection, from flags and labels (1: an error): per line those of its words,
    or one for the whole line.

    Raises:
        DataError: If the number of lines, or of flags in a line, differs.
    """
    _check_lines(predicted=len(predicted), correct=len(correct))
    rows = []
    for number, (flags, labels) in enumerate(zip(predicted, correct, strict=True), start=1):
        if len(flags) != len(labels):
            raise DataError(
                f"line {number} has {len(flags)} predictions, but {len(labels)} labels; expected "
                "one label (0 or 1) for each word"
            )
        pairs = list(zip(map(bool, flags), map(bool, labels), strict=True))
        found, alarms = pairs.count((True, True)), pairs.count((True, False))
        missed = pairs.count((False, True))
        rows.append((found, alarms, missed, found + alarms, len(pairs), 0))
    return Counts.from_rows(rows)


def correction_counts(
    corrupt: Sequence[str], predicted: Sequence[str], correct: Sequence[str]
) -> Counts:
    """Counts of spelling correction.

    Whitespace at the ends of a line, and its amount between words, does not matter. The units are
    the words of the corrupt line.

    Raises:
        DataError: If the number of lines differs.
    """
    _check_lines(corrupt=len(corrupt), predicted=len(predicted), correct=len(correct))
    rows = []
    for lines in zip(corrupt, predicted, correct, strict=True):
        wrong, guess, right = (" ".join(line.split()) for line in lines)
        counts = count_corrections(wrong, guess, right)
        distance = Levenshtein.normalized_distance(guess, right)
        rows.append((*counts, len(wrong.split()), distance))
    return Counts.from_rows(rows)


def compare_f1(
    systems: Sequence[Counts], *, resamples: int, seed: int
) -> tuple[list[Estimate], list[Estimate]]:
    """F1 of each system, and that of the first minus its own, on the same lines, with 95% bootstrap
    intervals over the lines.
    """
    tops, bottoms = zip(*(counts.f1_terms for counts in systems), strict=True)
    draws = resampled(np.stack(tops), np.stack(bottoms), resamples=resamples, seed=seed)
    columns = [(counts.f1, draws[:, n]) for n, counts in enumerate(systems)]
    first, first_draws = columns[0]
    return (
        [Estimate(f1, central(own)) for f1, own in columns],
        [Estimate(first - f1, central(first_draws - own)) for f1, own in columns],
    )


def _ratio(top: np.ndarray, bottom: np.ndarray) -> float:
    total = float(bottom.sum())
    return float(top.sum()) / total if total else 0.0


def _check_lines(**lines: int) -> None:
    if len(set(lines.values())) > 1:
        found = ", ".join(f"{name}: {count}" for name, count in lines.items())
        raise DataError(f"the numbers of lines differ ({found}); expected the same number of each")

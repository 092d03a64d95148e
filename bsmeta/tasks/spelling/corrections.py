"""The changes of a text by a system, with character offsets, and the scores of its corrections.

The scores follow the published evaluation of NSC (github.com/ad-freiburg/spell_check, after
M. Hertel, "Neural Language Models for Spelling Correction", master's thesis, Freiburg 2019): texts
are aligned by characters, where a space is inserted or deleted but never replaced, so that words
that a system merges or splits are counted. Every metric is a ratio of sums over lines, so the
bootstrap of `bsmeta.report.inference` applies, and two systems can be compared on the same draws.
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
from bsmeta.core.printable import make_printable
from bsmeta.data.text.sentences import Span, find_words
from bsmeta.report.inference import Estimate, compute_central_interval, resample_ratios

_SPACE = ord(" ")

# Styles of terminals, as parameters of `SGR` (ECMA-48).
_WRONG = "9;31"  # struck out, red
_RIGHT = "32"  # green
_FLAGGED = "4;31"  # underlined, red

MAX_CELLS = 1 << 24
"""Cells of the table of an alignment by characters; a longer run of changed words is one change."""

_BLOCK_CHUNKS = 64  # chunks that are aligned together


class _Edit(NamedTuple):
    """An edit of a character."""

    operation: str  # "delete", "insert" or "replace"
    source: int  # the position in the source
    target: int  # the position in the target


class Corrections(NamedTuple):
    """The outcomes of the correction of one line, in words; see `count_corrections`."""

    true_positives: int
    false_positives: int
    false_negatives: int
    changed: int  # words of the corrupt line that the prediction changes, rightly or wrongly


def count_corrections(corrupt: str, predicted: str, correct: str) -> Corrections:
    """Counts the words of one corrected line.

    Errors are words of the correct line that differ in the corrupt one: true positives if the
    prediction has them, otherwise false negatives. False positives are words of the corrupt line
    that the prediction changes, unless all words that replace them are in the correct line. (So a
    word that is only deleted is a false negative, or not counted.)

    Args:
        corrupt, predicted, correct: The versions of the line, with words separated by one space.
    """
    changes = list(_find_edits(corrupt, predicted))
    errors = _find_edited_words(_find_edits(corrupt, correct), corrupt, correct).target
    changed = _find_edited_words(changes, corrupt, predicted).source
    in_predicted, in_correct = find_matching_words(predicted.split(), correct.split())

    changed_rightly: set[int] = set()
    for source_words, predicted_words in _divide_groups(changes, corrupt, predicted):
        if in_predicted.issuperset(predicted_words):
            changed_rightly.update(source_words)

    return Corrections(
        true_positives=len(errors & in_correct),
        false_positives=len(changed - changed_rightly),
        false_negatives=len(errors - in_correct),
        changed=len(changed),
    )


def find_changed_words(text: str, corrected: str) -> set[int]:
    """Returns the indices of the words of a text that its corrected form changes.

    Args:
        text, corrected: Words separated by one space.
    """
    return _find_edited_words(_find_edits(text, corrected), text, corrected).source


def _find_edits(source: str, target: str) -> Iterator[_Edit]:
    """Yields the edits of an optimal alignment, from the last to the first.

    Of equally good alignments, the published code takes, going backwards, a deletion before an
    insertion, and that before a match or a replacement.
    """
    if source == target:
        return

    costs = compute_edit_costs(source, target)
    i = len(source)
    j = len(target)
    while i or j:
        cost = costs[i, j]
        if i and costs[i - 1, j] + 1 == cost:
            i -= 1
            yield _Edit("delete", i, j)
        elif j and costs[i, j - 1] + 1 == cost:
            j -= 1
            yield _Edit("insert", i, j)
        else:
            i -= 1
            j -= 1
            if source[i] != target[j]:
                yield _Edit("replace", i, j)


def compute_edit_costs(source: str, target: str) -> np.ndarray:
    """Computes the edit distances of all pairs of prefixes, where spaces are not replaced.

    Returns:
        int32 [source + 1, target + 1], by the lengths of the prefixes.
    """
    letters = np.fromiter(map(ord, target), dtype=np.int32, count=len(target))
    columns = np.arange(len(target) + 1, dtype=np.int32)
    # Two is the cost of a deletion and an insertion, so a replacement by a space never pays.
    replacement = np.where(letters == _SPACE, 2, 1).astype(np.int32)

    costs = np.empty((len(source) + 1, len(target) + 1), dtype=np.int32)
    costs[0] = columns
    for i, character in enumerate(map(ord, source), start=1):
        previous = costs[i - 1]
        row = costs[i]
        substitution = np.where(letters == character, 0, 2 if character == _SPACE else replacement)
        row[0] = i
        np.minimum(previous[1:] + 1, previous[:-1] + substitution, out=row[1:])
        # Insertions: the minimum of the costs to the left, each plus the distance to that column.
        row[:] = np.minimum.accumulate(row - columns) + columns
    return costs


def _number_words(text: str) -> list[int]:
    """Returns the index of the word of each character of a text, and of its end.

    A space belongs to the word before it.
    """
    return [0, *accumulate(character == " " for character in text)]


class _WordsEdited(NamedTuple):
    """The indices of the edited words."""

    source: set[int]
    target: set[int]


def _find_edited_words(edits: Iterable[_Edit], source: str, target: str) -> _WordsEdited:
    """Finds the edited words of the source and of the target.

    A deleted space affects both words around it in the source; an inserted one, in the target.
    """
    source_numbers = _number_words(source)
    target_numbers = _number_words(target)
    edited = _WordsEdited(set(), set())
    for edit in edits:
        edited.source.add(source_numbers[edit.source])
        edited.target.add(target_numbers[edit.target])
        if edit.operation == "delete" and source[edit.source] == " ":
            edited.source.add(source_numbers[edit.source] + 1)
        if edit.operation == "insert" and target[edit.target] == " ":
            edited.target.add(target_numbers[edit.target] + 1)
    return edited


def find_matching_words(predicted: list[str], correct: list[str]) -> tuple[set[int], set[int]]:
    """Finds a longest common subsequence of two lists of words.

    Of equally long ones, the published code passes, going backwards, both words before one of the
    correct line alone, and that before one of the predicted line alone.

    Returns:
        The indices of its words in the predicted line, and in the correct line.
    """
    numbers = {word: number for number, word in enumerate(dict.fromkeys(correct))}
    correct_numbers = np.array([numbers[word] for word in correct], np.int32)

    # The lengths of the longest common subsequences of all prefixes.
    lengths = np.zeros((len(predicted) + 1, len(correct) + 1), np.int32)
    for i, word in enumerate(predicted, start=1):
        matched = lengths[i - 1, :-1] + (correct_numbers == numbers.get(word, -1))
        np.maximum.accumulate(np.maximum(lengths[i - 1, 1:], matched), out=lengths[i, 1:])

    in_predicted: set[int] = set()
    in_correct: set[int] = set()
    i = len(predicted)
    j = len(correct)
    while i and j:
        is_match = predicted[i - 1] == correct[j - 1]
        if lengths[i - 1, j - 1] + is_match == lengths[i, j]:
            i -= 1
            j -= 1
            if is_match:
                in_predicted.add(i)
                in_correct.add(j)
        elif lengths[i, j - 1] == lengths[i, j]:
            j -= 1
        else:
            i -= 1
    return in_predicted, in_correct


def align_words(source: str, target: str) -> list[tuple[range, range]]:
    """Aligns the words of two texts: one to one, unless words are merged or split.

    Args:
        source, target: At least one word each, separated by one space.

    Returns:
        The ranges of words that correspond: of the source, and of the target.
    """
    return [*_divide_groups(_find_edits(source, target), source, target)]


def _divide_groups(
    edits: Iterable[_Edit], source: str, target: str
) -> Iterator[tuple[range, range]]:
    """Yields the ranges of words that correspond; see `align_words`."""
    numbers = _number_words(source)
    word_count = numbers[-1] + 1
    is_merged = [False] * word_count  # with the next word
    splits = [0] * word_count
    for edit in edits:
        word = numbers[edit.source]
        if edit.operation == "delete" and source[edit.source] == " ":
            is_merged[word] = True
        if edit.operation == "insert" and target[edit.target] == " ":
            splits[word] += 1

    first = 0
    target_start = 0
    target_end = 0
    for word in range(word_count):
        target_end += splits[word]
        if is_merged[word]:
            continue
        target_end += 1
        yield range(first, word + 1), range(target_start, target_end)
        first = word + 1
        target_start = target_end


@dataclass(frozen=True)
class Change:
    """A span of a text with an error."""

    start: int  # in characters
    end: int  # exclusive
    text: str  # the part itself


@dataclass(frozen=True)
class Correction(Change):
    """A span of a text with its replacement."""

    correction: str  # the replacement


@dataclass(frozen=True)
class Flag(Change):
    """A word, or a text, that a detector flags."""

    probability: float  # of an error


def find_corrections(text: str, corrected: str) -> list[Correction]:
    """Finds the corrections that turn a text into its corrected form, up to whitespace.

    Words are aligned by their edit distance, and runs of changed words by characters. Each changed
    word is a correction; words that are merged or split together are one.
    """
    old_spans = find_words(text)
    new_words = corrected.split()
    blocks = Levenshtein.opcodes([text[start:end] for start, end in old_spans], new_words)

    corrections: list[Correction] = []
    for is_equal, run in groupby(blocks, lambda block: block.tag == "equal"):
        if is_equal:
            continue

        edits = [*run]
        first = edits[0].src_start
        spans = old_spans[first : edits[-1].src_end]
        replacements = new_words[edits[0].dest_start : edits[-1].dest_end]
        if spans:
            corrections += _find_replacements(text, spans, replacements)
        else:
            corrections.append(_make_insertion(text, old_spans, first, replacements))
    return [change for change in corrections if change.text != change.correction]


def align_chunks(chunks: Sequence[str], corrected: Sequence[str]) -> list[Correction]:
    """Finds the corrections of a text from the corrected form of each of its chunks.

    They are aligned in blocks of chunks, because the time of an alignment grows with the square of
    the number of words.

    Args:
        chunks: The text, divided.
        corrected: The corrected form of each chunk.

    Returns:
        The corrections, with their positions in the text.
    """
    blocks = [slice(first, first + _BLOCK_CHUNKS) for first in range(0, len(chunks), _BLOCK_CHUNKS)]
    texts = ["".join(chunks[block]) for block in blocks]
    corrections = (
        find_corrections(text, " ".join(corrected[block]))
        for text, block in zip(texts, blocks, strict=True)
    )
    return join_corrections(texts, corrections)


def _find_replacements(
    text: str, spans: Sequence[Span], replacements: Sequence[str]
) -> Iterator[Correction]:
    """Yields the corrections of a run of words, given the words that replace the whole run."""
    source = " ".join(text[start:end] for start, end in spans)
    target = " ".join(replacements)
    groups = [(range(len(spans)), range(len(replacements)))]
    if replacements and len(source) * len(target) <= MAX_CELLS:
        groups = align_words(source, target)

    for old_range, new_range in groups:
        start = spans[old_range.start].start
        end = spans[old_range.stop - 1].end
        correction = " ".join(replacements[new_range.start : new_range.stop])
        yield Correction(start, end, text[start:end], correction)


def _make_insertion(
    text: str, spans: Sequence[Span], before: int, added: Sequence[str]
) -> Correction:
    """Makes a correction that inserts words, with a space between them and the text.

    Args:
        spans: The positions of the words of the text.
        before: The number of words of the text before the added ones.
        added: The added words.
    """
    addition = " ".join(added)
    if before:
        position = spans[before - 1].end
        return Correction(position, position, "", f" {addition}")
    if spans:
        position = spans[0].start
        return Correction(position, position, "", f"{addition} ")
    return Correction(len(text), len(text), "", addition)


def apply_corrections(text: str, corrections: Iterable[Correction]) -> str:
    """Applies corrections, in the order of their positions, to a text."""
    parts: list[str] = []
    end = 0
    for change in corrections:
        parts.append(text[end : change.start])
        parts.append(change.correction)
        end = change.end
    parts.append(text[end:])
    return "".join(parts)


def join_corrections(
    lines: Sequence[str], corrections: Iterator[list[Correction]]
) -> list[Correction]:
    """Joins the corrections of the lines of a text into one list.

    Args:
        lines: The lines, with their ends.
        corrections: For each line, its corrections with positions in it; exactly one item per line
            is taken.

    Returns:
        The corrections, with their positions in the text.
    """
    text_corrections: list[Correction] = []
    offset = 0
    for line, line_corrections in zip(lines, corrections, strict=False):
        for change in line_corrections:
            text_corrections.append(
                replace(change, start=offset + change.start, end=offset + change.end)
            )
        offset += len(line)
    return text_corrections


def restrict_corrections(
    text: str, corrections: Iterable[Correction], flags: Sequence[bool] | np.ndarray
) -> list[Correction]:
    """Returns the corrections of flagged words only; insertions of words are left out.

    Args:
        flags: For each word of the text, whether it may be changed.
    """
    spans = find_words(text)
    assert len(spans) == len(flags)
    starts = [start for start, _ in spans]
    ends = [end for _, end in spans]

    allowed: list[Correction] = []
    for change in corrections:
        changed_flags = flags[bisect_right(ends, change.start) : bisect_left(starts, change.end)]
        if len(changed_flags) and all(changed_flags):
            allowed.append(change)
    return allowed


def highlight_corrections(text: str, changes: Iterable[Change]) -> str:
    """Renders a text for a terminal: errors in red, each followed by its correction in green."""
    parts: list[str] = []
    end = 0
    for change in changes:
        parts.append(make_printable(text[end : change.start]))
        if isinstance(change, Correction):
            parts.append(_style_text(change.text, _WRONG))
            parts.append(_style_text(change.correction, _RIGHT))
        else:
            parts.append(_style_text(change.text, _FLAGGED))
        end = change.end
    parts.append(make_printable(text[end:]))
    return "".join(parts)


def _style_text(text: str, style: str) -> str:
    """Wraps each line of a text in an escape sequence for its style; line ends stay outside."""
    return re.sub(r"[^\r\n]+", lambda line: f"\x1b[{style}m{line[0]}\x1b[0m", make_printable(text))


def make_record(text: str, changes: Sequence[Any], *, corrects: bool) -> dict[str, Any]:
    """Makes the output record of a text.

    Args:
        corrects: Whether the changes are corrections; then, the record has the corrected text, too.
    """
    change_records = [asdict(change) for change in changes]
    if not corrects:
        return {"changes": change_records}
    return {"corrected": apply_corrections(text, changes), "changes": change_records}


def render_changes(
    text: str, changes: Sequence[Any], form: str, name: str, *, corrects: bool
) -> str:
    """Renders the changes of a text for `predict.py`.

    Args:
        form: One of the forms of the task (`ChangesText.forms`).
        name: The file name in a diff.
        corrects: Whether the changes are corrections, not flags.
    """
    if form == "color":
        return highlight_corrections(text, changes)
    if form == "json":
        record = {"text": text, **make_record(text, changes, corrects=corrects)}
        return json.dumps(record, ensure_ascii=False) + "\n"
    corrected = apply_corrections(text, changes)
    return corrected if form == "text" else make_unified_diff(text, corrected, name)


def make_unified_diff(text: str, corrected: str, name: str) -> str:
    """Makes a unified diff for `patch`; "" without changes."""
    # A line ends with \n only, as for `patch`.
    old_lines = io.StringIO(text, newline="\n").readlines()
    new_lines = io.StringIO(corrected, newline="\n").readlines()
    diff = difflib.unified_diff(old_lines, new_lines, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff
    )


@dataclass(frozen=True)
class Counts:
    """The outcomes of a system's decisions in each line: float64 [lines] each."""

    true_positives: np.ndarray  # errors that it detected, or corrected
    false_positives: np.ndarray  # correct units that it flagged; words that it changed wrongly
    false_negatives: np.ndarray  # errors that it missed
    flagged: np.ndarray  # units that it flagged; all words that it changed
    units: np.ndarray  # words, or lines, that it judged
    distance: np.ndarray  # normalized edit distance to the correct text; 0 for detection

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> Counts:
        """Builds counts from a row for each line, with values in the order of the attributes."""
        return cls(*np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls))).T)

    @property
    def precision(self) -> float:
        """Share of the flagged units that are errors; 0 if none is flagged."""
        return _divide_safely(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the errors that are found; 0 if there are none."""
        return _divide_safely(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall over all units (micro); 0 without any error."""
        return _divide_safely(*self.f1_terms)

    @property
    def f1_terms(self) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of F1 per line: float64 [lines] each."""
        numerator = 2 * self.true_positives
        return numerator, numerator + self.false_positives + self.false_negatives

    @property
    def sequence_f1(self) -> float:
        """Mean of the F1 of each line, as in the published evaluation of corrections.

        It is 1 for a line without errors and changes, and 0 for others without a true positive.
        """
        numerator, denominator = self.f1_terms
        errors = self.true_positives + self.false_negatives
        is_untouched = (errors == 0) & (self.flagged == 0)
        f1 = np.where(is_untouched, 1.0, numerator / np.maximum(denominator, 1))
        return float(f1.mean()) if len(f1) else 0.0

    @property
    def accuracy(self) -> float:
        """Share of the units that are judged right, for detection."""
        return _divide_safely(self.units - self.false_positives - self.false_negatives, self.units)

    @property
    def mean_distance(self) -> float:
        """Mean normalized edit distance of the lines (edit distance / length of the longer)."""
        return float(self.distance.mean()) if len(self.distance) else 0.0

    @property
    def flagged_rate(self) -> float:
        """Share of the units that are flagged: on clean text, the rate of false alarms."""
        return _divide_safely(self.flagged, self.units)


def count_detection_outcomes(
    predicted: Sequence[Sequence[int]], correct: Sequence[Sequence[int]]
) -> Counts:
    """Counts the outcomes of error detection.

    Args:
        predicted: The flags of each line (1: an error), for its words or one for the whole line.
        correct: The labels in the same form.

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
        hits = pairs.count((True, True))
        false_alarms = pairs.count((True, False))
        misses = pairs.count((False, True))
        rows.append((hits, false_alarms, misses, hits + false_alarms, len(pairs), 0))
    return Counts.from_rows(rows)


def count_correction_outcomes(
    corrupt: Sequence[str], predicted: Sequence[str], correct: Sequence[str]
) -> Counts:
    """Counts the outcomes of spelling correction; the units are the words of the corrupt line.

    Args:
        corrupt, predicted, correct: The versions of each line; runs of whitespace count as one
            space.

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
    """Compares the F1 of systems on the same lines, with 95% bootstrap intervals over the lines.

    Returns:
        F1 of each system, and F1 of the first system minus F1 of each.
    """
    numerators, denominators = zip(*(counts.f1_terms for counts in systems), strict=True)
    draws = resample_ratios(
        np.stack(numerators), np.stack(denominators), resamples=resamples, seed=seed
    )

    first = systems[0].f1
    scores: list[Estimate] = []
    differences: list[Estimate] = []
    for number, counts in enumerate(systems):
        system_draws = draws[:, number]
        scores.append(Estimate(counts.f1, compute_central_interval(system_draws)))
        differences.append(
            Estimate(first - counts.f1, compute_central_interval(draws[:, 0] - system_draws))
        )
    return scores, differences


def _divide_safely(numerator: np.ndarray, denominator: np.ndarray) -> float:
    total = float(denominator.sum())
    return float(numerator.sum()) / total if total else 0.0


def _check_lines(**lines: int) -> None:
    if len(set(lines.values())) > 1:
        counts = ", ".join(f"{name}: {count}" for name, count in lines.items())
        raise DataError(f"the numbers of lines differ ({counts}); expected the same number of each")

"""Scores the model and its baselines on test sets TASK/GROUP/SPLIT/{corrupt,correct}.txt.

`correct.txt` has labels for detection (0 or 1 for each word, or for the line) and text for
correction. Where the folder also has the correct text of a group (that of `sec`), false alarms are
counted on it. The corrections of the lines that `lowercase.txt` marks with 1, and those of the
published test sets of lower-case text (`bea322`, `bea4660`), are lower-cased before scoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsmeta.core.errors import DataError
from bsmeta.report.table import Estimate, Interval
from bsmeta.tasks.spelling.baseline import Judge, baselines
from bsmeta.tasks.spelling.metrics import (
    Counts,
    correction_counts,
    detection_counts,
    f1_difference,
    f1_interval,
)
from bsmeta.training.task import EvaluationContext

MODEL = "model"
LOWER_CASE = ("bea322", "bea4660")
"""Published test sets whose texts, with errors and correct, are in lower case."""


@dataclass(frozen=True)
class TestSet:
    """A test set of one task.

    Attributes:
        name: `GROUP/SPLIT`.
        corrupt: The lines with errors.
        correct: Per line the labels, or the correct line.
        clean: The correct text; empty if it is unknown.
        is_lower: For correction: whether the prediction for each line is lower-cased.
    """

    __test__ = False  # no test of pytest's

    name: str
    corrupt: list[str]
    correct: list[Any]
    clean: list[str]
    is_lower: list[bool]

    def cased(self, corrected: Sequence[str]) -> list[str]:
        """The corrected lines as they are scored; of no lines, none."""
        return [
            line.lower() if lower else line
            for line, lower in zip(corrected, self.is_lower, strict=False)
        ]


@dataclass(frozen=True)
class SystemResult:
    """What a system reaches on a test set.

    Attributes:
        system: Its name.
        counts: Its counts on the corrupt lines.
        f1: The interval of its F1.
        difference: F1 of the model minus that of this system; None for the model.
        false_alarms: Share of the words (lines) of correct text that it flags or changes; None if
            the correct text is unknown.
    """

    system: str
    counts: Counts
    f1: Interval
    difference: Estimate | None
    false_alarms: float | None


@dataclass(frozen=True)
class TestResult:
    """The results on a test set, the model first."""

    __test__ = False

    name: str
    lines: int
    systems: list[SystemResult]


def read_test_sets(folder: Path, task: str, limit: int | None = None) -> list[TestSet]:
    """The test sets of a task in a folder.

    Args:
        folder: Has TASK/GROUP/SPLIT/{corrupt,correct}.txt.
        task: The task.
        limit: Number of lines to use of each, from the first.

    Raises:
        DataError: If there is none, or its files do not have the same number of lines.
    """
    found = []
    for corrupt in sorted((folder / task).glob("*/*/corrupt.txt")):
        group, split = corrupt.parts[-3:-1]
        lines = _lines(corrupt, limit)
        correct = _lines(corrupt.with_name("correct.txt"), limit)
        if len(lines) != len(correct):
            raise DataError(
                f"{corrupt.parent}: {len(lines):,} lines in corrupt.txt, but {len(correct):,} in "
                "correct.txt; expected the same number"
            )
        text = folder / "sec" / group / split / "correct.txt"
        clean = _lines(text, limit) if text.is_file() else []
        labels = correct if task == "sec" else _labels(corrupt.with_name("correct.txt"), correct)
        is_lower = _lower_case(corrupt.parent, len(lines), limit) if task == "sec" else []
        found.append(TestSet(f"{group}/{split}", lines, labels, clean, is_lower))
    if not found:
        raise DataError(f"{folder} has no {task}/GROUP/SPLIT/corrupt.txt")
    return found


def _lower_case(folder: Path, lines: int, limit: int | None) -> list[bool]:
    """Whether the prediction for each line of a test set is lower-cased."""
    file = folder / "lowercase.txt"
    if not file.is_file():
        return [folder.name in LOWER_CASE] * lines
    marks = _labels(file, _lines(file, limit))
    if len(marks) != lines or any(len(mark) != 1 for mark in marks):
        raise DataError(f"{file}: expected 0 or 1 for each of the {lines:,} lines of corrupt.txt")
    return [mark == [1] for mark in marks]


def _labels(file: Path, lines: Sequence[str]) -> list[list[int]]:
    found = []
    for number, line in enumerate(lines, start=1):
        if {*line.split()} - {"0", "1"}:
            raise DataError(f"{file}, line {number:,}: {line[:60]!r}; expected labels 0 and 1")
        found.append([int(label) for label in line.split()])
    return found


def _lines(file: Path, limit: int | None) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:limit]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def judge_test_sets(
    task: str,
    test_sets: Sequence[TestSet],
    model: Judge,
    context: EvaluationContext,
    *,
    word_list: str | None,
    resamples: int,
    seed: int,
) -> list[TestResult]:
    """Scores the model and its baselines on test sets; every rank gets the same results.

    Args:
        task: The task.
        test_sets: The test sets.
        model: Runs the model on all ranks.
        context: The processes; rank 0 runs the baselines.
        word_list: The words of the dictionary (see `baseline.Dictionary`).
        resamples: Resamples of the lines for each interval, the same for all systems.
        seed: Their seed.
    """
    found = []
    for test_set in test_sets:
        judged, clean = model(test_set.corrupt), model(test_set.clean)
        if context.rank != 0:
            continue
        systems = {MODEL: (judged, clean)}
        for name, judge in baselines(task, word_list).items():
            systems[name] = (judge(test_set.corrupt), judge(test_set.clean))
        found.append(_result(task, test_set, systems, resamples=resamples, seed=seed))
    results: list[TestResult] = context.gather(found)[0]
    return results


def _result(
    task: str,
    test_set: TestSet,
    systems: dict[str, tuple[list[Any], list[Any]]],
    *,
    resamples: int,
    seed: int,
) -> TestResult:
    """The result from what each system (the model first) makes of the corrupt and clean lines."""
    found: list[SystemResult] = []
    for name, (judged, clean) in systems.items():
        if task == "sec":
            judged, clean = test_set.cased(judged), test_set.cased(clean)
        counts = _counts(task, test_set.corrupt, judged, test_set.correct)
        difference = None
        if found:
            difference = f1_difference(found[0].counts, counts, resamples=resamples, seed=seed)
        interval = f1_interval(counts, resamples=resamples, seed=seed)
        alarms = None
        if test_set.clean:
            labels = test_set.clean if task == "sec" else [[0] * len(flags) for flags in clean]
            alarms = _counts(task, test_set.clean, clean, labels).flagged_rate
        found.append(SystemResult(name, counts, interval, difference, alarms))
    return TestResult(test_set.name, len(test_set.corrupt), found)


def _counts(
    task: str, corrupt: Sequence[str], judged: Sequence[Any], correct: Sequence[Any]
) -> Counts:
    if task == "sec":
        return correction_counts(corrupt, judged, correct)
    return detection_counts(judged, correct)

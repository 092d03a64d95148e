"""Scores the model and its baselines on test sets TASK/GROUP/SPLIT/{corrupt,correct}.txt, after the
last step or by `evaluate.py`; the report on them.

`correct.txt` has labels for detection (0 or 1 for each word, or for the line) and text for
correction. Where the folder also has the correct text of a group (that of `sec`), false alarms are
counted on it. The corrections of the lines that `lowercase.txt` marks with 1, and those of the
published test sets of lower-case text (`bea322`, `bea4660`), are lower-cased before scoring.

The baselines change nothing, or use a dictionary: that of symspellpy (82,765 English words with
their frequencies, MIT license), or any list of words with counts. A word that it lacks is an error;
its correction is the most frequent of the nearest words, at an edit distance of at most 2 (a swap
of neighbors is one edit).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import reporting
from bsmeta.data.text.sentences import core
from bsmeta.report.inference import Estimate, rough_intervals
from bsmeta.report.page import (
    Cell,
    Column,
    Page,
    Section,
    Table,
    own_command,
    print_report,
    write_report,
)
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import (
    Location,
    announce_data,
    begin_with,
    check_keys,
    report_folder,
    training_run,
)
from bsmeta.tasks.spelling.config import (
    SecConfig,
    SedSequenceConfig,
    SedWordsConfig,
    SpellingConfig,
)
from bsmeta.tasks.spelling.corrections import (
    Counts,
    compare_f1,
    correction_counts,
    detection_counts,
)
from bsmeta.tasks.spelling.lexicon import fold
from bsmeta.tasks.spelling.noise import is_editable, with_case_of
from bsmeta.training.processes import FinishContext, Processes
from bsmeta.training.task import Metric

if TYPE_CHECKING:
    from symspellpy import SymSpell

MODEL, DICTIONARY, CHANGE_NOTHING = "model", "dictionary", "change nothing"
MOST_EDITS = 2
LOWER_CASE = ("bea322", "bea4660")
"""Published test sets whose texts, with errors and correct, are in lower case."""
NAMES = {
    "sed_words": "Words with errors",
    "sed_sequence": "Sequences with errors",
    "sec": "Corrections",
}
LOWER = ("edit_distance", "false_alarms")  # metrics of which lower is better
_PARTS = re.compile(r"([-–—/'’.]+)")
_POSSESSIVE = re.compile(r"['’]s?$", re.IGNORECASE)

Judge = Callable[[Sequence[str]], list[Any]]
"""Lines → per line: the flags of its words, one flag in a list, or the corrected line."""


class Dictionary:
    """Detects and corrects misspellings with a list of words.

    Args:
        word_list: A file of lines `word count`; None: the English words of symspellpy.

    Raises:
        ConfigurationError: If symspellpy is not installed, or the file cannot be read.
    """

    def __init__(self, word_list: str | None = None) -> None:
        self._speller = _load_speller(word_list)
        self.correct_word = lru_cache(2**18)(self._correct_word)

    def flags(self, text: str) -> list[int]:
        """Per word of a text: 1 if it is not in the dictionary, otherwise 0."""
        return [int(not self.knows(word)) for word in text.split()]

    def correct(self, text: str) -> str:
        """The text with every word that is not in the dictionary replaced by the nearest."""
        return re.sub(r"\S+", lambda word: self.correct_word(word[0]), text)

    def knows(self, word: str) -> bool:
        """Whether a word (or each part of a compound) is right, or is none: a number, a URL."""
        span = core(word)
        if span is None or not is_editable(word):
            return True
        spelled = word[span.start : span.end]
        parts = _PARTS.split(_POSSESSIVE.sub("", spelled))[::2]
        known = self._speller.words
        return fold(spelled) in known or all(len(part) < 2 or fold(part) in known for part in parts)

    def _correct_word(self, word: str) -> str:
        from symspellpy import Verbosity

        span = core(word)
        if span is None or self.knows(word):
            return word
        spelled = word[span.start : span.end]
        found = self._speller.lookup(spelled.lower(), Verbosity.TOP, MOST_EDITS)
        nearest = with_case_of(spelled, found[0].term) if found else spelled
        return word[: span.start] + nearest + word[span.end :]


@cache
def _load_speller(word_list: str | None) -> SymSpell:
    """Reads the words, which takes seconds: once per process."""
    try:
        from symspellpy import SymSpell
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the dictionary baseline needs symspellpy, which is not installed; install it (pip "
            "install symspellpy, or the extra `spelling`)"
        ) from error
    speller = SymSpell(MOST_EDITS)
    file = word_list or str(resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt")
    if not speller.load_dictionary(file, 0, 1, encoding="utf-8-sig") or not speller.words:
        raise ConfigurationError(
            f"dictionary: {file} is missing, or has no line with a word and its count; expected "
            "lines `word count`",
            ["dictionary"],
        )
    return speller


def baselines(task: str, word_list: str | None = None) -> dict[str, Judge]:
    """The baselines of a task, by name; one has the words of a list (see `Dictionary`)."""
    dictionary = Dictionary(word_list)

    def of_lines(judge_line: Callable[[str], Any]) -> Judge:
        return lambda lines: list(map(judge_line, reporting(lines)))

    judges: dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]] = {
        "sed_words": (dictionary.flags, lambda line: [0] * len(line.split())),
        "sed_sequence": (lambda line: [int(any(dictionary.flags(line)))], lambda line: [0]),
        "sec": (dictionary.correct, str),
    }
    names = (DICTIONARY, CHANGE_NOTHING)
    return {name: of_lines(judge) for name, judge in zip(names, judges[task], strict=True)}


@dataclass(frozen=True)
class TestSet:
    """A test set of one task."""

    __test__ = False  # no test of pytest's

    name: str  # GROUP/SPLIT
    corrupt: list[str]  # the lines with errors
    correct: list[Any]  # per line the labels, or the correct line
    clean: list[str]  # the correct text; empty if it is unknown
    is_lower: list[bool]  # for correction: whether the prediction for each line is lower-cased

    def cased(self, corrected: Sequence[str]) -> list[str]:
        """The corrected lines as they are scored; of no lines, none."""
        return [
            line.lower() if lower else line
            for line, lower in zip(corrected, self.is_lower, strict=False)
        ]


def read_test_sets(folder: Path, task: str, limit: int | None = None) -> list[TestSet]:
    """The test sets of a task in a folder, of each the first lines up to a limit.

    Raises:
        DataError: If there is none, or its files do not have the same number of lines.
    """
    found = []
    for corrupt in sorted((folder / task).glob("*/*/corrupt.txt")):
        group, split = corrupt.parts[-3:-1]
        answers = corrupt.with_name("correct.txt")
        lines, correct = _lines(corrupt, limit), _lines(answers, limit)
        if len(lines) != len(correct):
            raise DataError(
                f"{corrupt.parent}: {len(lines):,} lines in corrupt.txt, but {len(correct):,} in "
                "correct.txt; expected the same number"
            )
        text = folder / "sec" / group / split / "correct.txt"
        clean = _lines(text, limit) if text.is_file() else []
        labels = correct if task == "sec" else _labels(answers, correct)
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


@dataclass(frozen=True)
class SystemResult:
    """What a system reaches on a test set."""

    system: str  # its name
    counts: Counts  # on the corrupt lines
    f1: Estimate
    difference: Estimate | None  # F1 of the model minus that of this system; None for the model
    false_alarms: float | None  # share of the correct text that it flags or changes, if known

    def values(self, task: str) -> dict[str, float]:
        """The metrics by name."""
        counts = self.counts
        found = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
        if task == "sec":
            found |= {"sequence_f1": counts.sequence_f1, "edit_distance": counts.mean_distance}
        else:
            found["accuracy"] = counts.accuracy
        return found if self.false_alarms is None else found | {"false_alarms": self.false_alarms}

    def as_dict(self, task: str) -> dict[str, Any]:
        """Plain values for JSON."""
        found = {**self.values(task), "f1_interval": astuple(self.f1.interval)}
        if self.difference is not None:
            found["model_minus_this"] = self.difference.value
            found["interval"] = astuple(self.difference.interval)
        return found


Results = dict[str, list[SystemResult]]
"""The results on test sets by their names, the model first."""


def score_test_sets(
    config: SpellingConfig, test_sets: Sequence[TestSet], judge: Judge, context: Processes
) -> Results:
    """Scores the model, which all ranks run, and its baselines, which rank 0 runs, on test sets;
    every rank gets the same results.
    """
    found = {}
    for test_set in test_sets:
        judged = {MODEL: (judge(test_set.corrupt), judge(test_set.clean))}
        if context.rank == 0:
            for name, baseline in baselines(config.task, config.dictionary).items():
                judged[name] = (baseline(test_set.corrupt), baseline(test_set.clean))
            found[test_set.name] = _results(config, test_set, judged)
    results: Results = context.gather(found)[0]
    return results


def _results(
    config: SpellingConfig, test_set: TestSet, judged: dict[str, tuple[list[Any], list[Any]]]
) -> list[SystemResult]:
    """The results from what each system (the model first) makes of the corrupt and clean lines."""
    counts, alarms = [], []
    for corrupt, clean in judged.values():
        if config.task == "sec":
            lines, found = test_set.clean, test_set.cased(clean)
            own = correction_counts(test_set.corrupt, test_set.cased(corrupt), test_set.correct)
            on_clean = correction_counts(lines, found, lines)
        else:
            own = detection_counts(corrupt, test_set.correct)
            on_clean = detection_counts(clean, [[0] * len(flags) for flags in clean])
        counts.append(own)
        alarms.append(on_clean.flagged_rate if test_set.clean else None)
    resamples, seed = config.bootstrap_resamples, config.seed
    f1, differences = compare_f1(counts, resamples=resamples, seed=seed)
    return [
        SystemResult(name, counts[n], f1[n], differences[n] if n else None, alarms[n])
        for n, name in enumerate(judged)
    ]


def run(config: EvaluateConfig, locations: Sequence[Location], context: Processes) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    `validation_file` names the folder of the test sets; by default that of the training run.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    check_keys(config, "a spelling task", "max_documents")
    other = config.validation_file is not None
    for location in locations:
        train = training_run(config, location, SedWordsConfig, SedSequenceConfig, SecConfig)
        begin_with(train, location)
        train.benchmarks = config.validation_file or train.benchmarks
        train.benchmark_lines = config.max_documents
        if train.benchmarks is None:
            raise ConfigurationError(
                f"checkpoint={location.name}: its run has no test sets; name a folder of "
                "TASK/GROUP/SPLIT/{corrupt,correct}.txt: validation_file=FOLDER"
            )
        if context.is_main:
            announce_data(config, location, "benchmarks", train.benchmarks)
        task = TASKS[train.task].make(train)
        model = task.load(Path(location.model)).to(context.device)
        judge = partial(task.judge, model, context=context)
        main = context.is_main
        folder = report_folder(config, location, has_other_data=other) if main else Path()
        _score(train, judge, context, location.name, folder)


def finish(config: SpellingConfig, judge: Judge, context: FinishContext) -> list[Metric]:
    """Scores the test sets of the run with its exported model; rank 0 writes the report."""
    results = _score(config, judge, context, str(context.exported), context.folder / "evaluation")
    return [
        Metric(name, value, better="min" if name in LOWER else "max", split=test_set)
        for test_set, (model, *_) in results.items()
        for name, value in model.values(config.task).items()
    ]


def _score(
    config: SpellingConfig, judge: Judge, context: Processes, checkpoint: str, folder: Path
) -> Results:
    """Scores the test sets of a configuration on all processes; rank 0 writes the report."""
    test_sets = read_test_sets(Path(str(config.benchmarks)), config.task, config.benchmark_lines)
    results = score_test_sets(config, test_sets, judge, context)
    if context.rank == 0:
        facts = {
            "checkpoint": checkpoint,
            "test sets": str(config.benchmarks),
            "lines": _line_counts(results),
            "intervals": f"bootstrap over lines, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        report(config.task, results, facts, folder)
    return results


def report(task: str, results: Results, facts: Mapping[str, str], folder: Path) -> None:
    """Writes the report on what was scored (`facts`), and prints it."""
    table, sentences = table_of(task, results), summary(results)
    test_sets = [
        {
            "test_set": name,
            "lines": len(systems[0].counts.units),
            "systems": {system.system: system.as_dict(task) for system in systems},
        }
        for name, systems in results.items()
    ]
    page = Page(NAMES[task], sentences, facts, [Section(tables=[table])], own_command())
    written = write_report(page, {"task": task, "test_sets": test_sets}, folder)
    print_report([table], sentences, written)


def table_of(task: str, results: Results) -> Table:
    """One table over all test sets."""
    more = [Column("F1 per line", _number), Column("edit distance", "{:.4f}".format)]
    columns = [
        Column("test set"), Column("system"), Column("F1", _number), Column("precision", _number),
        Column("recall", _number), *(more if task == "sec" else [Column("accuracy", _number)]),
        Column("false alarms", "{:.2%}".format),
        Column("model's F1 minus", partial(_number, sign="+")),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, systems in results.items():
        for number, system in enumerate(systems):
            _, *values = replace(system, false_alarms=None).values(task).values()
            row = [system.system, system.f1, *values, system.false_alarms, system.difference]
            rows.append(["" if number else name, *row])
    units = {"sed_words": "words", "sed_sequence": "lines", "sec": "words"}[task]
    done = "changes" if task == "sec" else "flags"
    note = (
        f"In brackets: 95% intervals, bootstrap over the lines ({_line_counts(results)}), the same "
        f"for all systems. False alarms: {units} of the correct text that a system {done}."
    )
    if task == "sec":
        note += " F1 per line: the mean over the lines; 1 for a line without errors and changes."
    return Table(NAMES[task], note, columns, rows)


def _line_counts(results: Results) -> str:
    return ", ".join(f"{len(systems[0].counts.units):,}" for systems in results.values())


def summary(results: Results) -> list[str]:
    """One sentence for each test set: the model beside the best of the others."""
    sentences = []
    for name, (model, *others) in results.items():
        sentence = f"{name}: the model's F1 is {_number(model.f1.value)}"
        if others:
            best = max(others, key=lambda other: other.counts.f1)
            assert best.difference is not None
            difference, interval = best.difference.value, best.difference.interval
            unclear = "" if interval.excludes_zero else ": not distinguishable"
            sentence += (
                f", {_number(difference, '+')} compared with {best.system} (95% interval "
                f"{_number(interval.low, '+')} to {_number(interval.high, '+')}{unclear})"
            )
        rough = rough_intervals(len(model.counts.units), "lines")
        sentences.append(" ".join([f"{sentence}.", *rough]))
    return sentences


def _number(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point: the table is wide."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.3f}"

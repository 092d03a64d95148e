"""Scores a model and its baselines on test sets, and reports on them.

It runs after the last step of training, and by `evaluate.py`. The test sets are
TASK/GROUP/SPLIT/{corrupt,correct}.txt.

`correct.txt` has labels for detection (0 or 1 for each word, or for the line) and text for
correction. Where the folder also has the correct text of a group (in the test set of `sec`), false
alarms are counted on it. Corrections are lower-cased before scoring in lines that `lowercase.txt`
marks with 1, and in the published test sets of lower-case text (`bea322`, `bea4660`).

The baselines change nothing, or use a dictionary: the list of symspellpy (82,765 English words with
their frequencies, MIT license), or any list of words with counts. A word that it lacks is an error;
its correction is the most frequent of the nearest words, at an edit distance of at most 2 (a swap
of neighbors is one edit).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bsmeta.config.metric_table import compute_values, select_report_rows
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.core.progress import report_each
from bsmeta.data.text.sentences import find_word_core
from bsmeta.report.cells import Cell
from bsmeta.report.inference import Estimate, warn_of_rough_intervals
from bsmeta.report.page import (
    Column,
    Page,
    Section,
    Table,
    describe_command,
    print_report,
    write_report,
)
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import (
    Location,
    announce_data,
    check_evaluation_keys,
    choose_report_folder,
    iterate_saved_fingerprints,
    read_training_config,
    replace_initial_model,
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
    count_correction_outcomes,
    count_detection_outcomes,
)
from bsmeta.tasks.spelling.false_alarms import (
    FalseAlarms,
    count_false_alarms,
    flag_changed_words,
)
from bsmeta.tasks.spelling.lexicon import fold_word
from bsmeta.tasks.spelling.metrics import METRICS, Judged, format_share
from bsmeta.tasks.spelling.noise import copy_case, is_editable
from bsmeta.tasks.spelling.samples import Table as TrainingTable
from bsmeta.tasks.spelling.samples import open_saved_table
from bsmeta.tasks.spelling.training_lines import count_training_lines
from bsmeta.tasks.spelling.word_scripts import WordScripts
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.task import Metric

if TYPE_CHECKING:
    from symspellpy import SymSpell

logger = logging.getLogger(__name__)

# Names of systems.
MODEL = "model"
DICTIONARY = "dictionary"
CHANGE_NOTHING = "change nothing"

MAX_EDITS = 2
LOWER_CASE_SETS = ("bea322", "bea4660")
"""Published test sets whose texts, with errors and correct, are in lower case."""
CORRECTION_TASK = "sec"
"""The folder of a set of test sets that has the correct text of a group."""
_PARTS = re.compile(r"([-–—/'’.]+)")
_POSSESSIVE = re.compile(r"['’]s?$", re.IGNORECASE)

Judge = Callable[[Sequence[str]], list[Any]]
"""A system on lines: returns, per line, a list of flags (detection) or the corrected line."""
LineJudge = Callable[[str], Any]
"""A system on a single line: returns a list of flags (detection) or the corrected line."""


class Dictionary:
    """Detects and corrects misspellings with a list of words.

    Args:
        word_list: A file of lines `word count`; None: the English words of symspellpy.

    Raises:
        ConfigurationError: If symspellpy is not installed, or the file cannot be read.
    """

    def __init__(self, word_list: str | None = None) -> None:
        self._speller = _load_speller(word_list)
        self._scripts = WordScripts(self._speller.words)
        self.correct_word = lru_cache(2**18)(self._correct_word)

    def flags(self, text: str) -> list[int]:
        """Flags each word of a text: 1 if it is missing from the dictionary, otherwise 0."""
        return [int(not self.knows(word)) for word in text.split()]

    def correct(self, text: str) -> str:
        """Replaces each word of a text that is missing from the dictionary by the nearest word."""
        return re.sub(r"\S+", lambda word: self.correct_word(word[0]), text)

    def knows(self, word: str) -> bool:
        """Returns whether a word, or each part of a compound, is in the list.

        True also for tokens that no list of words covers: numbers, URLs, words in another script.
        """
        span = find_word_core(word)
        if span is None or not is_editable(word) or self._scripts.find_unknown(word):
            return True

        spelled = word[span.start : span.end]
        listed_words = self._speller.words
        if fold_word(spelled) in listed_words:
            return True
        parts = _PARTS.split(_POSSESSIVE.sub("", spelled))[::2]
        return all(len(part) < 2 or fold_word(part) in listed_words for part in parts)

    def _correct_word(self, word: str) -> str:
        from symspellpy import Verbosity

        span = find_word_core(word)
        if span is None or self.knows(word):
            return word

        spelled = word[span.start : span.end]
        suggestions = self._speller.lookup(spelled.lower(), Verbosity.TOP, MAX_EDITS)
        nearest = copy_case(spelled, suggestions[0].term) if suggestions else spelled
        return word[: span.start] + nearest + word[span.end :]


@cache
def _load_speller(word_list: str | None) -> SymSpell:
    """Builds symspellpy's index of a list of words; cached, because it takes seconds."""
    try:
        from symspellpy import SymSpell
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the dictionary baseline needs symspellpy, which is not installed; install it (pip "
            "install symspellpy, or the extra `spelling`)"
        ) from error

    speller = SymSpell(MAX_EDITS)
    file = word_list or str(resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt")
    if not speller.load_dictionary(file, 0, 1, encoding="utf-8-sig") or not speller.words:
        raise ConfigurationError(
            f"dictionary: {file} is missing, or has no line with a word and its count; expected "
            "lines `word count`",
            ["dictionary"],
        )
    return speller


def make_baselines(task: str, word_list: str | None = None) -> dict[str, Judge]:
    """Makes the baselines of a task, by name.

    Args:
        word_list: The words of the dictionary baseline; see `Dictionary`.
    """
    dictionary = Dictionary(word_list)
    judges = REPORTINGS[task].make_baselines(dictionary)
    return {name: partial(_judge_lines, judge) for name, judge in judges.items()}


def _judge_lines(judge: LineJudge, lines: Sequence[str]) -> list[Any]:
    return [judge(line) for line in report_each(lines)]


def _flag_words(dictionary: Dictionary) -> dict[str, LineJudge]:
    return {DICTIONARY: dictionary.flags, CHANGE_NOTHING: lambda line: [0] * len(line.split())}


def _flag_lines(dictionary: Dictionary) -> dict[str, LineJudge]:
    return {
        DICTIONARY: lambda line: [int(any(dictionary.flags(line)))],
        CHANGE_NOTHING: lambda line: [0],
    }


def _correct_lines(dictionary: Dictionary) -> dict[str, LineJudge]:
    return {DICTIONARY: dictionary.correct, CHANGE_NOTHING: str}


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """How a task is scored on test sets, and reported."""

    title: str
    unit: str  # the judged unit, in the plural
    corrects: bool  # whether it corrects lines; False: it flags units
    make_baselines: Callable[[Dictionary], dict[str, LineJudge]]


REPORTINGS = {
    "sed_words": Reporting(
        title="Words with errors", unit="words", corrects=False, make_baselines=_flag_words
    ),
    "sed_sequence": Reporting(
        title="Sequences with errors", unit="lines", corrects=False, make_baselines=_flag_lines
    ),
    CORRECTION_TASK: Reporting(
        title="Corrections", unit="words", corrects=True, make_baselines=_correct_lines
    ),
}
"""The reporting of each task on spelling."""


@dataclass(frozen=True)
class TestSet:
    """A test set of one task."""

    __test__ = False  # not collected by pytest

    name: str  # GROUP/SPLIT
    corrupt: list[str]  # the lines with errors
    correct: list[Any]  # per line the labels, or the correct line
    clean: list[str]  # the correct text; empty if it is unknown
    is_lower: list[bool]  # for correction: whether the prediction for each line is lower-cased

    def list_versions(self) -> list[tuple[str, ...]]:
        """Lists each line with errors, and as in the correct text if it has the same lines."""
        if len(self.clean) != len(self.corrupt):
            return [(line,) for line in self.corrupt]
        return [*zip(self.corrupt, self.clean, strict=True)]

    def cased(self, corrected: Sequence[str]) -> list[str]:
        """Lower-cases the corrected lines for which `is_lower` holds; [] for no lines."""
        return [
            line.lower() if lower else line
            for line, lower in zip(corrected, self.is_lower, strict=False)
        ]


def read_test_sets(folder: Path, task: str, limit: int | None = None) -> list[TestSet]:
    """Reads the test sets of a task, in the order of their names.

    Args:
        folder: The folder of TASK/GROUP/SPLIT/{corrupt,correct}.txt.
        limit: The number of lines to read of each test set; None: all.

    Raises:
        DataError: If there is none, or its files do not have the same number of lines.
    """
    corrupt_files = sorted((folder / task).glob("*/*/corrupt.txt"))
    if not corrupt_files:
        raise DataError(f"{folder} has no {task}/GROUP/SPLIT/corrupt.txt")
    return [_read_test_set(folder, task, file, limit) for file in corrupt_files]


def _read_test_set(folder: Path, task: str, corrupt_file: Path, limit: int | None) -> TestSet:
    """Reads one test set, and the correct text of its group where `folder` has it."""
    group, split = corrupt_file.parts[-3:-1]
    correct_file = corrupt_file.with_name("correct.txt")
    corrupt = _read_lines(corrupt_file, limit)
    correct = _read_lines(correct_file, limit)
    if len(corrupt) != len(correct):
        raise DataError(
            f"{corrupt_file.parent}: {len(corrupt):,} lines in corrupt.txt, but "
            f"{len(correct):,} in correct.txt; expected the same number"
        )

    clean_file = folder / CORRECTION_TASK / group / split / "correct.txt"
    clean = _read_lines(clean_file, limit) if clean_file.is_file() else []
    name = f"{group}/{split}"
    if REPORTINGS[task].corrects:
        is_lower = _read_lowercase_marks(corrupt_file.parent, len(corrupt), limit)
        return TestSet(name, corrupt, correct, clean, is_lower)

    labels = _parse_labels(correct_file, correct)
    return TestSet(name, corrupt, labels, clean, is_lower=[])


def _read_lowercase_marks(folder: Path, lines: int, limit: int | None) -> list[bool]:
    """Reads a flag for each line of a test set: whether its correction is lower-cased."""
    file = folder / "lowercase.txt"
    if not file.is_file():
        return [folder.name in LOWER_CASE_SETS] * lines

    marks = _parse_labels(file, _read_lines(file, limit))
    if len(marks) != lines or any(len(mark) != 1 for mark in marks):
        raise DataError(f"{file}: expected 0 or 1 for each of the {lines:,} lines of corrupt.txt")
    return [mark == [1] for mark in marks]


def _parse_labels(file: Path, lines: Sequence[str]) -> list[list[int]]:
    """Parses lines of labels 0 and 1, which white space separates; `file` is for messages."""
    labels: list[list[int]] = []
    for number, line in enumerate(lines, start=1):
        if {*line.split()} - {"0", "1"}:
            raise DataError(f"{file}, line {number:,}: {line[:60]!r}; expected labels 0 and 1")
        labels.append([int(label) for label in line.split()])
    return labels


def _read_lines(file: Path, limit: int | None) -> list[str]:
    """Reads the lines of a file up to a limit (None: all)."""
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:limit]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


@dataclass(frozen=True)
class SystemResult:
    """The scores of a system on a test set."""

    system: str  # its name
    counts: Counts  # on the corrupt lines
    f1: Estimate
    difference: Estimate | None  # F1 of the model minus F1 of this system; None for the model
    false_alarms: float | None  # share of the correct text that it flags or changes, if known
    false_alarms_by_kind: dict[str, FalseAlarms]  # by kind of word; empty if unknown

    def values(self, task: str) -> dict[str, float]:
        """Returns the metrics by name."""
        judged = Judged(self.counts, self.false_alarms)
        return compute_values(select_report_rows(METRICS[task]), judged)

    def as_dict(self, task: str) -> dict[str, Any]:
        """Converts it to plain values for JSON."""
        values: dict[str, Any] = {
            **self.values(task),
            "f1_interval": astuple(self.f1.interval),
            "false_alarms_by_kind": {
                kind: asdict(alarms) for kind, alarms in self.false_alarms_by_kind.items()
            },
        }
        if self.difference is not None:
            values["model_minus_this"] = self.difference.value
            values["interval"] = astuple(self.difference.interval)
        return values


Results = dict[str, list[SystemResult]]
"""The results on test sets by their names, the model first."""


class _Output(NamedTuple):
    """The output of a system for a test set: flags or corrected lines."""

    corrupt: list[Any]  # for the lines with errors
    clean: list[Any]  # for the correct lines


def score_test_sets(
    config: SpellingConfig, test_sets: Sequence[TestSet], judge: Judge, context: Processes
) -> Results:
    """Scores the model (on all ranks) and its baselines (on rank 0) on test sets.

    Args:
        judge: The model; called on every rank with all lines of a test set.

    Returns:
        The results, on every rank.
    """
    main_results: Results = {}  # filled by rank 0
    for test_set in test_sets:
        outputs = {MODEL: _Output(judge(test_set.corrupt), judge(test_set.clean))}
        if context.rank == 0:
            for name, baseline in make_baselines(config.task, config.dictionary).items():
                outputs[name] = _Output(baseline(test_set.corrupt), baseline(test_set.clean))
            main_results[test_set.name] = _score_systems(config, test_set, outputs)
    results: Results = context.gather(main_results)[0]
    return results


def _score_systems(
    config: SpellingConfig, test_set: TestSet, outputs: dict[str, _Output]
) -> list[SystemResult]:
    """Scores the output of each system, the model first."""
    corrects = REPORTINGS[config.task].corrects
    count_outcomes = _count_corrections if corrects else _count_flags
    system_counts: list[Counts] = []
    false_alarms: list[float | None] = []
    for output in outputs.values():
        counts, clean_counts = count_outcomes(test_set, output)
        system_counts.append(counts)
        false_alarms.append(clean_counts.flagged_rate if test_set.clean else None)

    f1, differences = compare_f1(
        system_counts, resamples=config.bootstrap_resamples, seed=config.seed
    )
    results: list[SystemResult] = []
    for number, name in enumerate(outputs):
        result = SystemResult(
            system=name,
            counts=system_counts[number],
            f1=f1[number],
            difference=None if number == 0 else differences[number],
            false_alarms=false_alarms[number],
            false_alarms_by_kind=_count_kinds(config.task, test_set, outputs[name]),
        )
        results.append(result)
    return results


def _count_corrections(test_set: TestSet, output: _Output) -> tuple[Counts, Counts]:
    """Counts the outcomes of corrections, on the corrupt and on the correct lines."""
    counts = count_correction_outcomes(
        test_set.corrupt, test_set.cased(output.corrupt), test_set.correct
    )
    clean = test_set.clean
    return counts, count_correction_outcomes(clean, test_set.cased(output.clean), clean)


def _count_flags(test_set: TestSet, output: _Output) -> tuple[Counts, Counts]:
    """Counts the outcomes of detection, on the corrupt and on the correct lines."""
    counts = count_detection_outcomes(output.corrupt, test_set.correct)
    no_errors = [[0] * len(flags) for flags in output.clean]
    return counts, count_detection_outcomes(output.clean, no_errors)


def _count_kinds(task: str, test_set: TestSet, output: _Output) -> dict[str, FalseAlarms]:
    """Counts the false alarms by kind of word; {} if the task does not judge words."""
    reporting = REPORTINGS[task]
    if reporting.unit != "words":
        return {}
    flags = output.clean
    if reporting.corrects:
        flags = flag_changed_words(test_set.clean, test_set.cased(output.clean))
    return count_false_alarms(test_set.clean, flags)


def run_evaluation(
    config: EvaluateConfig, locations: Sequence[Location], context: Processes
) -> list[Path]:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    `validation_file` names the folder of the test sets; the default is the folder of the training
    run.

    Returns:
        The folders of the reports that this process has written.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    check_evaluation_keys(config, "a spelling task", "max_documents")
    folders = []
    has_other_data = config.validation_file is not None
    for location in locations:
        train = _choose_test_sets(config, location)
        if context.is_main:
            announce_data(config, location, "benchmarks", str(train.benchmarks))

        task = TASKS[train.task].make(train)
        model = task.load(Path(location.model)).to(context.device)
        judge = partial(task.judge, model, context=context)

        folder = Path()  # not used by other ranks
        table = None
        if context.is_main:
            folder = choose_report_folder(config, location, has_other_data=has_other_data)
            folders.append(folder)
            table = _open_training_table(train, location)
        _score_test_sets(train, judge, table, context, location.name, folder)
    return folders


def _open_training_table(config: SpellingConfig, location: Location) -> TrainingTable | None:
    """Opens the samples that the run of a model has read; None, with a warning, if it cannot."""
    fingerprint = next(iterate_saved_fingerprints(location), {})
    try:
        return open_saved_table(config.store_dir, fingerprint)
    except UserError as error:
        logger.warning("test sets are not compared with the training texts: %s", error)
        return None


def _choose_test_sets(config: EvaluateConfig, location: Location) -> SpellingConfig:
    """Returns the configuration of the training run, with the test sets of the evaluation."""
    train = read_training_config(config, location, SedWordsConfig, SedSequenceConfig, SecConfig)
    train = replace(
        replace_initial_model(train, location),
        benchmarks=config.validation_file or train.benchmarks,
        benchmark_lines=config.max_documents,
    )
    if train.benchmarks is None:
        raise ConfigurationError(
            f"checkpoint={location.name}: its run has no test sets; name a folder of "
            "TASK/GROUP/SPLIT/{corrupt,correct}.txt: validation_file=FOLDER"
        )
    return train


def finish_run(
    config: SpellingConfig, judge: Judge, table: TrainingTable, context: FinishContext
) -> list[Metric]:
    """Scores the test sets of the run with its exported model; rank 0 writes the report.

    Args:
        table: The samples of the run.
    """
    results = _score_test_sets(
        config, judge, table, context, str(context.exported), context.folder / "evaluation"
    )
    metrics: list[Metric] = []
    for test_set, (model, *_) in results.items():
        metrics += make_metrics(METRICS[config.task], model.values(config.task), test_set)
    return metrics


def _score_test_sets(
    config: SpellingConfig,
    judge: Judge,
    table: TrainingTable | None,
    context: Processes,
    checkpoint: str,
    folder: Path,
) -> Results:
    """Scores the test sets of a configuration on all processes; rank 0 writes the report.

    Args:
        table: The samples of the run, which rank 0 compares; None if they cannot be read.
    """
    test_sets = read_test_sets(Path(str(config.benchmarks)), config.task, config.benchmark_lines)
    results = score_test_sets(config, test_sets, judge, context)
    if context.rank == 0:
        facts = {
            "checkpoint": checkpoint,
            "test sets": str(config.benchmarks),
            "lines": _describe_line_counts(results),
            "intervals": f"bootstrap over lines, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        notes = note_training_lines(test_sets, table)
        report_results(config.task, results, facts, folder, notes, config.model_card.command)
    return results


def note_training_lines(test_sets: Sequence[TestSet], table: TrainingTable | None) -> list[str]:
    """Returns notes with the numbers of lines that are also in the training texts, if any.

    Args:
        table: The samples of the run; None if they cannot be read.
    """
    if table is None:
        return ["not compared with the training texts, which cannot be read"]

    lines = {test_set.name: test_set.list_versions() for test_set in test_sets}
    notes = []
    for name, num_shared in count_training_lines(lines, table.read_training_texts()).items():
        if num_shared:
            count = len(lines[name])
            notes.append(
                f"{name}: {num_shared:,} of {count:,} lines are in the training texts, too"
            )
            logger.warning("%s", notes[-1])
    return notes


def report_results(
    task: str,
    results: Results,
    facts: Mapping[str, str],
    folder: Path,
    notes: Sequence[str] = (),
    training_command: str | None = None,
) -> None:
    """Writes the report of a task on test sets to a folder, and prints it.

    Args:
        facts: The model, the test sets and the settings, as label -> value.
        notes: Facts that qualify the scores, such as lines that were trained on.
        training_command: Shown instead of the command of a training process.
    """
    tables = [make_results_table(task, results)]
    if any(systems[0].false_alarms_by_kind for systems in results.values()):
        tables.append(make_kinds_table(task, results))
    sentences = [*summarize_results(results), *(f"{note}." for note in notes)]

    test_sets: list[dict[str, Any]] = []
    for name, systems in results.items():
        values = {system.system: system.as_dict(task) for system in systems}
        lines = len(systems[0].counts.units)
        test_sets.append({"test_set": name, "lines": lines, "systems": values})

    title = REPORTINGS[task].title
    commands = describe_command(training_command)
    page = Page(title, sentences, facts, [Section(tables=tables)], commands)
    content = {"task": task, "notes": [*notes], "test_sets": test_sets}
    written = write_report(page, content, folder)
    print_report(tables, sentences, written)


def make_results_table(task: str, results: Results) -> Table:
    """Makes the table of results: one row per test set and system."""
    rows_of_metrics = select_report_rows(METRICS[task])
    columns = [
        Column("test set"),
        Column("system"),
        *(Column(metric.label, metric.format) for metric in rows_of_metrics.values()),
        Column("model's F1 minus", partial(format_share, sign="+")),
    ]

    rows: list[list[Cell]] = []
    for name, systems in results.items():
        for number, system in enumerate(systems):
            # False alarms have a column even if they are unknown; F1 is shown with its interval.
            cells: dict[str, Cell] = dict.fromkeys(rows_of_metrics)
            cells.update(system.values(task))
            cells["f1"] = system.f1
            start = [name if number == 0 else "", system.system]
            rows.append([*start, *cells.values(), system.difference])

    task_reporting = REPORTINGS[task]
    verb = "changes" if task_reporting.corrects else "flags"
    note = (
        "In brackets: 95% intervals, bootstrap over the lines "
        f"({_describe_line_counts(results)}), the same for all systems. False alarms: "
        f"{task_reporting.unit} of the correct text that a system {verb}."
    )
    if task_reporting.corrects:
        note += " F1 per line: the mean over the lines; 1 for a line without errors and changes."
    return Table(task_reporting.title, note, columns, rows, is_grouped=True)


def make_kinds_table(task: str, results: Results) -> Table:
    """Makes the table of false alarms by kind of word: a row per test set and kind."""
    systems = [system.system for system in next(iter(results.values()))]
    columns = [Column("test set"), Column("kind of word"), Column("words", "{:,}".format)]
    columns += [Column(name, "{:.2%}".format) for name in systems]

    rows: list[list[Cell]] = []
    for name, test_results in results.items():
        first_cell = name
        for kind, alarms in test_results[0].false_alarms_by_kind.items():
            rates = [result.false_alarms_by_kind[kind].rate for result in test_results]
            shown_rates: list[Cell] = [*rates] if alarms.words else [None] * len(rates)
            rows.append([first_cell, kind, alarms.words, *shown_rates])
            first_cell = ""

    verb = "changes" if REPORTINGS[task].corrects else "flags"
    note = (
        f"Share of the words of the correct text, of each kind, that a system {verb}. A word of "
        "several kinds counts as the last of them in the table."
    )
    return Table("False alarms by kind of word", note, columns, rows, is_grouped=True)


def _describe_line_counts(results: Results) -> str:
    return ", ".join(f"{len(systems[0].counts.units):,}" for systems in results.values())


def summarize_results(results: Results) -> list[str]:
    """Describes each test set in a sentence: the model compared with the best baseline."""
    sentences: list[str] = []
    for name, (model, *others) in results.items():
        sentence = f"{name}: the model's F1 is {format_share(model.f1.value)}"
        if others:
            best = max(others, key=lambda other: other.counts.f1)
            assert best.difference is not None
            difference = best.difference.value
            interval = best.difference.interval
            caveat = "" if interval.excludes_zero else ": not distinguishable"
            sentence += (
                f", {format_share(difference, '+')} compared with {best.system} (95% interval "
                f"{format_share(interval.low, '+')} to {format_share(interval.high, '+')}{caveat})"
            )
        caveats = warn_of_rough_intervals(len(model.counts.units), "lines")
        sentences.append(" ".join([f"{sentence}.", *caveats]))
    return sentences

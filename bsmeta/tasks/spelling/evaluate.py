"""The test sets of a spelling task, scored after the last step or by `evaluate.py`; the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from bsmeta.config.tools import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.report.inference import rough_intervals
from bsmeta.report.page import Page, Section, own_command, print_report, write_report
from bsmeta.report.table import Cell, Column, Estimate, Table
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import Location, begin_with, check_keys, report_folder, training_run
from bsmeta.tasks.spelling.benchmarks import (
    Judge,
    SystemResult,
    TestResult,
    judge_test_sets,
    read_test_sets,
)
from bsmeta.tasks.spelling.config import (
    SecConfig,
    SedSequenceConfig,
    SedWordsConfig,
    SpellingConfig,
)
from bsmeta.training.task import EvaluationContext, FinishContext, Metric

NAMES = {
    "sed_words": "Words with errors",
    "sed_sequence": "Sequences with errors",
    "sec": "Corrections",
}


LOWER = ("edit_distance", "false_alarms")
"""Metrics of which lower is better."""


def run(config: EvaluateConfig, locations: Sequence[Location], context: EvaluationContext) -> None:
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
        task = TASKS[train.task].make(train)
        model = task.load(Path(location.model)).to(context.device)
        _score(
            train,
            partial(task.judge, model, context=context),
            context,
            location.name,
            report_folder(config, location, has_other_data=other) if context.is_main else Path(),
        )


def finish(config: SpellingConfig, judge: Judge, context: FinishContext) -> list[Metric]:
    """Scores the test sets of the run with its exported model; rank 0 writes the report.

    Returns:
        The metrics of the model, the same on every rank.
    """
    return [
        Metric(name, value, better="min" if name in LOWER else "max", split=result.name)
        for result in _score(
            config, judge, context, str(context.exported), context.folder / "evaluation"
        )
        for name, value in values_of(config.task, result.systems[0]).items()
    ]


def _score(
    config: SpellingConfig, judge: Judge, context: EvaluationContext, checkpoint: str, folder: Path
) -> list[TestResult]:
    """Scores the test sets of a configuration on all processes; rank 0 writes the report."""
    task = config.task
    test_sets = read_test_sets(Path(str(config.benchmarks)), task, config.benchmark_lines)
    results = judge_test_sets(
        task, test_sets, judge, context,
        word_list=config.dictionary, resamples=config.bootstrap_resamples, seed=config.seed,
    )  # fmt: skip
    if context.rank == 0:
        facts = {
            "checkpoint": checkpoint,
            "test sets": str(config.benchmarks),
            "lines": _lines(results),
            "intervals": f"bootstrap over lines, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        report(task, results, facts, folder)
    return results


def report(
    task: str, results: Sequence[TestResult], facts: Mapping[str, str], folder: Path
) -> None:
    """Writes the report and prints it.

    Args:
        task: The task.
        results: The result on each test set.
        facts: What was scored.
        folder: Where the report goes.
    """
    table, sentences = table_of(task, results), summary(results)
    content = {"task": task, "test_sets": [as_dict(task, result) for result in results]}
    page = Page(NAMES[task], sentences, facts, [Section(tables=[table])], own_command())
    print_report([table], sentences, write_report(page, content, folder))


def as_dict(task: str, result: TestResult) -> dict[str, Any]:
    """Plain values for JSON."""
    systems = {}
    for system in result.systems:
        systems[system.system] = values_of(task, system) | {"f1_interval": astuple(system.f1)}
        if system.difference is not None:
            systems[system.system]["model_minus_this"] = system.difference.value
            systems[system.system]["interval"] = astuple(system.difference.interval)
    return {"test_set": result.name, "lines": result.lines, "systems": systems}


def values_of(task: str, system: SystemResult) -> dict[str, Any]:
    """The metrics of a system by name."""
    counts = system.counts
    values = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
    if task == "sec":
        values["sequence_f1"] = counts.sequence_f1
        values["edit_distance"] = counts.mean_distance
    else:
        values["accuracy"] = counts.accuracy
    return values if system.false_alarms is None else values | {"false_alarms": system.false_alarms}


def table_of(task: str, results: Sequence[TestResult]) -> Table:
    """One table over all test sets."""
    more = [Column("F1 per line", _number), Column("edit distance", "{:.4f}".format)]
    columns = [
        Column("test set"), Column("system"), Column("F1", _number), Column("precision", _number),
        Column("recall", _number), *(more if task == "sec" else [Column("accuracy", _number)]),
        Column("false alarms", "{:.2%}".format),
        Column("model's F1 minus", partial(_number, sign="+")),
    ]  # fmt: skip
    rows = [
        [result.name if number == 0 else "", *_cells(task, system)]
        for result in results
        for number, system in enumerate(result.systems)
    ]
    units = {"sed_words": "words", "sed_sequence": "lines", "sec": "words"}[task]
    done = "changes" if task == "sec" else "flags"
    note = (
        f"In brackets: 95% intervals, bootstrap over the lines ({_lines(results)}), the same for "
        f"all systems. False alarms: {units} of the correct text that a system {done}."
    )
    if task == "sec":
        note += " F1 per line: the mean over the lines; 1 for a line without errors and changes."
    return Table(NAMES[task], note, columns, rows)


def _lines(results: Sequence[TestResult]) -> str:
    return ", ".join(f"{result.lines:,}" for result in results)


def _cells(task: str, system: SystemResult) -> list[Cell]:
    values = values_of(task, system)
    more = ("sequence_f1", "edit_distance") if task == "sec" else ("accuracy",)
    return [
        system.system, Estimate(values["f1"], system.f1), values["precision"], values["recall"],
        *(values[name] for name in more), system.false_alarms, system.difference,
    ]  # fmt: skip


def summary(results: Sequence[TestResult]) -> list[str]:
    """One sentence for each test set: the model beside the best of the others."""
    sentences = []
    for result in results:
        model, *others = result.systems
        sentence = f"{result.name}: the model's F1 is {_number(model.counts.f1)}"
        if others:
            best = max(others, key=lambda other: other.counts.f1)
            assert best.difference is not None
            difference, interval = best.difference.value, best.difference.interval
            unclear = "" if interval.excludes_zero else ": not distinguishable"
            sentence += (
                f", {_number(difference, '+')} compared with {best.system} (95% interval "
                f"{_number(interval.low, '+')} to {_number(interval.high, '+')}{unclear})"
            )
        sentences.append(" ".join([f"{sentence}.", *rough_intervals(result.lines, "lines")]))
    return sentences


def _number(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point: the table is wide."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.3f}"

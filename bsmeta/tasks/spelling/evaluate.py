"""The test sets of a spelling task, scored after the last step or by `evaluate.py`; the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.config.spelling import SecConfig, SedSequenceConfig, SedWordsConfig, SpellingConfig
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.statistics import Interval, rough_intervals
from bsmeta.evaluation.tables import NONE, Table
from bsmeta.tasks import TASKS
from bsmeta.tasks.base import EvaluationContext, FinishContext, Metric
from bsmeta.tasks.reports import begin, print_report, report_folder, training_run, write_report
from bsmeta.tasks.spelling.baseline import Judge
from bsmeta.tasks.spelling.benchmarks import (
    SystemResult,
    TestResult,
    judge_test_sets,
    read_test_sets,
)

NAMES = {
    "sed_words": "Words with errors",
    "sed_sequence": "Sequences with errors",
    "sec": "Corrections",
}


LOWER = ("edit_distance", "false_alarms")
"""Metrics of which lower is better."""


def run(
    config: EvaluateConfig, locations: Sequence[Location], ranks: Ranks, device: torch.device
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    `validation_file` names the folder of the test sets; by default that of the training run.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    context = begin(config, "a spelling task", "max_documents", ranks, device)
    other = config.validation_file is not None
    for location in locations:
        train = training_run(config, location, SedWordsConfig, SedSequenceConfig, SecConfig)
        train.benchmarks = config.validation_file or train.benchmarks
        train.benchmark_lines = config.max_documents
        if train.benchmarks is None:
            raise ConfigurationError(
                f"checkpoint={location.name}: its run has no test sets; name a folder of "
                "TASK/GROUP/SPLIT/{corrupt,correct}.txt: validation_file=FOLDER"
            )
        task = TASKS[train.task].make(train)
        model = task.load(Path(location.model)).to(device)
        _score(
            train,
            partial(task.judge, model, context=context),
            context,
            report_folder(config, location, has_other_data=other) if ranks.is_main else Path(),
        )


def finish(config: SpellingConfig, judge: Judge, context: FinishContext) -> list[Metric]:
    """Scores the test sets of the run with its exported model; rank 0 writes the report.

    Returns:
        The metrics of the model, the same on every rank.
    """
    return [
        Metric(name, value, better="min" if name in LOWER else "max", split=result.name)
        for result in _score(config, judge, context, context.folder / "evaluation")
        for name, value in values_of(config.task, result.systems[0]).items()
    ]


def _score(
    config: SpellingConfig, judge: Judge, context: EvaluationContext, folder: Path
) -> list[TestResult]:
    """Scores the test sets of a configuration on all processes; rank 0 writes the report."""
    task = config.task
    test_sets = read_test_sets(Path(str(config.benchmarks)), task, config.benchmark_lines)
    results = judge_test_sets(
        task, test_sets, judge, context,
        word_list=config.word_list, resamples=config.bootstrap_resamples, seed=config.seed,
    )  # fmt: skip
    if context.rank == 0:
        table, sentences = table_of(task, results), summary(results)
        content = {"task": task, "test_sets": [as_dict(task, result) for result in results]}
        files = write_report(NAMES[task], content, sentences, [table], {}, folder)
        print_report([table], sentences, files)
    return results


def as_dict(task: str, result: TestResult) -> dict[str, Any]:
    """Plain values for JSON."""
    systems = {}
    for system in result.systems:
        systems[system.system] = values_of(task, system) | {"f1_interval": astuple(system.f1)}
        if system.difference is not None:
            systems[system.system]["model_minus_this"] = system.difference.difference
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
    more = ["F1 per line", "edit distance"] if task == "sec" else ["accuracy"]
    heads = [
        "test set", "system", "F1", "precision", "recall", *more, "false alarms", "model's F1 minus"
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
    return Table(NAMES[task], note, heads, rows)


def _lines(results: Sequence[TestResult]) -> str:
    return ", ".join(f"{result.lines:,}" for result in results)


def _cells(task: str, system: SystemResult) -> list[str]:
    values = values_of(task, system)
    more = (
        [_number(values["sequence_f1"]), f"{values['edit_distance']:.4f}"]
        if task == "sec"
        else [_number(values["accuracy"])]
    )
    alarms, difference = system.false_alarms, system.difference
    compared = NONE if difference is None else _cell(
        difference.difference, difference.interval, sign="+"
    )  # fmt: skip
    return [
        system.system, _cell(values["f1"], system.f1), _number(values["precision"]),
        _number(values["recall"]), *more, NONE if alarms is None else f"{alarms:.2%}", compared,
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
            difference, interval = best.difference.difference, best.difference.interval
            unclear = "" if best.difference.is_significant else ": not distinguishable"
            sentence += (
                f", {_number(difference, '+')} compared with {best.system} (95% interval "
                f"{_number(interval.low, '+')} to {_number(interval.high, '+')}{unclear})"
            )
        sentences.append(" ".join([f"{sentence}.", *rough_intervals(result.lines, "lines")]))
    return sentences


def _cell(value: float, interval: Interval, sign: str = "") -> str:
    ends = f"{_number(interval.low, sign)} to {_number(interval.high, sign)}"
    return f"{_number(value, sign)} ({ends})"


def _number(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point: the table is wide."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.3f}"

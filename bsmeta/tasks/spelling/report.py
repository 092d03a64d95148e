"""The report on test sets: the model beside its baselines, with intervals, in several forms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from bsmeta.config.spelling import SpellingConfig
from bsmeta.evaluation.output import WIDTH_OF_A_FILE, html_page, html_table, rich_table
from bsmeta.evaluation.statistics import Interval
from bsmeta.evaluation.tables import NONE, Table, markdown
from bsmeta.tasks.base import FinishContext, Metric
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


def finish(config: SpellingConfig, judge: Judge, context: FinishContext) -> list[Metric]:
    """Scores the test sets of the run with its best checkpoint; rank 0 writes the report.

    Returns:
        The metrics of the model, the same on every rank.
    """
    assert config.benchmarks is not None
    test_sets = read_test_sets(Path(config.benchmarks), config.task, config.benchmark_lines)
    results = judge_test_sets(
        config.task, test_sets, judge, context,
        word_list=config.word_list, resamples=config.bootstrap_resamples, seed=config.seed,
    )  # fmt: skip
    if context.rank == 0:
        files = write_report(config.task, results, context.folder / "evaluation")
        print_report(config.task, results, files)
    return [
        Metric(name, value, better="min" if name in LOWER else "max", split=result.name)
        for result in results
        for name, value in values_of(config.task, result.systems[0]).items()
    ]


def write_report(task: str, results: Sequence[TestResult], folder: Path) -> list[Path]:
    """Writes `evaluation.json`, `evaluation.md` and `report.html`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    table, sentences = table_of(task, results), summary(results)
    content = {"task": task, "test_sets": [as_dict(task, result) for result in results]}
    texts = {
        "evaluation.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
        "evaluation.md": "\n\n".join([f"# {NAMES[task]}", *sentences, markdown([table]), ""]),
        "report.html": html_page(
            NAMES[task], [f'<p class="lead">{escape(" ".join(sentences))}</p>', html_table(table)]
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def print_report(task: str, results: Sequence[TestResult], files: Sequence[Path]) -> None:
    """Prints the table, the summary, and the paths of the files."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    table = table_of(task, results)
    console.print(rich_table(table))
    console.print(f"[dim]{table.note}[/dim]")
    for sentence in summary(results):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    names = ", ".join(file.name for file in files)
    console.print(f"written to {files[0].parent}: {names}", markup=False, soft_wrap=True)


def as_dict(task: str, result: TestResult) -> dict[str, Any]:
    """Plain values for JSON."""
    systems = {}
    for system in result.systems:
        systems[system.system] = values_of(task, system) | {"f1_interval": _ends(system.f1)}
        if system.difference is not None:
            systems[system.system]["model_minus_this"] = system.difference.difference
            systems[system.system]["interval"] = _ends(system.difference.interval)
    return {"test_set": result.name, "lines": result.lines, "systems": systems}


def values_of(task: str, system: SystemResult) -> dict[str, Any]:
    """The metrics of a system by name."""
    counts = system.counts
    values = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
    if task == "sec":
        values["edit_distance"] = counts.mean_distance
    else:
        values["accuracy"] = counts.accuracy
    return values if system.false_alarms is None else values | {"false_alarms": system.false_alarms}


def table_of(task: str, results: Sequence[TestResult]) -> Table:
    """One table over all test sets."""
    last = "edit distance" if task == "sec" else "accuracy"
    heads = [
        "test set", "system", "F1", "precision", "recall", last, "false alarms", "model's F1 minus"
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
    return Table(NAMES[task], note, heads, rows)


def _lines(results: Sequence[TestResult]) -> str:
    return ", ".join(f"{result.lines:,}" for result in results)


def _cells(task: str, system: SystemResult) -> list[str]:
    values = values_of(task, system)
    last = f"{values['edit_distance']:.4f}" if task == "sec" else _number(values["accuracy"])
    alarms, difference = system.false_alarms, system.difference
    compared = NONE if difference is None else _cell(
        difference.difference, difference.interval, sign="+"
    )  # fmt: skip
    return [
        system.system, _cell(values["f1"], system.f1), _number(values["precision"]),
        _number(values["recall"]), last, NONE if alarms is None else f"{alarms:.2%}", compared,
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
        sentences.append(f"{sentence}.")
    return sentences


def _cell(value: float, interval: Interval, sign: str = "") -> str:
    ends = f"{_number(interval.low, sign)} to {_number(interval.high, sign)}"
    return f"{_number(value, sign)} ({ends})"


def _number(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point: the table is wide."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.3f}"


def _ends(interval: Interval) -> list[float]:
    return [interval.low, interval.high]

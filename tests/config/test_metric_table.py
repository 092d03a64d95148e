"""Every metric of a task is a row of the task's table; all other code reads it there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from bsmeta.config.checks.loop import find_loop_problems
from bsmeta.config.launch import Launch
from bsmeta.config.metric_table import (
    MetricDefinition,
    list_best_metrics,
    list_card_metrics,
    load_metric_table,
)
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.keys import key
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.metrics import METRICS as CAUSAL_LM
from bsmeta.tasks.classification.metrics import METRICS as CLASSIFICATION
from bsmeta.tasks.disambiguation.metrics import METRICS as DISAMBIGUATION
from bsmeta.tasks.spelling.metrics import CORRECTION_METRICS, DETECTION_METRICS
from tests.conftest import REPOSITORY

HELD_OUT = {
    "small": MetricDefinition[float](label="small", better="min", compute=float),
    "large": MetricDefinition[float](label="large", better="max", compute=float, in_card=False),
    "count": MetricDefinition[float](label="count", better=None, compute=float),
    "tested": MetricDefinition[float](
        label="tested", better="max", compute=float, in_training=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class MeasuredConfig(RunConfig):
    """A run whose table is in this file."""

    metrics: ClassVar[str | None] = f"{__name__}:HELD_OUT"
    task: str = key("measured", "what is trained")


@dataclass(frozen=True, kw_only=True)
class UnknownConfig(RunConfig):
    """A run whose metrics are known only when it evaluates."""


ENTRY = TaskEntry(schema=f"{__name__}:MeasuredConfig", make=lambda _: pytest.fail("made"))


def refused_metrics(config: RunConfig) -> list[tuple[str, str]]:
    launch = Launch(source="test", num_processes=1)
    problems = find_loop_problems(config, launch, None, ENTRY)
    return [
        (problem.expected, problem.fix) for problem in problems if problem.key == "keep_best_by"
    ]


def test_the_flags_of_a_row_decide_where_its_metric_is_used() -> None:
    assert load_metric_table(MeasuredConfig) is HELD_OUT
    assert list_best_metrics(MeasuredConfig()) == ["small", "large"]
    assert list_card_metrics(MeasuredConfig()) == ["small", "count"]
    assert load_metric_table(UnknownConfig) is None
    assert list_best_metrics(UnknownConfig()) is None
    assert list_card_metrics(UnknownConfig()) == []


def test_only_a_metric_of_the_training_with_a_direction_selects_the_best_checkpoint() -> None:
    def refuse(name: str) -> list[tuple[str, str]]:
        return refused_metrics(MeasuredConfig(eval_steps=5, keep_best_by=name))

    assert refuse("small") == refuse("large") == []
    assert refuse("count") == [("one of small, large", "keep_best_by=small")]
    assert refuse("tested") == [("one of small, large", "keep_best_by=small")]
    assert refuse("larg") == [("one of small, large (did you mean large?)", "keep_best_by=large")]
    assert refused_metrics(UnknownConfig(eval_steps=5, keep_best_by="any")) == []


def test_each_task_lists_the_metrics_that_select_the_best_checkpoint() -> None:
    assert {name: list_best_metrics(entry.config()) for name, entry in TASKS.items()} == {
        "causal_lm": [
            "bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte",
            "perplexity_without", "perplexity_with", "mean_document_difference",
        ],
        "classification": [
            "loss", "accuracy", "balanced_accuracy", "macro_f1", "mcc", "chunk_accuracy",
            "subset_accuracy", "micro_f1", "sample_f1", "micro_precision", "micro_recall",
            "macro_precision", "macro_recall", "sample_precision", "sample_recall",
        ],
        "sed_words": ["loss", "f1", "precision", "recall", "accuracy", "false_alarms"],
        "sed_sequence": ["loss", "f1", "precision", "recall", "accuracy", "false_alarms"],
        "sec": ["loss", "correction_f1", "edit_distance", "false_alarms"],
        "disambiguation": None,  # those of the slices of the data
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "lower", "neither"),
    [
        (
            CAUSAL_LM,
            {
                "bits_per_byte_without", "bits_per_byte_with", "difference", "text_bits_per_byte",
                "perplexity_without", "perplexity_with", "mean_document_difference",
            },
            {
                "documents", "bytes", "tokens", "difference_low", "difference_high",
                "mean_document_difference_low", "mean_document_difference_high",
                "documents_better", "documents_worse", "sign_test_p",
            },
        ),
        (CLASSIFICATION, {"loss"}, set()),
        (DETECTION_METRICS, {"loss", "false_alarms"}, set()),
        (CORRECTION_METRICS, {"loss", "edit_distance", "false_alarms"}, set()),
        (DISAMBIGUATION, {"loss"}, {"mentions"}),
    ],
)  # fmt: skip
def test_each_metric_has_the_right_direction(
    table: dict[str, MetricDefinition[Any]], lower: set[str], neither: set[str]
) -> None:
    by_direction: dict[str | None, set[str]] = {"min": set(), "max": set(), None: set()}
    for name, definition in table.items():
        by_direction[definition.better].add(name)
    assert by_direction["min"] == lower
    assert by_direction[None] == neither


def list_written_metrics() -> Iterator[tuple[str, str]]:
    """Yields the file and the first argument of each call of `Metric` with a name in it."""
    for path in sorted((REPOSITORY / "bsmeta" / "tasks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_metric = isinstance(node, ast.Call) and ast.unparse(node.func) == "Metric"
            if is_metric and node.args and isinstance(node.args[0], ast.Constant):
                yield path.name, str(node.args[0].value)


def test_no_task_names_a_metric_where_it_evaluates() -> None:
    assert [*list_written_metrics()] == []

"""The table of documents on the page, within its limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bsmeta.report.page import Table
from bsmeta.tasks.causal_lm.evaluation.arms import AGAINST_PREFIX, Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.document_table import MAX_ROWS, make_document_table
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, Report, Row
from tests.tasks.causal_lm.evaluation.helpers import OWN, make_metrics, make_sums

HEADS = [
    "document", "comparison", "difference", "without", "with", "text bytes", "tokens without",
    "tokens with",
]  # fmt: skip


def make_model(differences: dict[str, np.ndarray], **changes: object) -> ModelReport:
    """Returns a model with the given difference of each document; NaN: the document is excluded."""
    rows, totals = [], {}
    for name, values in differences.items():
        takes_part = ~np.isnan(values)
        sums = make_sums(np.nan_to_num(values)) * takes_part[:, None]
        group, _, _ = name.partition("/")
        metrics = make_metrics(values[takes_part], [""] * int(takes_part.sum()))
        rows.append(Row(Comparison(name, group, Arm(), OWN), metrics))
        totals[name] = sums
    count = max(map(len, differences.values()))
    model = ModelReport(
        "runs/a", "runs/a", {}, rows, [f"a.jsonl.gz:{n}" for n in range(count)], [], totals
    )
    return replace(model, **changes)  # type: ignore[arg-type]


def make_table(*models: ModelReport) -> Table:
    return make_document_table(Report({}, list(models)))


def test_rows_are_sorted_by_difference_within_each_comparison() -> None:
    model = make_model(
        {"all": np.array([0.5, -0.25, np.nan, 0.125]), "each/url": np.array([np.nan, 1, 0, -1.0])}
    )
    table = make_table(model)
    assert table.heads == HEADS
    assert table.format_cells() == [
        ["a.jsonl.gz:1", "all together", "-0.2500", "2.0000", "1.7500", "100", "20", "20"],
        ["a.jsonl.gz:3", "all together", "+0.1250", "2.0000", "2.1250", "100", "20", "20"],
        ["a.jsonl.gz:0", "all together", "+0.5000", "2.0000", "2.5000", "100", "20", "20"],
        ["a.jsonl.gz:3", "url", "-1.0000", "2.0000", "1.0000", "100", "20", "20"],
        ["a.jsonl.gz:2", "url", "+0.0000", "2.0000", "2.0000", "100", "20", "20"],
        ["a.jsonl.gz:1", "url", "+1.0000", "2.0000", "3.0000", "100", "20", "20"],
    ]
    lines = [line for line in model.iterate_document_lines() if line["comparison"] != "text"]
    assert len(lines) == len(table.rows)
    assert "Shown are" not in table.note


def test_hosts_and_checkpoints_are_columns_if_they_differ() -> None:
    differences = {"all": np.array([0.5, -0.25])}
    first = make_model(differences, hosts=["a.org", "x" * 300])
    assert make_table(first).heads[:3] == ["document", "host", "comparison"]
    assert [row[1] for row in make_table(first).rows] == [f"{'x' * 59}…", "a.org"]
    table = make_table(first, make_model(differences, checkpoint="runs/b"))
    assert table.heads[:4] == ["document", "checkpoint", "host", "comparison"]
    assert [row[1:3] for row in table.rows] == [
        ["runs/a", f"{'x' * 59}…"], ["runs/a", "a.org"], ["runs/b", ""], ["runs/b", ""]
    ]  # fmt: skip


@pytest.mark.parametrize("models", [1, 3])
def test_of_many_documents_only_both_extremes_are_shown(models: int) -> None:
    values = np.linspace(-1, 1, 5_001)
    names = ["all", "each/url", "each/title", "matched/all", f"{AGAINST_PREFIX}matched/all"]
    table = make_table(*[make_model(dict.fromkeys(names, values)) for _ in range(models)])
    assert len(table.rows) <= MAX_ROWS
    assert len(table.rows) > 0.98 * MAX_ROWS
    main = [row for row in table.rows if row[-7] == "all together"]
    share = MAX_ROWS // models // 2
    assert len(main) == models * (share - share % 2)
    first, last = main[0], main[share - share % 2 - 1]
    assert first[-6] == pytest.approx(-1)
    assert last[-6] == pytest.approx(1)
    total = 5_001 * len(names) * models
    assert f"Shown are {len(table.rows):,} of {total:,} rows (at most 2,000)" in table.note


def test_without_a_comparison_there_are_no_rows() -> None:
    assert make_table(ModelReport("a", "a", {}, [], [], [], {})).rows == []

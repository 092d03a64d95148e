"""The table of documents on the page, within its limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bsmeta.report.page import Table
from bsmeta.tasks.causal_lm.evaluation.arms import AGAINST_PREFIX, Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.document_table import MAX_ROWS, make_document_table
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, Report, Row
from tests.tasks.causal_lm.evaluation.helpers import OWN, metrics_of, sums_of

HEADS = [
    "document", "comparison", "difference", "without", "with", "text bytes", "tokens without",
    "tokens with",
]  # fmt: skip


def model_of(differences: dict[str, np.ndarray], **changes: object) -> ModelReport:
    """A model by the difference of each document in each comparison; NaN: it takes no part."""
    rows, totals = [], {}
    for name, values in differences.items():
        takes_part = ~np.isnan(values)
        sums = sums_of(np.nan_to_num(values)) * takes_part[:, None]
        group, _, _ = name.partition("/")
        metrics = metrics_of(values[takes_part], [""] * int(takes_part.sum()))
        rows.append(Row(Comparison(name, group, Arm(), OWN), metrics))
        totals[name] = sums
    count = max(map(len, differences.values()))
    model = ModelReport(
        "runs/a", "runs/a", {}, rows, [f"a.jsonl.gz:{n}" for n in range(count)], [], totals
    )
    return replace(model, **changes)  # type: ignore[arg-type]


def table_of(*models: ModelReport) -> Table:
    return make_document_table(Report({}, list(models)))


def test_rows_are_the_lines_of_each_comparison_by_rising_difference() -> None:
    model = model_of(
        {"all": np.array([0.5, -0.25, np.nan, 0.125]), "each/url": np.array([np.nan, 1, 0, -1.0])}
    )
    table = table_of(model)
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


def test_hosts_and_checkpoints_are_columns_where_they_differ() -> None:
    differences = {"all": np.array([0.5, -0.25])}
    first = model_of(differences, hosts=["a.org", "x" * 300])
    assert table_of(first).heads[:3] == ["document", "host", "comparison"]
    assert [row[1] for row in table_of(first).rows] == [f"{'x' * 59}…", "a.org"]
    table = table_of(first, model_of(differences, checkpoint="runs/b"))
    assert table.heads[:4] == ["document", "checkpoint", "host", "comparison"]
    assert [row[1:3] for row in table.rows] == [
        ["runs/a", f"{'x' * 59}…"], ["runs/a", "a.org"], ["runs/b", ""], ["runs/b", ""]
    ]  # fmt: skip


@pytest.mark.parametrize("models", [1, 3])
def test_many_documents_are_those_at_both_ends(models: int) -> None:
    values = np.linspace(-1, 1, 5_001)
    names = ["all", "each/url", "each/title", "matched/all", f"{AGAINST_PREFIX}matched/all"]
    table = table_of(*[model_of(dict.fromkeys(names, values)) for _ in range(models)])
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
    assert table_of(ModelReport("a", "a", {}, [], [], [], {})).rows == []

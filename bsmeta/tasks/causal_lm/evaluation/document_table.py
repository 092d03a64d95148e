"""The table of documents on the page of a report: lines of `documents.jsonl`, within a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bsmeta.report.cells import Cell
from bsmeta.report.figures import shorten_name
from bsmeta.report.page import COUNT, Column, Table
from bsmeta.tasks.causal_lm.evaluation.readings import (
    BYTES,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
)
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, Report, Row
from bsmeta.tasks.causal_lm.evaluation.shown_documents import compute_differences, select_extremes
from bsmeta.tasks.causal_lm.evaluation.tables import (
    BITS,
    DIFFERENCE,
    SIGNED,
    WITH,
    WITHOUT,
    find_main_row,
    label_row,
)
from bsmeta.tasks.causal_lm.evaluation.tables import BYTES as TEXT_BYTES

MAX_ROWS = 2_000
"""Number of rows on the page, about 1 MB; half of them at most are of the main comparisons."""


def make_document_table(report: Report) -> Table:
    """Makes the table with a row for each document and comparison.

    If they are more than `MAX_ROWS`, each comparison has the documents with the largest savings and
    the largest costs. The main comparison, which comes first, has at least as many as the others.
    """
    has_several = len(report.models) > 1
    has_hosts = any(any(model.hosts) for model in report.models)
    columns = [
        Column("document"),
        *([Column("checkpoint")] if has_several else []),
        *([Column("host")] if has_hosts else []),
        Column("comparison"),
        Column(DIFFERENCE, SIGNED),
        Column(WITHOUT, BITS),
        Column(WITH, BITS),
        Column(TEXT_BYTES, COUNT),
        Column("tokens without", COUNT),
        Column("tokens with", COUNT),
    ]

    rows: list[list[Cell]] = []
    total = 0
    for model in report.models:
        limit = MAX_ROWS // len(report.models)
        for row, row_limit in _share_rows(model, limit):
            total += int((model.totals[row.comparison.name][:, BYTES] > 0).sum())
            for index in _select_documents(model, row, row_limit):
                rows.append(
                    _make_row(model, row, index, has_several=has_several, has_hosts=has_hosts)
                )
    return Table("Each document", _join_notes(len(rows), total), columns, rows)


def _share_rows(model: ModelReport, limit: int) -> Iterator[tuple[Row, int]]:
    """Yields the comparisons of a model, its main one first, each with its share of a limit."""
    main = find_main_row(model)
    if main is None or main.comparison.name not in model.totals:
        return

    others = [
        row
        for row in model.rows
        if row.compares and row is not main and row.comparison.name in model.totals
    ]
    main_limit = limit // 2 if others else limit
    yield main, main_limit

    remaining = limit - len(_select_documents(model, main, main_limit))
    for row in others:
        yield row, remaining // len(others)


def _select_documents(model: ModelReport, row: Row, limit: int) -> list[int]:
    """Selects the documents with the largest savings and costs, by rising difference."""
    differences = compute_differences(model.totals[row.comparison.name])
    return select_extremes(differences, limit // 2)


def _make_row(
    model: ModelReport, row: Row, index: int, *, has_several: bool, has_hosts: bool
) -> list[Cell]:
    sums = model.totals[row.comparison.name][index]
    without, with_metadata = (
        float(sums[column]) / math.log(2) / float(sums[BYTES])
        for column in (NATS_WITHOUT, NATS_WITH)
    )
    return [
        model.names[index],
        *([model.checkpoint] if has_several else []),
        *([shorten_name(model.hosts[index]) if model.hosts else ""] if has_hosts else []),
        label_row(row),
        with_metadata - without,
        without,
        with_metadata,
        *(int(sums[column]) for column in (BYTES, TOKENS, TOKENS_WITH)),
    ]


def _join_notes(row_count: int, total: int) -> str:
    note = (
        "Without and with are bits per byte of the document; the difference is with minus without "
        "(below 0: metadata helps). In each comparison, the documents stand by rising difference."
    )
    if row_count < total:
        note += (
            f" Shown are {row_count:,} of {total:,} rows (at most {MAX_ROWS:,}): of each "
            "comparison, the documents with the largest savings and costs. `documents.jsonl` has "
            "all of them."
        )
    return note

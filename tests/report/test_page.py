"""Tables: cells, order, Markdown, and the terminal."""

from __future__ import annotations

import io

from bsmeta.core.terminal import Console
from bsmeta.report.inference import Estimate, Interval
from bsmeta.report.page import COUNT, Column, Table, print_table

SIGNED = "{:+.1f}".format
GAINS = Table(
    "Gains",
    "A [note].",
    [Column("slice"), Column("texts", COUNT), Column("gain", SIGNED), Column("interval", SIGNED)],
    [
        ["a|b", 1200, Estimate(4.6, Interval(3.9, 5.3)), Interval(-1.0, 2.0)],
        ["worse", 7, -1.5, None],
        ["unknown", 0, float("nan"), "over one text"],
    ],
)


def test_cells_have_the_format_of_their_column() -> None:
    assert GAINS.format_cells() == [
        ["a|b", "1,200", "+4.6 (+3.9 to +5.3)", "-1.0 to +2.0"],
        ["worse", "7", "-1.5", "–"],
        ["unknown", "0", "–", "over one text"],
    ]


def test_rows_are_sorted_by_ascending_value() -> None:
    assert [row[0] for row in GAINS.sort_by("gain").format_cells()] == ["unknown", "worse", "a|b"]
    assert [row[0] for row in GAINS.rows] == ["a|b", "worse", "unknown"]


def test_empty_columns_are_left_out() -> None:
    assert GAINS.drop_columns("texts", "interval").format_cells()[1] == ["worse", "-1.5"]
    assert GAINS.drop_columns("texts", "interval").heads == ["slice", "gain"]


def test_markdown_aligns_numbers_and_escapes_bars() -> None:
    heading, table, note = GAINS.iterate_markdown(level=3)
    assert heading == "### Gains"
    assert table.splitlines()[1:3] == [
        "|---|---:|---:|---:|",
        "| a\\|b | 1,200 | +4.6 (+3.9 to +5.3) | -1.0 to +2.0 |",
    ]
    assert note == "A [note]."


def test_numbers_are_not_truncated_in_a_table_wider_than_the_console() -> None:
    console = Console(width=20, file=io.StringIO())
    print_table(console, GAINS)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "+4.6 (+3.9 to +5.3)   -1.0 to +2.0" in printed
    assert printed.endswith("A [note].\n")

"""Tables in the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from bsmeta.evaluation.output import print_table
from bsmeta.evaluation.tables import Table


def test_numbers_are_not_cut_where_the_table_is_wider_than_the_console() -> None:
    table = Table(
        "Gains", "A [note].", ["slice", "one", "two"], [["all", "+4.6 (+3.9)", "+1.2 (+0.1)"]]
    )
    console = Console(width=20, file=io.StringIO())
    print_table(console, table)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "+4.6 (+3.9)  +1.2 (+0.1)" in printed
    assert printed.endswith("A [note].\n")

"""Tables in the terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bsmeta.evaluation import output
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


def test_progress_without_a_terminal_is_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with output.progress_bar(shown=True) as advance:
        for second, share in ((1, 0.1), (11, 0.25), (12, 0.3), (40, 1.0)):
            clock[0] = 100.0 + second
            advance(share)
    assert capsys.readouterr().err.splitlines() == [
        "scoring 25%, 11 s, 33 s left",
        "scoring 100%, 40 s, 0 s left",
    ]
    with output.progress_bar(shown=False) as advance:
        clock[0] = 200.0
        advance(0.5)
    assert capsys.readouterr().err == ""

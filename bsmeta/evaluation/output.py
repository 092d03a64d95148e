"""A report to files and to the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from bsmeta.evaluation import plots
from bsmeta.evaluation.paired import Progress as Advance
from bsmeta.evaluation.results import Report
from bsmeta.evaluation.tables import Table, comparison_table, markdown, position_table

TERMINAL_COLUMNS = (0, 1, 3, 4, 5, 6, 7)
"""Columns of the comparison table that fit a terminal of 100 characters."""


def write_report(report: Report, out_dir: Path, metrics: Path | None) -> list[Path]:
    """Write the report's files.

    Args:
        report: The report.
        out_dir: Folder to write to; made if it is not there.
        metrics: The `metrics.jsonl` of the run, for its loss curve.

    Returns:
        The files written.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    files = {name: out_dir / name for name in ("evaluation.json", "evaluation.md")}
    text = json.dumps(report.as_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    files["evaluation.json"].write_text(text + "\n", encoding="utf-8")
    files["evaluation.md"].write_text(_page(report), encoding="utf-8")
    plots.difference_plot(report.rows, out_dir / "differences.png")
    written = [*files.values(), out_dir / "differences.png"]
    if metrics is not None and plots.loss_plot(metrics, out_dir / "loss.png"):
        written.append(out_dir / "loss.png")
    return written


def print_report(report: Report, files: list[Path]) -> None:
    """The comparison table and where the files are."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    table = comparison_table(report)
    console.print(_rich(table, TERMINAL_COLUMNS))
    console.print(f"[dim]{table.note}[/dim]")
    console.print("written: " + ", ".join(str(file) for file in files), soft_wrap=True)


@contextmanager
def progress_bar(shown: bool) -> Iterator[Advance]:
    """A bar with the time left; what it yields is told the share of the work done (0 to 1)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
    task = progress.add_task("scoring", total=1.0)

    def advance(share: float) -> None:
        progress.start()  # only now: nothing is drawn above a message about the configuration
        progress.update(task, completed=share)

    try:
        yield advance
    finally:
        progress.stop()


def _page(report: Report) -> str:
    data = report.data
    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    head = [
        f"# Evaluation of {report.checkpoint}",
        "",
        f"{data['documents']:,} documents of `{data['file']}`"
        + (f" (left out: {left_out})" if left_out else "")
        + f"; windows: {report.settings['windows']}.",
    ]
    tables = [comparison_table(report), position_table(report)]
    plot = "![difference of each comparison](differences.png)"
    return "\n".join([*head, "", markdown(tables), "", plot, ""])


def _rich(table: Table, columns: tuple[int, ...]) -> RichTable:
    made = RichTable(title=table.title, box=box.SIMPLE_HEAD, title_justify="left")
    for number in columns:
        made.add_column(table.heads[number], justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        made.add_row(*[row[number] for number in columns])
    return made

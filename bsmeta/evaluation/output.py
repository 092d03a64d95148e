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
from bsmeta.evaluation.page import described, page
from bsmeta.evaluation.paired import Progress as Advance
from bsmeta.evaluation.results import Report
from bsmeta.evaluation.tables import (
    Table,
    checkpoint_table,
    comparison_table,
    markdown,
    summary,
    tables_of,
)

TERMINAL_COLUMNS = (0, 1, 3, 4, 5, 6, 7)
"""Columns of the comparison table that fit a terminal of 100 characters."""

WIDTH_OF_A_FILE = 120
"""Width of the printed tables where there is no terminal."""


def write_report(report: Report, out_dir: Path, metrics: Path | None) -> list[Path]:
    """Write the report's files.

    Args:
        report: The report.
        out_dir: Folder to write to; made if it is not there.
        metrics: The `metrics.jsonl` of the run, for its curves.

    Returns:
        The files written.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    figures = plots.figures_of_report(report, metrics)
    data = json.dumps(report.as_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    texts = {
        "evaluation.json": data + "\n",
        "evaluation.md": _markdown_page(report, list(figures)),
        "report.html": page(report, figures),
    }
    for name, text in texts.items():
        (out_dir / name).write_text(text, encoding="utf-8")
    for name, figure in figures.items():
        figure.savefig(out_dir / f"{name}.png", dpi=130)
    return [out_dir / name for name in [*texts, *(f"{name}.png" for name in figures)]]


def print_report(report: Report, files: list[Path]) -> None:
    """The main tables, the result in a sentence, and where the files are."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    if len(report.models) > 1:
        table = checkpoint_table(report)
        console.print(_rich(table, tuple(range(len(table.heads) - 1))))
    for model in report.models:
        console.print(f"[bold]{model.checkpoint}[/bold]: {described(report)}", soft_wrap=True)
        table = comparison_table(model)
        console.print(_rich(table, TERMINAL_COLUMNS))
        console.print(summary(model))
    console.print(f"[dim]{table.note}[/dim]")
    folder = files[0].parent
    names = ", ".join(file.name for file in files)
    console.print(f"written to {folder}: {names}", soft_wrap=True)


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


def _markdown_page(report: Report, plots_made: list[str]) -> str:
    names = ", ".join(model.checkpoint for model in report.models)
    lines = [f"# Evaluation of {names}", "", described(report), ""]
    lines += [f"{model.checkpoint}: {summary(model)}\n" for model in report.models]
    images = [f"![{name}]({name}.png)" for name in plots_made]
    return "\n".join([*lines, markdown(tables_of(report)), "", *images, ""])


def _rich(table: Table, columns: tuple[int, ...]) -> RichTable:
    made = RichTable(title=table.title, box=box.SIMPLE_HEAD, title_justify="left")
    for number in columns:
        cells = [table.heads[number], *(row[number] for row in table.rows)]
        made.add_column(
            table.heads[number],
            justify="right" if number else "left",
            min_width=max(map(len, cells)) if number else None,  # names may be cut, numbers not
            no_wrap=True,
        )
    for row in table.rows:
        made.add_row(*[row[number] for number in columns])
    return made

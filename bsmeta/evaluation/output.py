"""Writes a report to files, among them one self-contained HTML page, and prints it."""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich import box, markup
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from bsmeta.evaluation import plots
from bsmeta.evaluation.paired import Progress as Advance
from bsmeta.evaluation.results import ModelReport, Report
from bsmeta.evaluation.tables import (
    BYTES,
    CUT,
    DIFFERENCE,
    DOCUMENTS,
    HOLM,
    INTERVAL,
    LEFT_OUT,
    SPLIT,
    TOGETHER,
    WITH,
    WITHOUT,
    Table,
    checkpoint_table,
    comparison_table,
    control_table,
    controls_of,
    markdown,
    pair_table,
    summary,
    tables_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN_INTERVAL_S = 10.0

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 88rem; margin: 2rem auto;
       padding: 0 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.lead { font-size: 1.05rem; background: #f4f6f4; border-left: 4px solid #1b7837;
        padding: .7rem 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #444; } td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.note { color: #555; font-size: .85rem; max-width: 60rem; }
figure { display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }
img { max-width: 100%; width: 40rem; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }
"""


def page(report: Report, figures: Mapping[str, Figure]) -> str:
    """The page as HTML source."""
    names = ", ".join(model.checkpoint for model in report.models)
    parts = []
    for model in report.models:
        parts.append(f'<p class="lead">{escape(_lead(model, several=len(report.models) > 1))}</p>')
        parts.append(f"<p>{escape(described(model, report))}</p>")
    parts += [html_image(name, figure) for name, figure in figures.items()]
    parts += [html_table(table) for table in tables_of(report)]
    settings = json.dumps(report.settings, indent=1, ensure_ascii=False)
    parts.append(f"<h2>Settings</h2><details><summary>show</summary><pre>{escape(settings)}</pre>")
    parts.append("</details>")
    return html_page(f"Evaluation of {names}", parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """A self-contained page of HTML parts under a title."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{viewport}<style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def described(model: ModelReport, report: Report) -> str:
    """Describes in a sentence what was scored with a model."""
    data = model.data
    left_out = ", ".join(f"{count} {reason}" for reason, count in data["left_out"].items())
    return (
        f"{data['documents']:,} documents of {data['file']}"
        + (f" (left out: {left_out})" if left_out else "")
        + f"; windows of {data['max_seq_len']:,} tokens: {report.settings['windows']}."
    )


def _lead(model: ModelReport, *, several: bool) -> str:
    return f"{model.checkpoint}: {summary(model)}" if several else summary(model)


def html_table(table: Table) -> str:
    """A table with its title and note as HTML."""
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f'<tbody>\n{rows}\n</tbody></table></div>\n<p class="note">{escape(table.note)}</p>'
    )


def html_image(name: str, figure: Figure) -> str:
    """A plot as HTML, embedded."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(name)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></figure>'


TERMINAL_COLUMNS = [DOCUMENTS, BYTES, LEFT_OUT, CUT, WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT]
"""Columns of the comparison table that fit into a terminal of 130 characters."""

PER_DOCUMENT = "documents.jsonl"
"""Per-document sums, from which the tables are computed: a line per document, comparison, model."""

WIDEST_NAME = 30

WIDTH_OF_A_FILE = 130
"""Width of the printed tables if the output is not a terminal."""


def write_report(report: Report, out_dir: Path, metrics: Path | None) -> list[Path]:
    """Write the report's files.

    Args:
        out_dir: Folder to write to; created if it does not exist.
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
    with (out_dir / PER_DOCUMENT).open("wb") as file:
        for model in report.models:
            for line in model.sums.lines(model.checkpoint):
                file.write(msgspec.json.encode(line) + b"\n")
    for name, figure in figures.items():
        figure.savefig(out_dir / f"{name}.png", dpi=130)
    names = [*texts, PER_DOCUMENT, *(f"{name}.png" for name in figures)]
    return [out_dir / name for name in names]


def print_report(report: Report, files: list[Path]) -> None:
    """Print the main tables, a one-sentence summary, and the paths of the files."""
    console = report_console()
    if len(report.models) > 1:
        print_table(console, replace(checkpoint_table(report), note=""))  # that of the next tables
    if report.pairs:
        print_table(console, pair_table(report))
    for model in report.models:
        console.print(
            f"[bold]{model.checkpoint}[/bold]: {described(model, report)}", soft_wrap=True
        )
        tables = [comparison_table(model, TERMINAL_COLUMNS)]
        tables += [control_table(model)] if controls_of(model) else []
        for table in tables:
            print_table(console, table, hidden=(TOGETHER, HOLM))
        console.print(summary(model))
    folder = files[0].parent
    names = ", ".join(file.name for file in files)
    console.print(f"written to {folder}: {names}", soft_wrap=True)


@contextmanager
def progress_bar(shown: bool) -> Iterator[Advance]:
    """Show a bar with the time left; yields a callback for the share of the work done (0 to 1).

    Without a terminal, it prints a line every ten seconds.
    """
    if not sys.stderr.isatty():
        yield _plain_lines() if shown else lambda share: None
        return
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
        progress.start()  # not before, so that no bar precedes a configuration error
        progress.update(task, completed=share)

    try:
        yield advance
    finally:
        progress.stop()


def _plain_lines() -> Advance:
    begin = last = time.monotonic()

    def advance(share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > PLAIN_INTERVAL_S:
            last = now
            left = "" if share <= 0 else f", {(now - begin) * (1 - share) / share:,.0f} s left"
            print(f"scoring {share:.0%}, {now - begin:,.0f} s{left}", file=sys.stderr, flush=True)

    return advance


def _markdown_page(report: Report, plots_made: list[str]) -> str:
    names = ", ".join(model.checkpoint for model in report.models)
    lines = [f"# Evaluation of {names}", ""]
    for model in report.models:
        lines += [f"{model.checkpoint}: {described(model, report)}", "", summary(model), ""]
    images = [f"![{name}]({name}.png)" for name in plots_made]
    return "\n".join([*lines, markdown(tables_of(report)), "", *images, ""])


def report_console() -> Console:
    """The terminal, or a file that is wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_A_FILE)


def print_table(console: Console, table: Table, hidden: Sequence[str] = ()) -> None:
    """Prints a table, without some columns, and its note; its numbers are never cut."""
    shown = rich_table(table, hidden)
    needed = Measurement.get(console, console.options, shown).minimum
    console.print(shown, width=max(console.width, needed), crop=False)
    if table.note:
        console.print(f"[dim]{markup.escape(table.note)}[/dim]")


def rich_table(table: Table, hidden: Sequence[str] = ()) -> RichTable:
    """A table for the terminal, without some columns."""
    made = RichTable(
        title=table.title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    shown = [number for number, head in enumerate(table.heads) if head not in hidden]
    for number in shown:
        widest = max((len(row[number]) for row in table.rows), default=0)
        made.add_column(
            table.heads[number],
            justify="right" if number else "left",
            min_width=widest if number else min(widest, WIDEST_NAME),  # numbers are never cut
            overflow="fold",
        )
    for row in table.rows:
        made.add_row(*(row[number] for number in shown))
    return made

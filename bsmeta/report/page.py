"""Writes and prints reports: pages of tables and figures as HTML, Markdown, JSON and in a terminal.

Every kind of report is a `Page`: the answer, facts about the measurement, sections of tables and
figures, and the commands that reproduce it. A `Table` has values under columns with formats. The
template `base.html.j2` renders a page for a browser; a template that extends it may add blocks. The
page is complete without its script (`report.js`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from rich import box
from rich.measure import Measurement
from rich.table import Table as RichTable

from bsmeta.config.composing.command_line import format_pasteable_command
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console
from bsmeta.core.version import __version__
from bsmeta.report import markdown, palette
from bsmeta.report.cells import Cell, find_sort_value, format_exact_numbers
from bsmeta.report.drawing import Drawings, Plots, draw_figures
from bsmeta.report.inference import Bounded, read_value
from bsmeta.report.markdown import Part, split_sentence

HTML_NAME = "report.html"
"""The file name of the HTML page."""

NO_VALUE = "–"
"""The text of a cell without a value."""

COUNT = "{:,.0f}".format
"""The format of a count."""

FILE_WIDTH = 130
"""Width of printed tables, in characters, if the output is not a terminal."""

MIN_TEXT_WIDTH = 30
"""Width, in characters, to which a column of text may shrink in a narrow terminal."""

BASE_TEMPLATE = "report/base.html.j2"
"""The template of pages, relative to the package."""

_TEMPLATES = Path(__file__).parents[1]
_SCRIPT = Path(__file__).with_name("report.js")
_PROGRAMS = ("quick", "train", "evaluate", "analyze", "annotate", "study")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        head: The head of the column.
        format: Formats a number, such as `"{:+.4f}".format`; None for a column of text, which is
            aligned to the left.
    """

    head: str
    format: Callable[[Any], str] | None = None

    @property
    def is_difference(self) -> bool:
        """Whether the column has differences; their format has a sign."""
        return self.format is not None and self.format(1).startswith("+")

    def format_cell(self, cell: Cell) -> str:
        """Formats a cell; `NO_VALUE` for None and NaN, text unchanged."""
        if isinstance(cell, str):
            return cell
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return NO_VALUE

        assert self.format is not None, f"{self.head}: {cell}"
        if not isinstance(cell, Bounded):
            return self.format(cell)

        interval = f"{self.format(cell.low)} to {self.format(cell.high)}"
        value = getattr(cell, "value", None)
        return interval if value is None else f"{self.format(value)} ({interval})"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report.

    Attributes:
        title: Its heading.
        note: Sentences below the table; empty for none.
        columns: The heads and formats.
        rows: The cells of each row, in the order of the columns.
        is_grouped: Whether an empty first cell repeats the closest nonempty one above it.
    """

    title: str
    note: str
    columns: Sequence[Column]
    rows: list[list[Cell]] = field(default_factory=list)
    is_grouped: bool = False

    @property
    def heads(self) -> list[str]:
        """The heads of the columns."""
        return [column.head for column in self.columns]

    def format_cells(self) -> list[list[str]]:
        """Returns the formatted cells of each row."""
        formatted_rows = []
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            formatted_rows.append([column.format_cell(cell) for column, cell in cells])
        return formatted_rows

    def sort_by(self, head: str) -> Table:
        """Returns the table sorted by a column, ascending; rows without a number come first."""
        column_index = self.heads.index(head)

        def sort_key(row: list[Cell]) -> float:
            number = read_value(row[column_index])
            return -math.inf if math.isnan(number) else number

        return replace(self, rows=sorted(self.rows, key=sort_key))

    def drop_columns(self, *heads: str) -> Table:
        """Returns the table without the columns of these heads."""
        is_kept = [head not in heads for head in self.heads]
        columns = list(compress(self.columns, is_kept))
        rows = [list(compress(row, is_kept)) for row in self.rows]
        return replace(self, columns=columns, rows=rows)

    def as_dict(self) -> dict[str, Any]:
        """Returns the table for JSON, with its cells as text."""
        return {
            "title": self.title,
            "note": self.note,
            "heads": self.heads,
            "rows": self.format_cells(),
        }

    def iterate_markdown(self, level: int = 2) -> Iterator[str]:
        """Yields the table's blocks in GitHub's Markdown, under a heading of this level."""
        yield markdown.format_heading(self.title, level)

        heads = [markdown.escape_inline(head) for head in self.heads]
        rows = [[markdown.escape_inline(cell) for cell in row] for row in self.format_cells()]
        are_numbers = [column.format is not None for column in self.columns]
        yield markdown.format_table(heads, rows, are_numbers)

        if self.note:
            yield markdown.escape_sentence(self.note)


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading; empty for the first section, which follows the answer.
        lines: Sentences, shown as a list.
        tables: Tables; a table without rows is left out.
        plots: The function that draws each figure, by the name of its file.
    """

    title: str = ""
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Plots = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: Its heading.
        answers: The result in sentences; the first sentence is the answer.
        facts: Facts about the measurement, by name.
        sections: Tables and figures, in order.
        commands: The commands that reproduce the measurement, as lines for a shell.
        settings: All settings, shown at the end of the HTML page.
    """

    title: str
    answers: Sequence[str]
    facts: Mapping[str, str]
    sections: Sequence[Section]
    commands: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plots(self) -> Plots:
        """The plots of all sections."""
        plots: dict[str, Any] = {}
        for section in self.sections:
            plots |= section.plots
        return plots


def describe_command(training_command: str | None = None) -> list[str]:
    """Returns the shell command that started this process; [] if it is not a program of bsmeta.

    Args:
        training_command: Returned instead in a process of `bsmeta train`; see `model_card.command`.
    """
    program = Path(sys.argv[0]).stem.removeprefix("bsmeta ")
    if program not in _PROGRAMS:
        return []
    if program == "train" and training_command is not None:
        return [redact(training_command)]

    return [redact(format_pasteable_command(["bsmeta", program, *sys.argv[1:]]))]


def write_report(
    page: Page,
    content: Mapping[str, Any],
    folder: Path,
    *,
    json_name: str = "evaluation.json",
    markdown_name: str = "evaluation.md",
    plot_endings: Sequence[str] = ("png",),
    other_files: Sequence[str] = (),
    template: str = BASE_TEMPLATE,
    **template_values: Any,
) -> list[Path]:
    """Writes a report: first the numbers, then the figures.

    A figure that cannot be drawn is named in the report, with the reason.

    Args:
        content: The result, for the JSON file, which begins with the answers of the page.
        folder: Created if it does not exist.
        json_name: File name of the result as JSON.
        markdown_name: File name of the report as Markdown.
        plot_endings: File formats of the plots.
        other_files: Names of other files in the folder that belong to the report.
        template: The template of the HTML page, relative to the package.
        template_values: Further values for the template.

    Returns:
        The files of the report, including `other_files`.
    """
    folder.mkdir(parents=True, exist_ok=True)

    # JSON has no NaN and no infinity: such numbers become null.
    dumped = json.dumps({"answers": list(page.answers), **content})
    finite_content = json.loads(dumped, parse_constant=lambda _: None)
    _write_text(folder / json_name, json.dumps(finite_content, indent=1, ensure_ascii=False) + "\n")

    # All numbers must be on disk before anything is drawn.
    _write_text(folder / markdown_name, _render_markdown(page, {}))
    drawings = draw_figures(page.plots, folder, plot_endings)
    if drawings.problems:
        _write_text(folder / markdown_name, _render_markdown(page, drawings.problems))

    names = [json_name, markdown_name, HTML_NAME, *other_files, *drawings.files]
    write_html(page, drawings, names, folder / HTML_NAME, template, **template_values)
    return [folder / name for name in names]


def _render_markdown(page: Page, problems: Mapping[str, str]) -> str:
    """Renders a page in GitHub's Markdown.

    Args:
        problems: The reason for each plot that could not be drawn, by name; the other plots are PNG
            files beside the page.
    """
    return "\n\n".join(_iterate_markdown_blocks(page, problems)) + "\n"


def _iterate_markdown_blocks(page: Page, problems: Mapping[str, str]) -> Iterator[str]:
    yield markdown.format_heading(page.title, 1)
    for answer in page.answers:
        yield markdown.escape_sentence(answer)
    yield "\n".join(
        f"- {markdown.escape_paragraph(name)}: {markdown.escape_inline(fact)}"
        for name, fact in page.facts.items()
    )

    for section in page.sections:
        if section.title:
            yield markdown.format_heading(section.title, 2)
        if section.lines:
            yield "\n".join(f"- {markdown.escape_sentence(line)}" for line in section.lines)
        for name in section.plots:
            if name in problems:
                yield markdown.explain_undrawn(name, problems[name])
            else:
                yield f"![{name}]({name}.png)"
        for table in section.tables:
            if table.rows:
                yield from table.iterate_markdown(level=3 if section.title else 2)

    if page.commands:
        yield markdown.format_heading("Commands", 2)
        yield markdown.format_code_block("\n".join(page.commands), "bash")


def encode_json_line(value: Any) -> bytes:
    """Encodes a value as a line of JSON; lone surrogates, invalid in UTF-8, become escapes."""
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode() + b"\n"


def _write_text(file: Path, text: str) -> None:
    """Writes a text in UTF-8; lone surrogates, which it cannot encode, become escapes."""
    file.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_html(
    page: Page,
    drawings: Drawings,
    files: Sequence[str],
    file: Path,
    template: str = BASE_TEMPLATE,
    **template_values: Any,
) -> None:
    """Writes the page as HTML that loads no external resources.

    Args:
        drawings: The figures of the page.
        files: Names of the files beside the page, to which it links.
        file: The file to write.
        template: Path of the template, relative to the package.
        template_values: Further values for the template.
    """
    script = _SCRIPT.read_text(encoding="utf-8")
    text = load_template(template).render(
        page=page,
        drawn={name: Markup(drawing) for name, drawing in drawings.svg.items()},
        problems=drawings.problems,
        files=files,
        made=f"bsmeta {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        settings=json.dumps(page.settings, indent=1, ensure_ascii=False),
        light=palette.LIGHT,
        dark=palette.DARK,
        script=Markup(script),
        security_policy=format_security_policy(script),
        **template_values,
    )
    _write_text(file, text)


def format_security_policy(script: str = "") -> str:
    """Formats the Content-Security-Policy of a page that loads nothing and runs only its script.

    Args:
        script: The content of the page's only script element; empty for a page without one.
    """
    sources = "'none'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        sources = f"'sha256-{digest}'"
    # Figures have styles of their own, and raw pages in frames may have images in their source.
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def load_template(name: str, **filters: Callable[..., str]) -> jinja2.Template:
    """Loads a template; HTML templates escape all values.

    Args:
        name: Path of the template, relative to the package.
        filters: Further filters for the template.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "marked": render_sentence,
        "exact": format_exact_numbers,
        "sort_value": find_sort_value,
        **filters,
    }
    environment.tests["bounded"] = lambda cell: isinstance(cell, Bounded)
    return environment.get_template(name)


def render_sentence(text: str) -> Markup:
    """Renders a sentence as HTML, with its `**strong**` and backticks as elements."""
    templates = {
        Part.TEXT: Markup("{}"),
        Part.STRONG: Markup("<strong>{}</strong>"),
        Part.CODE: Markup("<code>{}</code>"),
    }
    return Markup("").join(
        templates[part].format(part_text) for part, part_text in split_sentence(text)
    )


def print_report(tables: Sequence[Table], sentences: Sequence[str], files: Sequence[Path]) -> None:
    """Prints the tables that have rows, then sentences, then the paths of the files."""
    console = create_report_console()
    for table in tables:
        if table.rows:
            print_table(console, table)
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)

    for folder in dict.fromkeys(file.parent for file in files):
        names = ", ".join(file.name for file in files if file.parent == folder)
        console.print(f"written to {folder}: {names}", soft_wrap=True)


def create_report_console(*, highlight: bool = True) -> Console:
    """Returns a console for the terminal, or one wide enough for tables if the output is a file.

    Args:
        highlight: Whether to color numbers and paths in text.
    """
    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(width=FILE_WIDTH, highlight=highlight)


def print_table(console: Console, table: Table) -> None:
    """Prints a table and its note; its numbers are never cut."""
    rich_table = RichTable(
        title=table.title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        padding=(0, 1, 0, 0),
    )

    rows = table.format_cells()
    for index, column in enumerate(table.columns):
        widest = max((len(row[index]) for row in rows), default=0)
        is_text = column.format is None
        rich_table.add_column(
            column.head,
            justify="left" if is_text else "right",
            min_width=min(widest, MIN_TEXT_WIDTH) if is_text else widest,
            overflow="fold",
        )
    for row in rows:
        rich_table.add_row(*row)

    # A table that is too wide runs past the edge of the terminal, rather than losing columns.
    minimum_width = Measurement.get(console, console.options, rich_table).minimum
    console.print(rich_table, width=max(console.width, minimum_width), crop=False)
    if table.note:
        console.print(table.note, style="dim")

"""Reports: tables and figures on pages, in the terminal and as files (HTML, Markdown, JSON).

Every kind of report is a `Page`: the answer, what was measured, tables and figures in sections, and
the commands to repeat it. A `Table` has values under columns with formats. `base.html.j2` is the
form of a page in a browser; a template that extends it may add blocks.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from rich import box
from rich.measure import Measurement
from rich.table import Table as RichTable

from bsmeta.config.command_line import pasteable
from bsmeta.core.secrets import redact
from bsmeta.core.terminal import Console
from bsmeta.core.version import __version__
from bsmeta.report import figures, markdown
from bsmeta.report.drawing import Drawings, Plots, draw_figures
from bsmeta.report.inference import Bounded, value_of
from bsmeta.report.markdown import Part, parts

HTML = "report.html"
NONE = "–"
"""The cell of a value that does not exist."""
COUNT = "{:,.0f}".format
WIDTH_OF_A_FILE = 130
"""Width of the printed tables if the output is not a terminal."""
WIDEST_NAME = 30
_TEMPLATES = Path(__file__).parents[1]
_PROGRAMS = ("train", "evaluate", "annotate", "study")

Cell = str | float | Bounded | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        format: Formats a number, such as `"{:+.4f}".format`; None for a column of text, which is
            aligned to the left.
    """

    head: str
    format: Callable[[Any], str] | None = None

    @property
    def is_difference(self) -> bool:
        """Whether its numbers are differences: they are formatted with a sign."""
        return self.format is not None and self.format(1).startswith("+")

    def text(self, cell: Cell) -> str:
        """A cell as text: a dash for None and NaN; text as it is."""
        if isinstance(cell, str):
            return cell
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return NONE
        assert self.format is not None, f"{self.head}: {cell}"
        if not isinstance(cell, Bounded):
            return self.format(cell)
        ends = f"{self.format(cell.low)} to {self.format(cell.high)}"
        value = getattr(cell, "value", None)
        return ends if value is None else f"{self.format(value)} ({ends})"


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, columns, a note below it, and the rows."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: list[list[Cell]] = field(default_factory=list)

    @property
    def heads(self) -> list[str]:
        return [column.head for column in self.columns]

    def texts(self) -> list[list[str]]:
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def sorted_by(self, head: str) -> Table:
        """The table in the order of a column, from the lowest value up; first the rows without."""
        place = self.heads.index(head)

        def value(row: list[Cell]) -> float:
            number = value_of(row[place])
            return -math.inf if math.isnan(number) else number

        return replace(self, rows=sorted(self.rows, key=value))

    def without(self, *heads: str) -> Table:
        kept = [number for number, head in enumerate(self.heads) if head not in heads]
        rows = [[row[number] for number in kept] for row in self.rows]
        return replace(self, columns=[self.columns[number] for number in kept], rows=rows)

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON, its cells as text."""
        return {"title": self.title, "note": self.note, "heads": self.heads, "rows": self.texts()}

    def markdown(self, level: int = 2) -> Iterator[str]:
        """Yields the table's parts in GitHub's Markdown, under a heading of this level."""
        yield markdown.heading(self.title, level)
        heads, *rows = ([*map(markdown.inline, row)] for row in (self.heads, *self.texts()))
        yield markdown.table(heads, rows, [column.format is not None for column in self.columns])
        if self.note:
            yield markdown.sentence(self.note)


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading; empty for the first one, which follows the answer.
        lines: Sentences, as a list.
        tables: Tables; those without rows are left out.
        plots: What draws each figure, by the name of its file.
    """

    title: str = ""
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Plots = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        answers: The result in sentences; the first one is the answer.
        facts: What was measured, by name.
        sections: Tables and figures, in order.
        commands: The commands that repeat it, as lines for a shell.
        settings: All settings, for the end of the HTML page.
    """

    title: str
    answers: Sequence[str]
    facts: Mapping[str, str]
    sections: Sequence[Section]
    commands: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plots(self) -> Plots:
        return {name: plot for part in self.sections for name, plot in part.plots.items()}


def own_command() -> list[str]:
    """The command line of this process, for a shell; [] if it is none of the package's programs."""
    program = Path(sys.argv[0]).stem.removeprefix("bsmeta ")
    if program not in _PROGRAMS:
        return []
    return [redact(pasteable(["bsmeta", program, *sys.argv[1:]]))]


def write_report(
    page: Page,
    content: Mapping[str, Any],
    folder: Path,
    *,
    json_name: str = "evaluation.json",
    markdown_name: str = "evaluation.md",
    plot_endings: Sequence[str] = ("png",),
    further: Sequence[str] = (),
) -> list[Path]:
    """Writes a report: first the numbers, then the figures.

    A figure that cannot be drawn is named in the report, with the reason.

    Args:
        content: The result, for the JSON file.
        folder: Created if it does not exist.
        plot_endings: File formats of the plots.
        further: Names of other files in the folder that belong to the report.

    Returns:
        The files, those of `further` included.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # None for the numbers that JSON does not have
    plain = json.loads(json.dumps(content), parse_constant=lambda _: None)
    _write(folder / json_name, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    _write(folder / markdown_name, _markdown(page, {}))
    drawings = draw_figures(page.plots, folder, plot_endings)
    if drawings.problems:
        _write(folder / markdown_name, _markdown(page, drawings.problems))
    names = [json_name, markdown_name, HTML, *further, *drawings.files]
    write_html(page, drawings, names, folder / HTML)
    return [folder / name for name in names]


def _markdown(page: Page, problems: Mapping[str, str]) -> str:
    """A page in GitHub's Markdown; its plots are PNG files beside it, unless they have problems."""
    return "\n\n".join(_markdown_parts(page, problems)) + "\n"


def _markdown_parts(page: Page, problems: Mapping[str, str]) -> Iterator[str]:
    yield markdown.heading(page.title, 1)
    yield from map(markdown.sentence, page.answers)
    yield "\n".join(
        f"- {markdown.paragraph(name)}: {markdown.inline(fact)}"
        for name, fact in page.facts.items()
    )
    for section in page.sections:
        if section.title:
            yield markdown.heading(section.title, 2)
        if section.lines:
            yield "\n".join(f"- {markdown.sentence(line)}" for line in section.lines)
        for name in section.plots:
            is_drawn = name not in problems
            yield f"![{name}]({name}.png)" if is_drawn else markdown.undrawn(name, problems[name])
        for table in filter(lambda table: table.rows, section.tables):
            yield from table.markdown(level=3 if section.title else 2)
    if page.commands:
        yield markdown.heading("Commands", 2)
        yield markdown.fenced("\n".join(page.commands), "bash")


def json_line(value: Any) -> bytes:
    """A value as a line of JSON; lone surrogates, which UTF-8 does not have, as their escapes."""
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode() + b"\n"


def _write(file: Path, text: str) -> None:
    """Writes a text; a lone surrogate, which no file can have, as its escape."""
    file.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_html(
    page: Page,
    drawings: Drawings,
    files: Sequence[str],
    file: Path,
    template: str = "report/base.html.j2",
    **more: Any,
) -> None:
    """Writes the page as HTML without any external resource.

    Args:
        drawings: Its figures.
        files: Names of the files beside the page.
        file: The file to write.
        template: The template, below the package.
        more: Further values for the template.
    """
    text = load_template(template).render(
        page=page,
        drawn={name: Markup(drawing) for name, drawing in drawings.svg.items()},
        problems=drawings.problems,
        files=files,
        made=f"bsmeta {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        settings=json.dumps(page.settings, indent=1, ensure_ascii=False),
        light=figures.LIGHT,
        dark=figures.DARK,
        **more,
    )
    _write(file, text)


def load_template(name: str, **filters: Callable[..., str]) -> jinja2.Template:
    """A template by its path below the package; one of HTML escapes what it is filled with.

    Args:
        filters: Further filters that it uses.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=".html" in name, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"marked": marked, **filters}
    environment.tests["bounded"] = lambda cell: isinstance(cell, Bounded)
    return environment.get_template(name)


def marked(text: str) -> Markup:
    """A sentence with its `**strong**` and backticks as HTML."""
    tags = {Part.TEXT: "{}", Part.STRONG: "<strong>{}</strong>", Part.CODE: "<code>{}</code>"}
    return Markup("").join(Markup(tags[part]).format(own) for part, own in parts(text))


def print_report(tables: Sequence[Table], sentences: Sequence[str], files: Sequence[Path]) -> None:
    """Prints tables, the summary, and the paths of the files."""
    console = report_console()
    for table in filter(lambda table: table.rows, tables):
        print_table(console, table)
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)
    for folder in dict.fromkeys(file.parent for file in files):
        names = ", ".join(file.name for file in files if file.parent == folder)
        console.print(f"written to {folder}: {names}", soft_wrap=True)


def report_console(*, highlight: bool = True) -> Console:
    """The terminal, or a file that is wide enough for the tables.

    With `highlight`, numbers and paths in text are colored.
    """
    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(width=WIDTH_OF_A_FILE, highlight=highlight)


def print_table(console: Console, table: Table) -> None:
    """Prints a table and its note; its numbers are never cut."""
    shown = RichTable(
        title=table.title, box=box.SIMPLE_HEAD, title_justify="left",
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    texts = table.texts()
    for number, column in enumerate(table.columns):
        widest = max((len(row[number]) for row in texts), default=0)
        is_text = column.format is None
        shown.add_column(
            column.head,
            justify="left" if is_text else "right",
            min_width=min(widest, WIDEST_NAME) if is_text else widest,
            overflow="fold",
        )
    for row in texts:
        shown.add_row(*row)
    needed = Measurement.get(console, console.options, shown).minimum
    console.print(shown, width=max(console.width, needed), crop=False)
    if table.note:
        console.print(table.note, style="dim")

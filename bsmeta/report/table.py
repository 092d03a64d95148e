"""The table of a report: values under columns with formats, as Markdown and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from rich import box, markup
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

NONE = "–"
"""The cell of a value that does not exist."""
COUNT = "{:,.0f}".format

WIDTH_OF_A_FILE = 130
"""Width of the printed tables if the output is not a terminal."""
WIDEST_NAME = 30


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 95% interval."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% interval."""

    value: float
    interval: Interval

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval.high


@runtime_checkable
class Bounded(Protocol):
    """What a cell shows with both ends: an interval, or an estimate, which also has a `value`."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


Cell = str | float | Bounded | None


def value_of(cell: Cell) -> float:
    """The number of a cell, without its interval; NaN for text and for None."""
    number = getattr(cell, "value", cell)
    return float(number) if isinstance(number, int | float) else math.nan


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        head: Its name.
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
        """The names of the columns."""
        return [column.head for column in self.columns]

    def texts(self) -> list[list[str]]:
        """The cells as text."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def sorted_by(self, head: str) -> Table:
        """The table in the order of a column: from the lowest value to the highest.

        Rows without a value come first; rows of equal values keep their order.
        """
        place = self.heads.index(head)

        def value(row: list[Cell]) -> float:
            number = value_of(row[place])
            return -math.inf if math.isnan(number) else number

        return replace(self, rows=sorted(self.rows, key=value))

    def without(self, *heads: str) -> Table:
        """The table without some of its columns."""
        kept = [number for number, head in enumerate(self.heads) if head not in heads]
        rows = [[row[number] for number in kept] for row in self.rows]
        return replace(self, columns=[self.columns[number] for number in kept], rows=rows)

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON, its cells as text."""
        return {"title": self.title, "note": self.note, "heads": self.heads, "rows": self.texts()}

    def markdown(self, level: int = 2) -> Iterator[str]:
        """Yields the parts of the table in GitHub's Markdown, under a heading of this level."""
        yield f"{'#' * level} {self.title}"
        marks = ["---" if column.format is None else "---:" for column in self.columns]
        lines = [_markdown_row(self.heads), f"|{'|'.join(marks)}|"]
        yield "\n".join([*lines, *map(_markdown_row, self.texts())])
        if self.note:
            yield self.note


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def report_console(*, highlight: bool = True) -> Console:
    """The terminal, or a file that is wide enough for the tables.

    Args:
        highlight: Whether numbers and paths in text are colored.
    """
    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(width=WIDTH_OF_A_FILE, highlight=highlight)


def print_table(console: Console, table: Table) -> None:
    """Prints a table and its note; its numbers are never cut."""
    shown = _rich_table(table)
    needed = Measurement.get(console, console.options, shown).minimum
    console.print(shown, width=max(console.width, needed), crop=False)
    if table.note:
        console.print(f"[dim]{markup.escape(table.note)}[/dim]")


def _rich_table(table: Table) -> RichTable:
    made = RichTable(
        title=markup.escape(table.title), box=box.SIMPLE_HEAD, title_justify="left",
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    texts = table.texts()
    for number, column in enumerate(table.columns):
        widest = max((len(row[number]) for row in texts), default=0)
        is_text = column.format is None
        made.add_column(
            markup.escape(column.head),
            justify="left" if is_text else "right",
            min_width=min(widest, WIDEST_NAME) if is_text else widest,
            overflow="fold",
        )
    for row in texts:
        made.add_row(*map(markup.escape, row))
    return made

"""Cells of tables: their unrounded numbers, which pages show on request and sort by."""

from __future__ import annotations

import math
from numbers import Integral

from bsmeta.report.inference import Bounded

Cell = str | float | Bounded | None


def format_exact_figures(cell: Cell) -> str:
    """Writes the unrounded numbers of a cell, with an interval in parentheses; "" if none."""
    if isinstance(cell, Bounded):
        interval = f"{_format_exact(cell.low)} to {_format_exact(cell.high)}"
        value = getattr(cell, "value", None)
        return interval if value is None else f"{_format_exact(value)} ({interval})"
    if cell is None or isinstance(cell, str) or math.isnan(cell):
        return ""
    return _format_exact(cell)


def _format_exact(number: float) -> str:
    """Writes a number with all its digits: the shortest that has no other value."""
    return f"{int(number):,}" if isinstance(number, Integral) else repr(float(number))


def find_sort_value(cell: Cell) -> float:
    """Returns the number that a cell is sorted by: of an interval without a value, its lower end.

    Raises:
        TypeError: If the cell has no number.
    """
    if isinstance(cell, Bounded):
        cell = getattr(cell, "value", cell.low)
    if cell is None or isinstance(cell, str):
        raise TypeError(f"{cell!r} has no number")
    return float(cell)

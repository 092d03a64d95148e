"""Reads the unrounded numbers of table cells, which pages show on request and sort by."""

from __future__ import annotations

import math
from numbers import Integral

from bsmeta.report.inference import Bounded

Cell = str | float | Bounded | None


def format_exact_numbers(cell: Cell) -> str:
    """Formats the unrounded numbers of a cell, with an interval in parentheses.

    Returns "" if the cell has no number.
    """
    if isinstance(cell, Bounded):
        interval = f"{_format_exact(cell.low)} to {_format_exact(cell.high)}"
        value = getattr(cell, "value", None)
        return interval if value is None else f"{_format_exact(value)} ({interval})"
    if cell is None or isinstance(cell, str) or math.isnan(cell):
        return ""
    return _format_exact(cell)


def _format_exact(number: float) -> str:
    """Formats a number with the digits that identify its value."""
    return f"{int(number):,}" if isinstance(number, Integral) else repr(float(number))


def find_sort_value(cell: Cell) -> float:
    """Returns the number that a cell is sorted by; for a bare interval, its lower end.

    Raises:
        TypeError: If the cell has no number.
    """
    if isinstance(cell, Bounded):
        cell = getattr(cell, "value", cell.low)
    if cell is None or isinstance(cell, str):
        raise TypeError(f"{cell!r} has no number")
    return float(cell)

"""Parses dates in any notation: every use of dateutil passes through here.

dateutil warns on the terminal of each name of a time zone that it does not know, and reads the
names that the time zone of the machine has, so the same text would be another moment elsewhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from dateutil import parser as date_parser  # type: ignore[import-untyped]

MONTHS: list[str] = [names[-1] for names in date_parser.parserinfo.MONTHS]
"""English names: `strftime("%B")` would follow the locale of the machine."""

MONTH_NUMBERS: dict[str, int] = {
    name.lower(): number
    for number, names in enumerate(date_parser.parserinfo.MONTHS, 1)
    for name in names
}
"""English names and abbreviations, such as `november`, `nov` and `sept`, in lower case."""

_DAY_S = 24 * 60 * 60


class ParsedDate(NamedTuple):
    """A date, and which of its fields the text has; others are filled in."""

    moment: datetime  # has a time zone if the text has its offset from UTC
    has_year: bool
    has_month: bool


def parse_any_date(value: str) -> ParsedDate:
    """Parses a date in ISO 8601, or in any other usual notation.

    Raises:
        ValueError: If it is not a date, or not one of the calendar (30 February).
    """
    try:
        return ParsedDate(datetime.fromisoformat(value), has_year=True, has_month=True)
    except ValueError:
        pass

    # Parsed twice: fields that the text does not have come from the default, so they differ.
    try:
        moment = _parse_by_dateutil(value, datetime(1, 1, 1))
        other = _parse_by_dateutil(value, datetime(2, 2, 1))
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"not a date: {error}") from error
    return ParsedDate(moment, moment.year == other.year, moment.month == other.month)


def _parse_by_dateutil(value: str, default: datetime) -> datetime:
    moment: datetime = date_parser.parse(value, default=default, tzinfos=_read_offset)
    return moment


def _read_offset(name: str | None, offset_s: int | None) -> int | None:
    """Returns the offset of a time zone; None for a mere name, and for more than a day."""
    return offset_s if offset_s is not None and abs(offset_s) < _DAY_S else None

"""Parses dates in any notation; all code that uses dateutil calls this module.

By default, dateutil prints a warning for each unknown name of a time zone, and interprets the names
of the machine's own time zone, so that the same text would be another moment elsewhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from dateutil import parser as date_parser  # type: ignore[import-untyped]

MONTHS: list[str] = [names[-1] for names in date_parser.parserinfo.MONTHS]
"""English names, from January on; those of `strftime("%B")` depend on the machine's locale."""

MONTH_NUMBERS: dict[str, int] = {
    name.lower(): number
    for number, names in enumerate(date_parser.parserinfo.MONTHS, 1)
    for name in names
}
"""Numbers from 1 by English name or abbreviation in lower case: `november`, `nov`, `sept`."""

_DAY_S = 24 * 60 * 60


class ParsedDate(NamedTuple):
    """A date, and whether its text has a year and a month.

    Attributes:
        moment: The date, with defaults for missing fields; has a time zone only if the text has an
            offset from UTC.
    """

    moment: datetime
    has_year: bool
    has_month: bool


def parse_any_date(value: str) -> ParsedDate:
    """Parses a date in ISO 8601, or in any other usual notation.

    Raises:
        ValueError: If it is not a date, or an impossible one (30 February).
    """
    try:
        return ParsedDate(datetime.fromisoformat(value), has_year=True, has_month=True)
    except ValueError:
        pass

    # Fields that the text does not have come from the default, so they differ between two parses.
    try:
        moment = _parse_by_dateutil(value, datetime(1, 1, 1))
        other = _parse_by_dateutil(value, datetime(2, 2, 1))
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"not a date: {error}") from error
    return ParsedDate(moment, moment.year == other.year, moment.month == other.month)


def _parse_by_dateutil(value: str, default: datetime) -> datetime:
    """Parses a date; fields that the text does not have come from `default`."""
    moment: datetime = date_parser.parse(value, default=default, tzinfos=_read_offset)
    return moment


def _read_offset(name: str | None, offset_s: int | None) -> int | None:
    """Returns a time zone's offset in seconds; None if it has only a name, or is a day or more."""
    if offset_s is None or abs(offset_s) >= _DAY_S:
        return None
    return offset_s

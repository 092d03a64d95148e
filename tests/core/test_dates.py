"""Dates in any notation, without the time zone and the warnings of dateutil."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.dates import MONTH_NUMBERS, MONTHS, parse_any_date

REPOSITORY = Path(__file__).resolve().parents[2]
EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "moment", "has_year", "has_month"),
    [
        ("2018-12-10", datetime(2018, 12, 10), True, True),
        ("2018-12-10T13:45:00+02:00", datetime(2018, 12, 10, 13, 45, tzinfo=EAST), True, True),
        ("10 Dec 2018 13:45:00 +0200", datetime(2018, 12, 10, 13, 45, tzinfo=EAST), True, True),
        ("20181210134500", datetime(2018, 12, 10, 13, 45), True, True),
        ("December 2018", datetime(2018, 12, 1), True, True),
        ("2018", datetime(2018, 1, 1), True, False),
        ("10 December", datetime(1, 12, 10), False, True),
        # Names of time zones, which dateutil knows or not, depending on the machine
        ("10 Dec 2018 13:45 EST", datetime(2018, 12, 10, 13, 45), True, True),
        ("10 Dec 2018 13:45 XYZ", datetime(2018, 12, 10, 13, 45), True, True),
        ("10 Dec 2018 13:45 +99:00", datetime(2018, 12, 10, 13, 45), True, True),
    ],
)  # fmt: skip
def test_a_date_is_parsed(value: str, moment: datetime, has_year: bool, has_month: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        date = parse_any_date(value)
    assert date == (moment, has_year, has_month)
    assert date.moment.utcoffset() == moment.utcoffset()


@pytest.mark.parametrize(
    "value",
    ["", "soon", "2019-02-30", "2019-13-10", "30 February 2019", "2019-02-29", "9" * 400,
     "10 Dec 2018 25:00", "2018-12-10T13:45:00+99:99:99", "1.1.1.1.1", "0000-00-00"],
)  # fmt: skip
def test_text_that_is_not_a_date_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        parse_any_date(value)


@given(st.text(alphabet="0123456789-/:.,TZ+ EST janmrdecuy", max_size=40))
def test_any_text_is_parsed_or_raises_value_error(value: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            date = parse_any_date(value)
        except ValueError:
            return
    offset = date.moment.utcoffset()
    assert offset is None or abs(offset) < timedelta(days=1)


def test_dates_do_not_depend_on_the_time_zone_of_the_machine() -> None:
    code = (
        "from bsmeta.core.dates import parse_any_date\n"
        "print(parse_any_date('10 Dec 2018 13:45 EST').moment.utcoffset())"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"TZ": "EST5EDT", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (run.stdout, run.stderr) == ("None\n", "")


def test_months_have_english_names() -> None:
    assert MONTHS[0] == "January"
    assert MONTHS[11] == "December"
    assert MONTH_NUMBERS["nov"] == MONTH_NUMBERS["november"] == 11
    assert MONTH_NUMBERS["sept"] == 9

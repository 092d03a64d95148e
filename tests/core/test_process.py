"""Errors that end a program: their message and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.core.process import run_and_report


def test_a_name_that_is_too_long_is_an_error_of_the_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "x" * 5000
    assert run_and_report(lambda: Path(name).stat().st_mode) == 2
    assert capsys.readouterr().err == (
        f"error: {name[:100]}… (5,000 characters) is too long for the name of a file; expected a "
        "path whose parts have at most 255 bytes each\n"
    )

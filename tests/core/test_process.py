"""Errors that end a program: their message and its exit code."""

from __future__ import annotations

import os
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


def test_a_deleted_working_folder_is_an_error_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert run_and_report(lambda: len(os.getcwd())) == 2
    assert capsys.readouterr().err == (
        "error: the working folder of this process has been deleted; change to a folder that "
        "exists (cd), and repeat the command\n"
    )

"""Errors that end a program: their message and its exit code."""

from __future__ import annotations

import os
import sys
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


def test_a_link_to_itself_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert run_and_report(lambda: len(loop.read_bytes())) == 2
    assert capsys.readouterr().err == (
        f"error: [Errno 40] Too many levels of symbolic links: '{loop}': symbolic links lead to "
        "each other, and to no file; expected the path of a file or a folder. Delete the link, or "
        "name another path\n"
    )
    if sys.version_info < (3, 13):  # later, it returns the link
        assert run_and_report(lambda: len(loop.resolve().parts)) == 2
        assert f"error: Symlink loop from '{loop}': symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "exit_code", "errors"),
    [(None, 0, ""), (3, 3, ""), ("usage: x KEY; not https://a:secret@b.c/", 1, "usage: x KEY; ")],
)
def test_a_program_that_exits_by_itself_keeps_its_code_and_message(
    argument: str | int | None,
    exit_code: int,
    errors: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_and_report(lambda: sys.exit(argument)) == exit_code
    printed = capsys.readouterr().err
    assert printed.startswith(errors)
    assert "secret" not in printed

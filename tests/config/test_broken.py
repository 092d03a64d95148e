"""Broken command lines, files, launch files and environments, and the whole message of each.

`broken.txt` holds them as transcripts. Each goes through `run_entry_point` and the `main` of
`train.py`, which must refuse it with exit code 2 before a task is made.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bsmeta import train
from bsmeta.config.entry_point import run_entry_point
from bsmeta.tasks import TASKS
from tests.conftest import REPOSITORY

TABLE = Path(__file__).with_name("broken.txt")


@dataclass
class Case:
    """A command line, its files and environment, and the lines it should print."""

    files: dict[str, list[str]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    arguments: str = ""
    expected_lines: list[str] = field(default_factory=list)


def read_cases(table: str) -> dict[str, Case]:
    """Parses the table into its cases by name."""
    cases: dict[str, Case] = {}
    for block in table.split("\n## ")[1:]:
        name, *lines = block.rstrip("\n").split("\n")
        assert name not in cases
        case = cases[name] = Case()
        while not lines[0].startswith("$ "):
            kind, _, rest = lines.pop(0).partition(" ")
            if kind == "file":
                case.files[rest] = content = []
            elif kind == "|":
                content.append(rest)
            else:
                variable, _, case.environ[variable] = rest.partition("=")
        case.arguments = lines.pop(0).removeprefix("$ ")
        case.expected_lines = lines
    return cases


CASES = read_cases(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_broken_command_line_prints_its_whole_message(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case, folders = CASES[name], {"tmp": str(tmp_path), "repo": str(REPOSITORY)}
    for file, lines in case.files.items():
        path, _, encoding = file.partition(" ")
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / path).write_text(text, encoding=encoding or "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    for variable, value in case.environ.items():
        monkeypatch.setenv(variable, value.replace("{repo}", folders["repo"]))
    arguments = ["check_only=true", *shlex.split(case.arguments)]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    # A process of a launcher ends without the shutdown of Python; this one has other tests.
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(logging, "shutdown", lambda: None)

    with pytest.raises(SystemExit) as caught:
        run_entry_point(
            train.main, [task.schema for task in TASKS.values()], "v2", takes_composition=True
        )

    assert caught.value.code == 2
    message = capsys.readouterr().err
    problems = re.sub(r".*\d+ problems? in the configuration\n", "", message)
    expected = "\n".join(case.expected_lines)
    pattern = ".*".join(map(re.escape, expected.split("…")))
    for folder, path in folders.items():
        pattern = pattern.replace(re.escape(f"{{{folder}}}"), re.escape(path))
    assert re.fullmatch(pattern, problems.rstrip("\n")), f"{message}\nexpected\n{expected}"

"""The package is typed for those who use it (`py.typed`)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


def list_errors(name: str) -> list[tuple[int, str]]:
    """Returns line and code of each error that mypy reports in a file beside this one."""
    file = f"tests/api/{name}.py"
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", file]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    errors = re.findall(rf"{file}:(\d+): error: .* \[(.*)\]", done.stdout)
    assert done.stdout.count(": error:") == len(errors), done.stdout
    return [(int(line), code) for line, code in errors]


@pytest.mark.slow
def test_mypy_knows_the_types_of_the_interface_and_reports_mistakes() -> None:
    assert list_errors("typed_example") == []
    assert list_errors("typing_mistakes") == [
        (5, "arg-type"),
        (6, "call-overload"),
        (7, "call-arg"),
        (8, "list-item"),
        (9, "arg-type"),
        (10, "attr-defined"),
    ]

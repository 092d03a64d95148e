"""The package is typed for those who use it (`py.typed`)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


def errors_of(name: str) -> list[tuple[int, str]]:
    """The line and the code of each error that mypy finds in a file beside this one."""
    file = f"tests/api/{name}.py"
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", file]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    found = re.findall(rf"{file}:(\d+): error: .* \[(.*)\]", done.stdout)
    assert done.stdout.count(": error:") == len(found), done.stdout
    return [(int(line), code) for line, code in found]


@pytest.mark.slow
def test_types_of_the_interface_are_known_and_mistakes_are_found() -> None:
    assert errors_of("typed_example") == []
    assert errors_of("typing_mistakes") == [
        (5, "arg-type"),
        (6, "call-overload"),
        (7, "call-arg"),
        (8, "list-item"),
        (9, "arg-type"),
        (10, "attr-defined"),
    ]

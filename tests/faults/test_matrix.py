"""The table of the fault matrix, `MATRIX.md`, lists all tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

HERE = Path(__file__).parent
ROWS = range(1, 22)


def list_functions_by_row() -> dict[int, dict[str, ast.FunctionDef]]:
    """Returns the tests of each row, by `file::name`."""
    functions: dict[int, dict[str, ast.FunctionDef]] = {row: {} for row in ROWS}
    for file in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (
                match := re.match(r"test_row_(\d+)_", node.name)
            ):
                functions[int(match[1])][f"{file.stem[len('test_') :]}::{node.name}"] = node
    return functions


def test_the_table_names_the_tests_of_each_row() -> None:
    table = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", (HERE / "MATRIX.md").read_text(), re.M)
    named = {int(row): sorted(names.split(", ")) for row, names in table}
    expected = {
        row: sorted(re.sub(rf"::test_row_{row}_", ": ", name) for name in names)
        for row, names in list_functions_by_row().items()
    }
    assert named == expected


def test_each_row_has_a_quick_test() -> None:
    for row, functions in list_functions_by_row().items():
        slow = [
            any(ast.unparse(mark) == "pytest.mark.slow" for mark in function.decorator_list)
            for function in functions.values()
        ]
        assert slow.count(False) >= 1, f"row {row}"

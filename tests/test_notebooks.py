"""The notebooks are short, use no shell, and have the outputs of a fresh run."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "examples" / "notebooks").glob("*.ipynb"))
SHELL = re.compile(r"^\s*(?:!|%%?(?:bash|sh|script|system)\b)", re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d.,e]*(?:e-?\d+)?")
VARIES = "varies"
"""Tag of a cell whose texts depend on the last bits of a model, so on the processor."""


def read_cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return cells


def mask_output(cell: dict[str, Any]) -> str:
    """Returns the printed text of a cell with numbers masked; only lines if the text varies."""
    texts = []
    for output in cell.get("outputs", ()):
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        texts.append("".join(text))
    masked = re.sub(r"\s+", " ", NUMBER.sub("#", "".join(texts)))
    return str(bool(masked)) if VARIES in cell["metadata"].get("tags", ()) else masked


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_has_its_outputs(notebook: Path) -> None:
    cells = read_cells(notebook)
    assert len(cells) <= 12
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if SHELL.search("".join(cell["source"]))] == []
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) - 3
    assert len(notebook.read_bytes()) < 60_000

    printed = json.dumps([cell["outputs"] for cell in code])
    for name in ("Traceback", "Warning", str(REPOSITORY), str(Path.home())):
        assert name not in printed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_outputs_of_a_run(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(REPOSITORY / "experiments" / "run_notebooks.py"))
    # `bsmeta` in its cells is that of this environment, and their folders are in that of the test.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    content = script["run_notebook"](notebook)
    expected = [mask_output(cell) for cell in read_cells(notebook)]
    assert [mask_output(cell) for cell in content.cells] == expected

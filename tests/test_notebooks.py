"""The notebooks are light, and run from the first to the last cell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "examples" / "notebooks").glob("*.ipynb"))
CELL_S = 1500
"""A cell that takes longer is stuck, also on a busy machine."""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= 12
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    # `bsmeta` in its cells is that of this environment, and their folders are in that of the test.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    content = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        content, timeout=CELL_S, startup_timeout=CELL_S, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in content.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "Traceback" not in printed

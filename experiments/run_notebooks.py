"""Runs the notebooks of `examples/notebooks`, and writes their outputs into them.

    python experiments/run_notebooks.py [NAME ...]

Each runs from its first to its last cell in a kernel of this environment, and writes its files to
folders in the folder of temporary files. A notebook with an error stays as it is.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
CELL_TIMEOUT_S = 1500
"""A cell that takes longer is stuck, also on a busy machine."""


def run_notebook(file: Path) -> nbformat.NotebookNode:
    """Runs a notebook; returns it with new outputs: what it prints and shows, but no logs.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises an error.
    """
    content = nbformat.read(file, as_version=4)
    client = NotebookClient(content, timeout=CELL_TIMEOUT_S, startup_timeout=CELL_TIMEOUT_S)
    client.execute()
    for cell in content.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    return content


def main() -> None:
    """Runs the notebooks that the command line names, or all."""
    files = {file.stem: file for file in sorted(NOTEBOOKS.glob("*.ipynb"))}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *files], metavar="NAME")
    for name in parser.parse_args().names or files:
        print(name, file=sys.stderr)
        content = run_notebook(files[name])
        files[name].write_text(nbformat.writes(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # A kernel finds the commands of this environment, too.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    main()

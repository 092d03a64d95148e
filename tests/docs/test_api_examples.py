"""The examples of the page on the Python interface run, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = BLOCK.findall((REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4
    script = tmp_path / "examples.py"
    # The page opens the run of `make demo`, which would take minutes: its own short run serves.
    code = "\n".join(blocks).replace('open_run("runs/demo")', 'open_run("runs/first")')
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]

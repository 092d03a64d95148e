"""Reports with marked names, each of which is written once for all tests of all workers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.report.hostile import FIGURES, MARKUP
from tests.report.made import KINDS, PLAIN, Marks

MARKS: dict[str, Marks] = {
    "plain": PLAIN,
    **{f"figures {n}": FIGURES[n::2] for n in range(2)},
    **{f"markup {n}": MARKUP[n::4] for n in range(4)},
}
"""No more marks than most reports have names."""


def cases(kinds: Collection[str], *marks: str) -> list[Any]:
    """Returns parameters `kind, marks`; figures of many studies are slow."""
    return [
        pytest.param(
            kind,
            name,
            marks=[pytest.mark.slow] if kind == "study" and not name.endswith("0") else [],
        )
        for kind in kinds
        for name in marks
    ]


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes a report of a kind with some marks; any warning is an error."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def write(kind: str, marks: str) -> Path:
        folder = shared / "reports" / marks.replace(" ", "-") / kind
        folder.parent.mkdir(parents=True, exist_ok=True)
        page = folder.with_suffix(".page")  # holds the path of the page once that is written
        with FileLock(folder.with_suffix(".lock")):
            if not page.exists():
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    page.write_text(str(KINDS[kind](folder, MARKS[marks])))
            return Path(page.read_text())

    return write

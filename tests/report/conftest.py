"""Reports with marked names, each of which is written once for all tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.report.hostile import FIGURES, MARKUP
from tests.report.made import KINDS, PLAIN, Marks

MARKS: dict[str, Marks] = {
    "plain": PLAIN,
    **{f"figures {n}": FIGURES[n::2] for n in range(2)},
    **{f"markup {n}": MARKUP[n::4] for n in range(4)},
}
"""No more marks than most reports have names."""


def cases(kinds: Collection[str], *marks: str) -> list[Any]:
    """Parameters `kind, marks`; the figures of many studies take long."""
    return [
        pytest.param(
            kind,
            own,
            marks=[pytest.mark.slow] if kind == "study" and not own.endswith("0") else [],
        )
        for kind in kinds
        for own in marks
    ]


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes a report of a kind with some marks; any warning is an error."""

    @cache
    def write(kind: str, marks: str) -> Path:
        folder = tmp_path_factory.mktemp("report") / kind
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return KINDS[kind](folder, MARKS[marks])

    return write

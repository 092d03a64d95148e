"""Pages for the tests of `bsmeta quick`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

WORDS = [
    "river",
    "stone",
    "cloud",
    "engine",
    "letter",
    "garden",
    "window",
    "signal",
    "market",
    "forest",
    "copper",
    "winter",
]


def make_text(number: int, words: int = 60) -> str:
    """Returns a text of words, different for each number."""
    return " ".join(
        f"{WORDS[(number * 7 + k * (1 + number % 5)) % 12]}{number % 9}" for k in range(words)
    )


def make_row(number: int, hosts: int = 5) -> dict[str, Any]:
    """Returns a page with a URL at one of `hosts` hosts, a title and a date."""
    return {
        "text": f"page {number}: {make_text(number)}",
        "url": f"https://site{number % hosts}.example.org/page-{number}",
        "title": f"Title {number}",
        "date": f"20{number % 20:02d}-03-01",
    }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path

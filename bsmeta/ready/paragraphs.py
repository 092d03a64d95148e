"""Writes the table of the ready-made classifier: paragraphs of the shipped pages, by project."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from bsmeta.core.files import ROOT
from bsmeta.core.parsing import parse_json
from bsmeta.tasks.spelling.samples import compute_prose_share

PROJECTS = {
    "docs.python.org": "Python",
    "www.postgresql.org": "PostgreSQL",
    "www.boost.org": "Boost",
    "pandas.pydata.org": "pandas",
    "docs.scipy.org": "SciPy",
}
"""The label of the pages of each site."""

PAGES = ROOT / "examples" / "webdocs"
_SPLITS = {0: "test", 6: "validation"}  # of shards; all others are for training
_SPLIT_ORDER = (0, 6, 1, 2, 3, 4, 5)  # a paragraph stays in the first shard that has it
_MIN_WORDS = 12
_MIN_PROSE_SHARE = 0.8


def locate_shard(number: int) -> Path:
    """Returns the path of a shard of the shipped pages; shard 0 is held out."""
    return PAGES / f"c4-en-html_cc-main-2019-18_pq00-{number:03d}.jsonl.gz"


def write_paragraphs(file: Path, max_texts: int | None) -> None:
    """Writes the paragraphs with their `label`, `page` and `split`, as JSON lines.

    Whole pages are held out: the test split is the shard that is held out from every run on these
    pages. Paragraphs that occur in several places are written once.

    Args:
        max_texts: The number of paragraphs of each split, spread over its pages; None: all.
    """
    rows_by_split: dict[str, list[dict[str, str]]] = {"test": [], "validation": [], "train": []}
    written_texts = set()
    for number in _SPLIT_ORDER:
        split = _SPLITS.get(number, "train")
        for row in _iterate_paragraphs(locate_shard(number)):
            if row["text"] not in written_texts:
                written_texts.add(row["text"])
                rows_by_split[split].append({**row, "split": split})

    with file.open("w", encoding="utf-8") as stream:
        for rows in rows_by_split.values():
            stride = 1 if max_texts is None else max(len(rows) // max_texts, 1)
            for row in rows[::stride][:max_texts]:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def _iterate_paragraphs(shard: Path) -> Iterator[dict[str, str]]:
    """Yields the paragraphs of prose in the pages of a shard, with their label and page."""
    with gzip.open(shard, "rt", encoding="utf-8") as lines:
        for line in lines:
            page = parse_json(line)
            label = PROJECTS[urlsplit(page["url"]).netloc]
            for paragraph in page["text"].splitlines():
                words = paragraph.split()
                text = " ".join(words)
                if len(words) >= _MIN_WORDS and compute_prose_share(text) >= _MIN_PROSE_SHARE:
                    yield {"text": text, "label": label, "page": page["url"]}

"""Writes the texts that the spelling models of docs/spelling.md are trained on, one per line.

python experiments/benchmarks/spelling_texts.py SENSES ADDRESSES FOLDER

SENSES holds WordNet 3.0 and SemCor in the format of the disambiguation task: `profiles.jsonl.gz`
and `train.jsonl.gz`. ADDRESSES is a CSV file with a column `text`, the paragraphs of the State of
the Union addresses.

    semcor.txt     the sentences of SemCor
    addresses.txt  the paragraphs
    glosses.txt    a synset of WordNet per line: its definitions and examples as sentences
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def main(senses: Path, addresses: Path, folder: Path) -> None:
    """Writes the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = (line["sentence"] for line in _read_records(senses / "train.jsonl.gz"))
    _write_texts(folder / "semcor.txt", sentences)

    with addresses.open(newline="", encoding="utf-8") as file:
        _write_texts(folder / "addresses.txt", (row["text"] for row in csv.DictReader(file)))

    profiles = _read_records(senses / "profiles.jsonl.gz")
    glosses = (format_gloss(profile["description"]) for profile in profiles)
    _write_texts(folder / "glosses.txt", glosses)


def format_gloss(gloss: str) -> str:
    """Formats the parts of a gloss (`a unit; "the team is a unit"`) as sentences."""
    parts = (part.strip().strip('"').strip() for part in gloss.split(";"))
    return " ".join(
        part[0].upper() + part[1:] + "." * (part[-1] not in ".!?") for part in parts if part
    )


def _read_records(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _write_texts(path: Path, texts: Iterable[str]) -> None:
    path.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))

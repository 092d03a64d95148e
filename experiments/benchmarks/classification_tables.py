"""Writes four labeled tables of different kinds, always the same ones, for the classifier.

python experiments/benchmarks/classification_tables.py SENSES FOLDER

SENSES holds WordNet 3.0 and SemCor in the format of the disambiguation task: `profiles.jsonl.gz`
and `train.jsonl.gz`.

    glosses.csv   many labels: the definition of a synset, and which of 45 lexicographer files it
                  is in
    emotions.csv  imbalanced: a sentence of SemCor, whether it has a word for an emotion (6.5%), and
                  its document
    nouns.csv     very short: a noun, mostly of one or two words, and which of 26 files it is in
    fields.jsonl  several labels: a sentence of SemCor, the list of the files that its nouns are in
                  (which may be empty), and its document; only of documents whose nouns are tagged
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS = 6000
SEED = 31
ONLY_VERBS = "brownv_"  # documents of SemCor of which only the verbs are tagged
EMOTIONS = ("noun.feeling", "verb.emotion")


def main(senses: Path, folder: Path) -> None:
    """Writes the tables, each a random sample of its source."""
    folder.mkdir(parents=True, exist_ok=True)
    profiles = [*_lines(senses / "profiles.jsonl.gz")]
    files = {profile["entity_id"]: profile["types"]["lexicographer"][0] for profile in profiles}
    _write(
        folder / "glosses.csv", ("text", "label"),
        [(profile["description"], files[profile["entity_id"]]) for profile in profiles],
    )  # fmt: skip
    _write(
        folder / "emotions.csv", ("text", "label", "document"),
        [
            (line["sentence"], _emotion(line["qids"], files), line["document"])
            for line in _lines(senses / "train.jsonl.gz")
        ],
    )  # fmt: skip
    nouns = [
        (profile["title"], files[profile["entity_id"]])
        for profile in profiles
        if files[profile["entity_id"]].startswith("noun.")
    ]
    _write(folder / "nouns.csv", ("text", "label"), nouns)
    fields = [
        {
            "text": line["sentence"],
            "fields": _noun_files(line["qids"], files),
            "document": line["document"],
        }
        for line in _lines(senses / "train.jsonl.gz")
        if not line["document"].startswith(ONLY_VERBS)
    ]
    sample = random.Random(SEED).sample(fields, ROWS)
    rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sample)
    (folder / "fields.jsonl").write_text(rows, encoding="utf-8")


def _emotion(synsets: Sequence[str], files: Mapping[str, str]) -> str:
    return "emotion" if any(files.get(synset) in EMOTIONS for synset in synsets) else "none"


def _noun_files(synsets: Sequence[str], files: Mapping[str, str]) -> list[str]:
    return sorted({files[synset] for synset in synsets if files[synset].startswith("noun.")})


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _write(file: Path, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    sample = random.Random(SEED).sample(rows, ROWS)
    with file.open("w", newline="", encoding="utf-8") as output:
        csv.writer(output, lineterminator="\n").writerows([header, *sample])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))

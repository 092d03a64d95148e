"""Writes four labeled tables of different kinds, always the same ones, for the classifier.

    python experiments/benchmarks/classification_tables.py SENSES FOLDER

SENSES holds WordNet 3.0 and SemCor in the format of the disambiguation task: `profiles.jsonl.gz`
and `train.jsonl.gz`. The tables are:

    glosses.csv   many labels: the definition of a synset, and which of 45 lexicographer files it
                  is in
    emotions.csv  imbalanced: a sentence of SemCor, whether it has a word for an emotion (6.5%), and
                  its document
    nouns.csv     very short: a noun, mostly of one or two words, and which of 26 files it is in
    fields.jsonl  several labels: a sentence of SemCor, the list of the files that its nouns are in
                  (which may be empty), and its document; only of documents whose nouns are tagged
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bsmeta.core.process import run_and_report

ROWS = 6000
SEED = 31
VERB_DOCUMENTS = "brownv_"  # prefix of SemCor's documents of which only the verbs are tagged
EMOTIONS = ("noun.feeling", "verb.emotion")


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("senses", type=Path, help="folder of profiles.jsonl.gz and train.jsonl.gz")
    parser.add_argument("folder", type=Path, help="folder of the tables")
    arguments = parser.parse_args()
    write_tables(arguments.senses, arguments.folder)


def write_tables(senses: Path, folder: Path) -> None:
    """Writes the tables, each a random sample of its source."""
    folder.mkdir(parents=True, exist_ok=True)
    profiles = [*read_lines(senses / "profiles.jsonl.gz")]
    sentences = [*read_lines(senses / "train.jsonl.gz")]
    files = {profile["entity_id"]: profile["types"]["lexicographer"][0] for profile in profiles}

    glosses = [(profile["description"], files[profile["entity_id"]]) for profile in profiles]
    write_csv(folder / "glosses.csv", ("text", "label"), glosses)

    emotions = [
        (line["sentence"], name_emotion(line["qids"], files), line["document"])
        for line in sentences
    ]
    write_csv(folder / "emotions.csv", ("text", "label", "document"), emotions)

    nouns = [
        (profile["title"], files[profile["entity_id"]])
        for profile in profiles
        if files[profile["entity_id"]].startswith("noun.")
    ]
    write_csv(folder / "nouns.csv", ("text", "label"), nouns)

    fields = [
        {
            "text": line["sentence"],
            "fields": list_noun_files(line["qids"], files),
            "document": line["document"],
        }
        for line in sentences
        if not line["document"].startswith(VERB_DOCUMENTS)
    ]
    sample = random.Random(SEED).sample(fields, ROWS)
    rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sample)
    (folder / "fields.jsonl").write_text(rows, encoding="utf-8")


def name_emotion(synsets: Sequence[str], files: Mapping[str, str]) -> str:
    """Returns the label of a sentence: whether one of its synsets is an emotion."""
    return "emotion" if any(files.get(synset) in EMOTIONS for synset in synsets) else "none"


def list_noun_files(synsets: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Lists the lexicographer files of the nouns among synsets."""
    return sorted({files[synset] for synset in synsets if files[synset].startswith("noun.")})


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a gzipped file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_csv(file: Path, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Writes a random sample of rows."""
    sample = random.Random(SEED).sample(rows, ROWS)
    with file.open("w", newline="", encoding="utf-8") as output:
        csv.writer(output, lineterminator="\n").writerows([header, *sample])


if __name__ == "__main__":
    sys.exit(run_and_report(main))

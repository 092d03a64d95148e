"""Trains `method=auto` on ten tables of different kinds, and compares it with `method=linear`.

    python experiments/benchmarks/classification_auto.py DATA FOLDER --model all-MiniLM-L6-v2
    python experiments/benchmarks/classification_auto.py DATA FOLDER --tables code --tables-only

DATA holds `rawpages/` (pages of manuals in nine languages), `webdocs/` (pages with URLs) and
`senses/` (WordNet and SemCor); other tables are of Python's standard library, of scikit-learn's
bundled data, or generated. The tables are always the same for the same versions of these sources.
Each is written to FOLDER and trained on in a process of its own. Prints a Markdown table: macro F1
on the test split, and the difference of auto from linear with its interval.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bsmeta.core.process import run_and_report

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = 17
LINEAR = "TF-IDF + linear SVM"

Row = tuple[str, str]
"""A text and its label."""

LANGUAGES = ("de", "en", "es", "fr", "ja", "ko", "pt-br", "tr", "zh-cn")
PACKAGES = ("asyncio", "email", "http", "json", "logging", "unittest", "xml", "tkinter")
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def iterate_manual_paragraphs(data: Path) -> Iterator[tuple[str, str, str]]:
    """Yields language, section and text of each paragraph of the Apache HTTP Server's manual."""
    for file in sorted((data / "rawpages").glob("*.jsonl.gz")):
        for page in read_lines(file):
            match = re.search(r"httpd\.apache\.org/docs/2\.4/([a-z-]+)/(\w+)/", page["url"])
            if match is None:
                continue
            for paragraph in _PARAGRAPH.findall(page["html"]):
                text = " ".join(_TAG.sub("", paragraph).split())
                if len(text) > 20:
                    yield match[1], match[2], text


def make_languages(data: Path) -> list[Row]:
    """The language of a paragraph."""
    rows = iterate_manual_paragraphs(data)
    return [(text[:200], language) for language, _, text in rows if language in LANGUAGES]


def make_japanese(data: Path) -> list[Row]:
    """The section of a Japanese paragraph, whose words are not separated by spaces."""
    rows = iterate_manual_paragraphs(data)
    return [(text[:150], section) for language, section, text in rows if language == "ja"]


def make_code(_: Path) -> list[Row]:
    """The package of Python's standard library that five lines of code are from."""
    library = Path(sysconfig.get_path("stdlib"))
    rows: list[Row] = []
    for package in PACKAGES:
        for file in sorted((library / package).glob("*.py")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for begin in range(0, len(lines) - 4, 5):
                text = "\n".join(lines[begin : begin + 5])
                if text.strip():
                    rows.append((text, package))
    return rows


def make_urls(data: Path) -> list[Row]:
    """The site of a documentation page, by the last part of its URL."""
    rows: list[Row] = []
    for file in sorted((data / "webdocs").glob("*.jsonl.gz")):
        for page in read_lines(file):
            host, _, path = page["url"].partition("://")[2].partition("/")
            rows.append((path.rpartition("/")[2], host))
    return rows


def make_rare(data: Path) -> list[Row]:
    """Whether a sentence has a word for a feeling, which 1% of them have."""
    feelings = {
        profile["entity_id"]
        for profile in read_lines(data / "senses" / "profiles.jsonl.gz")
        if profile["types"]["lexicographer"][0] == "noun.feeling"
    }
    rows: list[Row] = []
    for line in read_lines(data / "senses" / "train.jsonl.gz"):
        rows.append(
            (line["sentence"], "feeling" if feelings.intersection(line["qids"]) else "none")
        )
    generator = random.Random(SEED)
    rare = [row for row in rows if row[1] == "feeling"]
    common = [row for row in rows if row[1] == "none"]
    return [*generator.sample(rare, 20), *generator.sample(common, 1980)]


def make_three_rows(data: Path) -> list[Row]:
    """The WordNet file of a definition, with three rows for each of 45 files."""
    texts_by_label: dict[str, list[str]] = {}
    for profile in read_lines(data / "senses" / "profiles.jsonl.gz"):
        label = profile["types"]["lexicographer"][0]
        texts_by_label.setdefault(label, []).append(profile["description"])
    generator = random.Random(SEED)
    rows: list[Row] = []
    for label, texts in sorted(texts_by_label.items()):
        rows += [(text, label) for text in generator.sample(sorted(set(texts)), 3)]
    return rows


def make_large(data: Path) -> list[Row]:
    """The part of speech of a WordNet title or definition: 200,000 rows."""
    rows: list[Row] = []
    for profile in read_lines(data / "senses" / "profiles.jsonl.gz"):
        part_of_speech = profile["types"]["lexicographer"][0].partition(".")[0]
        rows += [(profile["title"], part_of_speech), (profile["description"], part_of_speech)]
    return rows


def make_measurements(_: Path) -> list[Row]:
    """The grower of a wine, by a text of its 13 measurements."""
    from sklearn.datasets import load_wine

    wine = load_wine()
    rows: list[Row] = []
    for values, target in zip(wine.data, wine.target, strict=True):
        names = zip(wine.feature_names, values, strict=True)
        rows.append((", ".join(f"{name} {value:g}" for name, value in names), f"grower {target}"))
    return rows


def make_identifiers(_: Path) -> list[Row]:
    """The type of a random identifier; no word of one occurs in another."""
    generator = random.Random(SEED)

    def make_hex(length: int) -> str:
        return "".join(generator.choices("0123456789abcdef", k=length))

    makers: dict[str, Callable[[], str]] = {
        "hash": lambda: make_hex(40),
        "address": lambda: ":".join(make_hex(2) for _ in range(6)),
        "date": lambda: f"{generator.randint(1900, 2100)}{generator.randint(1, 12):02}28",
        "amount": lambda: f"{generator.randint(1, 10**6)},{generator.randint(0, 99):02}",
    }
    return [(maker(), name) for _ in range(250) for name, maker in makers.items()]


def make_noise(data: Path) -> list[Row]:
    """Definitions with labels drawn at random: there is nothing to learn."""
    generator = random.Random(SEED)
    profiles = [*read_lines(data / "senses" / "profiles.jsonl.gz")]
    sample = generator.sample(profiles, 1000)
    return [(profile["description"], generator.choice("ab")) for profile in sample]


TABLES: dict[str, tuple[Callable[[Path], list[Row]], int]] = {
    "languages": (make_languages, 900),
    "japanese": (make_japanese, 800),
    "code": (make_code, 1000),
    "urls": (make_urls, 1000),
    "rare": (make_rare, 2000),
    "three_rows": (make_three_rows, 135),
    "measurements": (make_measurements, 178),
    "identifiers": (make_identifiers, 1000),
    "noise": (make_noise, 1000),
    "large": (make_large, 200_000),
}
"""Functions that make the tables, and their maximum numbers of rows."""


def main() -> None:
    """Makes the tables, trains on them, and prints the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with rawpages/, webdocs/ and senses/")
    parser.add_argument("folder", type=Path, help="folder of the tables and runs")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES], metavar="NAME")
    parser.add_argument("--model", help="encoder; without it, a tiny one of random weights")
    parser.add_argument("--tables-only", action="store_true", help="write the tables, and stop")
    parser.add_argument("--keys", nargs="*", default=[], help="further keys of the runs")
    arguments = parser.parse_args()

    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("| table | rows, labels | linear | auto | auto - linear | exported | CPU s |")
    print("|---|---:|---:|---:|---:|---|---:|")
    for name in arguments.tables:
        table = write_table(name, arguments.data, arguments.folder)
        if not arguments.tables_only:
            print(train_on_table(table, arguments.model, arguments.keys), flush=True)


def write_table(name: str, data: Path, folder: Path) -> Path:
    """Writes a table, a random sample of its source with one row for each distinct text."""
    make, max_rows = TABLES[name]
    rows = [*{text: (text, label) for text, label in make(data)}.values()]
    random.Random(SEED).shuffle(rows)
    rows = keep_frequent_labels(rows[:max_rows])

    file = folder / f"{name}.csv"
    with file.open("w", newline="", encoding="utf-8") as output:
        csv.writer(output, lineterminator="\n").writerows([("text", "label"), *rows])
    return file


def keep_frequent_labels(rows: list[Row]) -> list[Row]:
    """Returns the rows whose label has at least three rows, as the splits need."""
    counts: dict[str, int] = {}
    for _, label in rows:
        counts[label] = counts.get(label, 0) + 1
    return [row for row in rows if counts[row[1]] >= 3]


def train_on_table(table: Path, model: str | None, keys: list[str]) -> str:
    """Trains on a table; returns a row of the Markdown table."""
    run_folder = table.with_name(f"{table.stem}_run")
    examples = REPOSITORY / "examples"
    encoder = [f"model_name={model}"]
    if model is None:
        encoder = [
            f"tokenizer_name={examples / 'tokenizer'}",
            f"model_config_file={examples / 'leanings' / 'config.json'}",
        ]
    command = [
        sys.executable,
        str(REPOSITORY / "bsmeta" / "train.py"),
        "--config-name=classification",
        f"data_config.csv={table}",
        "data_config.label_column=label",
        f"out_dir={run_folder}",
        "overwrite_out_dir=true",
        *encoder,
        *keys,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with run_folder.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    results = json.loads((run_folder / "evaluation" / "evaluation.json").read_text())
    return format_row(table.stem, results, seconds)


def format_row(name: str, results: dict[str, Any], seconds: float) -> str:
    """Formats the results of a run as a row of the Markdown table, by macro F1."""
    rows = sum(sum(counts.values()) for counts in results["distribution"].values())
    model = results["systems"]["model"]["macro_f1"]
    linear = results["systems"].get(LINEAR, {}).get("macro_f1", model)
    low, high = linear.get("minus_model_interval", (0.0, 0.0))
    difference = 0.0 - linear.get("minus_model", 0.0)
    cells = [
        name,
        f"{rows:,}, {len(results['labels'])}",
        f"{linear['value']:.3f}",
        f"{model['value']:.3f}",
        f"{difference:+.3f} ({0.0 - high:+.3f} to {0.0 - low:+.3f})",
        results["choice"]["chosen"],
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a gzipped file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


if __name__ == "__main__":
    sys.exit(run_and_report(main))

"""Makes the shipped sample of sense-tagged sentences from the full data (WordNet 3.0, SemCor).

    python examples/make_senses.py FOLDER

writes `examples/senses_sample/`: sentences of the first documents with the mentions of the most
frequent aliases, the profiles of all entities that these aliases may mean, and the manifest by
which bsmeta/download.py copies them. The result depends on the source only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent / "senses_sample"
LISTS = ("aliases", "qids", "char_spans", "gold")

TRAIN_DOCUMENTS, DEV_DOCUMENTS = 14, 4
ALIASES = 240  # the whole sample stays below 300 kB


def main(arguments: list[str]) -> int:
    """Makes the sample; returns the exit code."""
    if len(arguments) != 1 or not Path(arguments[0], "profiles.jsonl.gz").is_file():
        print("usage: make_senses.py FOLDER   (with profiles, train, dev)", file=sys.stderr)
        return 2
    source = Path(arguments[0])
    train = list(first_documents(source / "train.jsonl.gz", TRAIN_DOCUMENTS))
    dev = list(first_documents(source / "dev.jsonl.gz", DEV_DOCUMENTS))
    counts = Counter(alias for line in train for alias in line["aliases"])
    ranked = sorted(counts, key=lambda alias: (-counts[alias], alias))
    aliases = {*ranked[:ALIASES]}
    OUT.mkdir(exist_ok=True)
    write("train.jsonl.gz", with_mentions(train, aliases))
    write("dev.jsonl.gz", with_mentions(dev, aliases))
    write("profiles.jsonl.gz", with_aliases(read(source / "profiles.jsonl.gz"), aliases))
    shutil.copyfile(source / "LICENSE.txt", OUT / "LICENSE.txt")
    names = ("profiles.jsonl.gz", "train.jsonl.gz", "dev.jsonl.gz", "LICENSE.txt")
    manifest = json.dumps({"files": [entry(OUT / name) for name in names]}, indent=1)
    (OUT / "manifest.json").write_text(f"{manifest}\n")
    return 0


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def first_documents(path: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yields the lines of the first documents of a file."""
    seen: set[str] = set()
    for line in read(path):
        seen.add(line["document"])
        if len(seen) > count:
            return
        yield line


def with_mentions(lines: Iterable[dict[str, Any]], aliases: set[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines that mention some of the aliases, without their other mentions."""
    for line in lines:
        kept = [place for place, alias in enumerate(line["aliases"]) if alias in aliases]
        if kept:
            yield line | {name: [line[name][place] for place in kept] for name in LISTS}


def with_aliases(profiles: Iterable[dict[str, Any]], aliases: set[str]) -> Iterator[dict[str, Any]]:
    """Yields the entities of some aliases, with these aliases and the relations among them."""
    chosen = []
    for profile in profiles:
        mentions = [mention for mention in profile["mentions"] if mention[0] in aliases]
        if mentions:
            chosen.append(profile | {"mentions": mentions})
    ids = {profile["entity_id"] for profile in chosen}
    for profile in chosen:
        relations = [known for known in profile["relations"] if known["object"] in ids]
        yield profile | {"relations": relations}


def write(name: str, lines: Iterable[dict[str, Any]]) -> None:
    """Writes a file without name and time in its gzip header: the same lines, the same bytes."""
    buffer, count = io.BytesIO(), 0
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            count += 1
    (OUT / name).write_bytes(buffer.getvalue())
    print(f"{name}: {count:,} lines, {len(buffer.getvalue()):,} bytes")


def entry(path: Path) -> dict[str, Any]:
    """The entry of a file in the manifest."""
    content = path.read_bytes()
    return {
        "path": path.name,
        "address": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

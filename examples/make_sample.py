"""Makes the shipped sample from a folder of `c4-en-html-with-metadata`-like shards.

    python examples/make_sample.py FOLDER

writes `examples/webdocs/*.jsonl.gz` (the held-out file and six training shards, under the names of
their sources) and `examples/tokenizer/` (byte-level BPE trained on the training shards only). The
same source gives the same bytes. `examples/README.md` says what is in there.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from bsmeta.data.text.tokenizer_training import train_tokenizer

HERE = Path(__file__).resolve().parent
TEST_FILE = "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
TRAIN_FILES = [f"c4-en-html_cc-main-2019-18_pq00-{number:03d}.jsonl.gz" for number in range(1, 7)]

TEST_DOCUMENTS_PER_SITE = 12
TEST_TEXT_CHARACTERS = range(600, 8_000)  # so that an evaluation on a CPU takes seconds
SHARD_BYTES = 620_000  # of a compressed training shard: the whole sample stays below 4 MB
DOCUMENT_BYTES = 16_000  # of a compressed document: many middling pages, not a few huge ones

VOCABULARY = 4096


def main(arguments: list[str]) -> int:
    """Makes the sample; returns the exit code."""
    if len(arguments) != 1 or not Path(arguments[0], TEST_FILE).is_file():
        print(f"usage: make_sample.py FOLDER   (a folder with {TEST_FILE} in it)", file=sys.stderr)
        return 2
    source = Path(arguments[0])
    held_out = list(lines(source / TEST_FILE))
    seen = {key for _, document in held_out for key in (document["url"], document["text"])}
    write_shard(TEST_FILE, choose_test(held_out))
    texts: list[str] = []
    for name in TRAIN_FILES:
        chosen = choose_training(lines(source / name), seen)
        write_shard(name, [line for line, _ in chosen])
        texts += [text for _, document in chosen for text in tokenizer_texts(document)]
    train_tokenizer(texts, VOCABULARY).save_pretrained(HERE / "tokenizer")
    return 0


def lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields every line of a shard, as it stands and decoded."""
    with gzip.open(path) as shard:
        for line in shard:
            yield line, json.loads(line)


def choose_test(documents: list[tuple[bytes, dict[str, Any]]]) -> list[bytes]:
    """The first documents of every site whose text is of a handy length, in the file's order."""
    taken: defaultdict[str, int] = defaultdict(int)
    chosen = []
    for line, document in documents:
        site = urlsplit(document["url"]).netloc
        if (
            taken[site] < TEST_DOCUMENTS_PER_SITE
            and len(document["text"]) in TEST_TEXT_CHARACTERS
            and len(gzip.compress(line)) <= DOCUMENT_BYTES
        ):
            taken[site] += 1
            chosen.append(line)
    return chosen


def choose_training(
    documents: Iterator[tuple[bytes, dict[str, Any]]], seen: set[str]
) -> list[tuple[bytes, dict[str, Any]]]:
    """As many documents as fit, in the file's order, without what was seen already.

    Args:
        documents: The documents of a source shard.
        seen: URLs and texts of the held-out file and of earlier training documents; those of the
            chosen ones are added.
    """
    chosen, size = [], 0
    for line, document in documents:
        compressed = len(gzip.compress(line))
        if compressed > DOCUMENT_BYTES or {document["url"], document["text"]} & seen:
            continue
        if size + compressed > SHARD_BYTES:
            break
        seen |= {document["url"], document["text"]}
        size += compressed
        chosen.append((line, document))
    return chosen


def write_shard(name: str, chosen: list[bytes]) -> None:
    """Writes a shard without name and time in its gzip header: the same lines, the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as shard:
        shard.writelines(chosen)
    (HERE / "webdocs").mkdir(exist_ok=True)
    (HERE / "webdocs" / name).write_bytes(buffer.getvalue())
    print(f"{name}: {len(chosen)} documents, {len(buffer.getvalue()):,} bytes")


def tokenizer_texts(document: dict[str, Any]) -> list[str]:
    """What the tokenizer learns from a document: its text, its URL and its title."""
    titles = [record["value"] for record in document.get("metadata_title") or []]
    return [document["text"], unquote_plus(document["url"]), *titles]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

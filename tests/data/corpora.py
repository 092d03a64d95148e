"""Small files in exactly the form in which public corpora are published, for `data=` groups."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bsmeta.data.io.zstandard import zstd
from tests.data.helpers import WORDS

Row = dict[str, Any]

DCLM_SCORE = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
FINEWEB = {
    "text": pa.string(),
    "id": pa.string(),
    "dump": pa.string(),
    "url": pa.string(),
    "date": pa.string(),
    "file_path": pa.string(),
    "language": pa.string(),
    "language_score": pa.float64(),
    "token_count": pa.int64(),
}
FINEWEB_EDU = {name: kind for name, kind in FINEWEB.items() if name != "date"} | {
    "score": pa.float64(),
    "int_score": pa.int64(),
}


class Corpus(NamedTuple):
    """How a corpus is published.

    Attributes:
        row: Makes a document from its number, text and address.
        shards: Names of training shards.
        held_out: Name of the held-out shard.
        pattern: A pattern of the training shards, which the held-out one may match.
        write: Writes a shard.
    """

    row: Callable[[int, str, str], Row]
    shards: tuple[str, ...]
    held_out: str
    pattern: str
    write: Callable[[Path, list[Row]], None]


def lines(rows: list[Row]) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def write_gz(path: Path, rows: list[Row]) -> None:
    path.write_bytes(gzip.compress(lines(rows)))


def write_zst(path: Path, rows: list[Row]) -> None:
    path.write_bytes(zstd.compress(lines(rows)))


def write_parquet(path: Path, rows: list[Row]) -> None:
    schema = pa.schema(FINEWEB if "date" in rows[0] else FINEWEB_EDU)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=16)


def c4(number: int, text: str, url: str) -> Row:
    return {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": url}


def fineweb(number: int, text: str, url: str) -> Row:
    return {
        "text": text,
        "id": f"<urn:uuid:{number:032}>",
        "dump": "CC-MAIN-2013-20",
        "url": url,
        "date": "2013-05-18T05:48:54Z",
        "file_path": "s3://commoncrawl/crawl-data/CC-MAIN-2013-20/segments/1.warc.gz",
        "language": "en",
        "language_score": 0.9185,
        "token_count": len(text.split()),
    }


def fineweb_edu(number: int, text: str, url: str) -> Row:
    row = {**fineweb(number, text, url), "score": 3.0625, "int_score": 3}
    del row["date"]
    return row


def dolma(number: int, text: str, url: str) -> Row:
    """Makes a document; every third is from a source without addresses."""
    row = {"id": f"d{number}", "text": text, "added": "2023-04-12T00:00:00.000Z"}
    if number % 3 == 2:
        return row | {"source": "books", "created": None, "metadata": {"length": len(text)}}
    metadata = {"url": url, "language": {"en": 0.95}}
    return row | {"source": "c4", "created": "2019-04-25T12:57:54.000Z", "metadata": metadata}


def dclm(number: int, text: str, url: str) -> Row:
    return {
        "bff_contained_ngram_count_before_dedupe": 2,
        "language_id_whole_page_fasttext": {"en": 0.9721},
        "metadata": {
            "Content-Length": "17232",
            "Content-Type": "application/http; msgtype=response",
            "WARC-Date": "2013-05-22T00:02:37Z",
            "WARC-Identified-Payload-Type": None,
            "WARC-Target-URI": url,
            "WARC-Type": "response",
            "WARC-Truncated": None,
        },
        "previous_word_count": len(text.split()),
        "text": text,
        "url": url,
        "warcinfo": "robots: classic\r\nhostname: ip-10-60-113-184.ec2.internal\r\n",
        DCLM_SCORE: 0.2962,
    }


CORPORA = {
    "c4_en": Corpus(
        c4,
        tuple(f"c4-train.0000{n}-of-01024.json.gz" for n in range(3)),
        "c4-validation.00000-of-00008.json.gz",
        "c4-train.*.json.gz",
        write_gz,
    ),
    "fineweb": Corpus(
        fineweb,
        tuple(f"00{n}_00000.parquet" for n in range(3)),
        "014_00000.parquet",
        "*.parquet",
        write_parquet,
    ),
    "fineweb_edu": Corpus(
        fineweb_edu,
        tuple(f"00{n}_00000.parquet" for n in range(3)),
        "013_00000.parquet",
        "*.parquet",
        write_parquet,
    ),
    "dolma": Corpus(
        dolma,
        ("books/books-0000.json.gz", "c4-filtered/c4-0001.json.gz", "wiki/wiki-0000.json.gz"),
        "c4-filtered/c4-0000.json.gz",
        "**/*.json.gz",
        write_gz,
    ),
    "dclm": Corpus(
        dclm,
        tuple(
            f"global-shard_01_of_10/local-shard_{n}_of_10/shard_0000000{n}_processed.jsonl.zst"
            for n in (1, 2, 3)
        ),
        "global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst",
        "global-shard_*_of_10/local-shard_*_of_10/*.jsonl.zst",
        write_zst,
    ),
}

SIZES = (41, 33, 26)  # documents of the training shards
HELD_OUT = 12
TEXT_OF, URL_OF = 5, 7  # in the first shard: documents with the text, and the URL, of held-out ones


def text_of(number: int) -> str:
    words = [WORDS[(number + i) % len(WORDS)] for i in range(2 + number * 7 % 9)]
    return f"{number} {' '.join(words)}"


def document(corpus: Corpus, number: int) -> Row:
    return corpus.row(number, text_of(number), f"https://site{number % 5}.org/{number}")


def write_corpus(name: str, folder: Path) -> None:
    """Writes all shards; two documents of the first training shard overlap with held-out ones."""
    corpus = CORPORA[name]
    numbers = range(90_000, 90_000 + 3 * HELD_OUT, 3)
    held_out = [document(corpus, number) for number in numbers]
    for shard, (path, size) in enumerate(zip(corpus.shards, SIZES, strict=True)):
        rows = [document(corpus, 3_000 * shard + number) for number in range(size)]
        if not shard:
            rows[TEXT_OF] = corpus.row(TEXT_OF, text_of(numbers[2]), "https://elsewhere.org/")
            # Another form of the same address.
            url = f"http://SITE{numbers[4] % 5}.org/{numbers[4]}/#top"
            rows[URL_OF] = corpus.row(URL_OF - 1, "another text", url)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        corpus.write(folder / path, rows)
    (folder / corpus.held_out).parent.mkdir(parents=True, exist_ok=True)
    corpus.write(folder / corpus.held_out, held_out)


def overrides(name: str, folder: Path) -> list[str]:
    """Returns the keys that a user adds to `data=` to read the files from a folder."""
    corpus = CORPORA[name]
    return [
        f"data={name}",
        f"data_config.train_file={folder}/{corpus.pattern}",
        f"data_config.validation_file={folder}/{corpus.held_out}",
        "data_config.on_test_overlap=drop",
    ]

"""The shipped sample: its size, its notices, and that nothing held out is trained on."""

from __future__ import annotations

import functools
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import AutoConfig, AutoTokenizer

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHARDS = sorted((EXAMPLES / "webdocs").glob("*.jsonl.gz"))
HELD_OUT = EXAMPLES / "webdocs" / "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"


@functools.cache
def documents(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as shard:
        return [json.loads(line) for line in shard]


def test_the_examples_are_small_and_have_all_license_notices() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.rglob("*") if path.is_file()) < 5_000_000
    notices = sorted(path.name for path in (EXAMPLES / "webdocs" / "licenses").iterdir())
    assert notices == [
        "boost-BSL-1.0.txt",
        "pandas-BSD-3-Clause.txt",
        "postgresql-PostgreSQL.txt",
        "python-PSF-2.0.txt",
        "scipy-BSD-3-Clause.txt",
    ]
    raw = EXAMPLES / "rawpages"
    assert sum(path.stat().st_size for path in raw.glob("*.gz")) < 300_000
    assert sorted(path.name for path in (raw / "licenses").iterdir()) == [
        "django-BSD-3-Clause.txt",
        "httpd-Apache-2.0.txt",
        "httpd-NOTICE.txt",
        "pandas-BSD-3-Clause.txt",
        "postgresql-PostgreSQL.txt",
        "python-PSF-2.0.txt",
    ]


def test_the_contents_match_the_readme() -> None:
    counts = [len(documents(path)) for path in SHARDS]
    assert counts == [59, 160, 162, 163, 172, 176, 161]
    assert Counter(urlsplit(document["url"]).netloc for document in documents(HELD_OUT)) == {
        "docs.python.org": 11,
        "docs.scipy.org": 12,
        "pandas.pydata.org": 12,
        "www.boost.org": 12,
        "www.postgresql.org": 12,
    }
    with_entities = [
        path.name[-12:-9] for path in SHARDS if "metadata_entity" in documents(path)[0]
    ]
    assert with_entities == ["000", "001", "002", "003", "004", "005"]


def test_documents_are_distinct_and_not_both_held_out_and_trained_on() -> None:
    everything = [document for path in SHARDS for document in documents(path)]
    for key in ("url", "text"):
        assert len({document[key] for document in everything}) == len(everything) == 1053


def test_shards_are_written_without_a_time() -> None:
    assert {path.read_bytes()[4:8] for path in SHARDS} == {b"\0\0\0\0"}


def test_tokenizer_and_model_have_the_same_vocabulary() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "tokenizer")
    shape = AutoConfig.from_pretrained(EXAMPLES / "model" / "config.json")
    assert len(tokenizer) == shape.vocab_size == 4096
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 0, 0)
    assert (shape.bos_token_id, shape.eos_token_id) == (0, 0)
    text = "naïve 東京 — 3.14159\t\n  <b>x</b>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text

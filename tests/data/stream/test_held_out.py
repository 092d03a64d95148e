"""The held-out documents stay out, by name and by content."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.cache import Cache
from bsmeta.data.stream.held_out import CACHE_KIND, HeldOutFingerprints
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.document import Document
from tests.data.helpers import (
    batches,
    page,
    pages,
    run,
    small_config,
    write_shard,
)


def document(text: str, **columns: object) -> Document:
    line = json.dumps({"text": text, **columns}).encode()
    return DocumentDecoder(MetadataConfig(metadata_list=["title"])).decode(line)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training shards, the held-out file, and a copy of a part of it under another name."""
    write_shard(tmp_path / "a.jsonl.gz", pages(20))
    write_shard(tmp_path / "b.jsonl.gz", pages(20, first=100))
    write_shard(tmp_path / "test.jsonl.gz", pages(10, first=200))
    write_shard(tmp_path / "c.jsonl.gz", pages(5, first=300) + pages(4, first=203))
    return tmp_path


def config(folder: Path, **changes: object) -> DataConfig:
    values = {"num_streams": 1, "window_documents": 100, "packing": "pad"}
    held_out = {"validation_file": f"{folder}/test.jsonl.gz", "cache_dir": f"{folder}/cache"}
    return small_config(folder, **(values | held_out | changes))


def test_a_copy_of_a_held_out_document_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError) as error:
        batches(config(folder), 200)
    message = str(error.value)
    assert f"{folder}/c.jsonl.gz, line 6: the document has the text of one in" in message
    assert "data_config.on_test_overlap=drop" in message


def test_a_shard_with_held_out_documents_can_be_excluded(folder: Path) -> None:
    assert batches(config(folder, exclude=["c.*"]), 100)


def test_held_out_documents_can_be_dropped_and_are_counted(folder: Path) -> None:
    steps = batches(config(folder, on_test_overlap="drop", max_bad_documents=0), 200)
    epoch = [step for step in steps if step.states[0]["epoch"] == 0]
    names = {name for step in steps for name in step.documents}
    assert not names & {f"c.jsonl.gz:{number}" for number in range(5, 9)}
    assert "c.jsonl.gz:4" in names
    assert sum(sequence.counts["test_overlap"] for sequence in epoch) == 4


def test_another_text_with_a_held_out_url_is_an_error(folder: Path) -> None:
    document = page(500, 9) | {"url": "https://example.org/201"}
    write_shard(folder / "c.jsonl.gz", [document])
    with pytest.raises(DataError, match=r"c\.jsonl\.gz, line 1: the document has the url of one"):
        batches(config(folder), 200)


def test_fingerprints_are_cached_and_rebuilt_for_a_changed_file(folder: Path) -> None:
    path, cache = folder / "test.jsonl.gz", Cache(f"{folder}/cache")
    first = HeldOutFingerprints.load(str(path), cache)
    assert first.find_overlap(document(page(200, 1)["text"])) == "text"
    assert first.find_overlap(document("new", url="https://example.org/200")) == "url"
    assert first.find_overlap(document("https://example.org/200")) == ""
    write_shard(path, pages(3, first=700))
    now = HeldOutFingerprints.load(str(path), cache)
    assert now.find_overlap(document("new", url="https://example.org/200")) == ""


def test_a_cache_folder_that_cannot_be_written_is_only_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cache").write_text("a file in its place")
    documents = HeldOutFingerprints.load(f"{folder}/test.jsonl.gz", Cache(f"{folder}/cache"))
    assert documents.find_overlap(document(page(200, 1)["text"])) == "text"
    assert "are not kept" in caplog.text


def test_damaged_fingerprints_are_rebuilt(folder: Path) -> None:
    path, cache = f"{folder}/test.jsonl.gz", Cache(f"{folder}/cache")
    HeldOutFingerprints.load(path, cache)
    (kept,) = (folder / "cache").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    assert (
        HeldOutFingerprints.load(path, cache).find_overlap(document(page(200, 1)["text"])) == "text"
    )
    assert cache.load(path, CACHE_KIND)


@pytest.mark.parametrize("bad_documents", ["strict", "skip"])
def test_a_held_out_line_that_cannot_be_read_is_refused(folder: Path, bad_documents: str) -> None:
    """Otherwise the run would train on the page of that line."""
    path = folder / "test.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": 3}\n\n\xff\n{"url": "https://a.org"}\n[]\n')
    settings = config(folder, validation_file=str(path), bad_documents=bad_documents)
    with pytest.raises(DataError) as error:
        batches(settings, 1)
    message = str(error.value)
    assert f"{path} cannot be kept out of training: line 2: text_not_string" in message
    assert ", line 4: not_json" in message
    assert ", line 5: missing_text" in message
    assert ", and 1 more; expected a whole file" in message


def test_held_out_documents_with_invalid_records_are_kept_out(folder: Path) -> None:
    path = folder / "test.jsonl"
    lines = [
        {"text": "no records", "url": 1},
        {"text": "one", "url": "https://a.org/1", "metadata": [{"value": "no key"}]},
        {"text": "two", "metadata": 3, "metadata_url": [{"value": "https://a.org/2"}]},
        {"text": "good"},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n \n")  # blank lines hold no page
    documents = HeldOutFingerprints.load(str(path), Cache(f"{folder}/cache"))
    texts = ["no records", "one", "two", "good"]
    assert [documents.find_overlap(document(text)) for text in texts] == ["text"] * 4
    urls = ["https://a.org/1", "https://a.org/2"]
    assert [documents.find_overlap(document("new", url=url)) for url in urls] == ["url"] * 2


@pytest.mark.parametrize("path_type", ["a folder", "not a regular file"])
def test_a_held_out_path_that_is_not_a_regular_file_is_refused(
    folder: Path, path_type: str
) -> None:
    path = folder / "other"
    path.mkdir() if path_type == "a folder" else os.mkfifo(path)
    with pytest.raises(DataError, match=f"validation_file: {path} is {path_type}; expected a file"):
        batches(config(folder, validation_file=str(path)), 1)


WHOLE = b"".join(b'{"text": "document %d"}\n' % number for number in range(3000))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("test.jsonl.gz", gzip.compress(WHOLE)[:5000], r"line \d+: the file ends in the middle"),
        ("test.jsonl.gz", WHOLE, "line 1: the file is not compressed with gzip"),
        ("test.jsonl.gz", b"", "line 1: the file is empty"),
        ("test.jsonl.gz", gzip.compress(b""), "no text in it"),
        ("test.jsonl", b"", "no text in it"),
        ("test.jsonl", b'{"text": ""}\n', "no text in it"),
    ],
)
@pytest.mark.parametrize("bad_documents", ["strict", "skip"])
def test_a_held_out_file_that_cannot_be_read_to_its_end_is_refused(
    folder: Path, name: str, content: bytes, reason: str, bad_documents: str
) -> None:
    """Every time: nothing of it is cached."""
    (folder / name).write_bytes(content)
    settings = config(folder, validation_file=f"{folder}/{name}", bad_documents=bad_documents)
    for _ in range(2):
        with pytest.raises(DataError, match=f"validation_file: \\S+ cannot be kept out .*{reason}"):
            batches(settings, 1)
    assert not list((folder / "cache").glob("*.npz"))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a/b?q=1",
        "http://example.org/a/b?q=1",
        "//example.org/a/b?q=1",
        "example.org/a/b?q=1",
        "HTTPS://Example.ORG:443/a/b?q=1",
        "http://example.org:80/a/b/?q=1#part",
        " https://example.org/a/%62?q=1# ",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        lambda url: {"url": url},
        lambda url: {"metadata_url": [{"key": "url", "type": "global", "value": url}]},
        lambda url: {"url": "https://other.org", "metadata_url": [{"value": url}]},
        lambda url: {"metadata": [{"key": "url", "type": "global", "value": url}]},
    ],
)
def test_equivalent_forms_of_a_held_out_url_are_recognized(
    folder: Path, url: str, form: Callable[[str], dict[str, object]]
) -> None:
    path = folder / "test.jsonl"
    path.write_text(json.dumps({"text": "held out", **form("https://example.org/a/b/?q=1")}))
    documents = HeldOutFingerprints.load(str(path), Cache(f"{folder}/cache"))
    assert documents.find_overlap(document("a", **form(url))) == "url"
    assert documents.find_overlap(document("a", url=url)) == "url"
    line = json.dumps({"text": "a", **form(url)}).encode()
    asked_for = DocumentDecoder(MetadataConfig(metadata_list=["url"])).decode(line)
    assert documents.find_overlap(asked_for) == "url"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://",
        "https://example.org/a/B?q=1",
        "https://example.org/a/b?q=2",
        "https://example.org/a/b",
        "https://example.org:8080/a/b?q=1",
        "ftp://example.org/a/b?q=1",
    ],
)
def test_urls_of_other_pages_are_not_held_out(folder: Path, url: str) -> None:
    path = folder / "test.jsonl"
    lines = [{"text": "x", "url": "https://example.org/a/b?q=1"}, {"text": "y", "url": ""}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    documents = HeldOutFingerprints.load(str(path), Cache(f"{folder}/cache"))
    assert documents.find_overlap(document("a", url=url)) == ""


@pytest.mark.parametrize("column", ["https://example.org", {"value": 1}, [1], None])
def test_an_unused_url_column_may_hold_any_value(folder: Path, column: object) -> None:
    documents = HeldOutFingerprints.load(f"{folder}/test.jsonl.gz", Cache(f"{folder}/cache"))
    assert documents.find_overlap(document("a", metadata_url=column)) == ""


def test_a_resume_with_another_held_out_file_or_policy_is_refused(folder: Path) -> None:
    """Held-out documents determine the training data."""
    first = run(config(folder, exclude=["c.*"], on_test_overlap="drop"), 1, batch=2)
    write_shard(folder / "test.jsonl.gz", pages(3, first=700))
    changed = config(folder, exclude=["c.*"], on_test_overlap="error")
    with pytest.raises(ConfigurationError) as error:
        run(changed, 1, batch=2, state=first.state)
    changes = re.findall(r"^  (\S+): (\S+) in the checkpoint, (\S+) now$", str(error.value), re.M)
    assert changes == [
        ("held_out", ANY, ANY),
        ("on_test_overlap", "drop", "error"),
    ]


def test_a_missing_held_out_file_is_refused(folder: Path) -> None:
    """Otherwise the documents of a misspelled file would be trained on."""
    with pytest.raises(DataError, match=r"gone/test.jsonl.gz does not exist .* be kept out"):
        batches(config(folder, validation_file="gone/test.jsonl.gz", exclude=["c.*"]), 2)


def test_cached_fingerprints_depend_on_the_columns(tmp_path: Path) -> None:
    """Other columns of the same file hold other texts and URLs."""
    rows = [{"body": "a body", "title": "a title", "meta": {"link": "https://a.example/b"}}]
    path = str(write_shard(tmp_path / "test.jsonl.gz", rows))
    cache = Cache(str(tmp_path / "cache"))
    bodies = HeldOutFingerprints.load(path, cache, {"text": "body", "url": "meta.link"})
    titles = HeldOutFingerprints.load(path, cache, {"text": "title"})
    again = HeldOutFingerprints.load(path, cache, {"text": "body", "url": "meta.link"})

    def overlaps(text: str, url: str | None) -> list[str]:
        return [
            fingerprints.find_overlap(Document(text, url, {}))
            for fingerprints in (bodies, titles, again)
        ]

    assert overlaps("a body", None) == ["text", "", "text"]
    assert overlaps("a title", None) == ["", "text", ""]
    assert overlaps("else", "http://a.example/b/") == ["url", "", "url"]

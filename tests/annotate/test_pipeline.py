"""From input files to shards: the same bytes always, nothing twice, nothing lost silently."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bsmeta.annotate.shard import ShardFiles, read_journal
from bsmeta.core import files, progress
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.shard_lines import first_lines
from tests.annotate.helpers import WORDS, annotate, rows, some_pages, write_pages

CUSTOM = "tests.annotate.custom"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Two files of pages."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, count in (("a", 30), ("b", 9)):
        write_pages(folder / f"{name}.jsonl.gz", some_pages(count))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.gz"))}


def test_rows(pages: Path, tmp_path: Path) -> None:
    assert annotate(str(pages), tmp_path / "out") == 0
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "_annotation", "a.jsonl.gz", "b.jsonl.gz",
    ]  # fmt: skip
    made = rows(tmp_path / "out" / "a.jsonl.gz")
    assert [row["url"] for row in made] == [page["url"] for page in some_pages(30)]
    assert list(made[0]) == [
        "text", "url", "c4_timestamp", "metadata_html", "html_head", "html_footer", "html_title",
        "metadata_url", "metadata_title", "annotation_errors",
    ]  # fmt: skip
    assert made[0]["c4_timestamp"] == "2019-04-05T00:00:00Z"
    assert made[3]["metadata_title"] == [{"key": "title", "type": "global", "value": "Page 3"}]
    assert made[0]["annotation_errors"] == {}


def test_the_same_bytes_for_any_number_of_workers(pages: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        annotate(str(pages), tmp_path / str(workers), workers=workers, chunk_pages=4)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")


def test_a_chunk_ends_at_its_pages_or_its_bytes(tmp_path: Path) -> None:
    lines = [{"url": "https://a.org/", "html": "word " * 200} for _ in range(9)]
    path = str(write_pages(tmp_path / "a.jsonl.gz", lines))
    annotate(path, tmp_path / "pages", chunk_pages=4)
    annotate(path, tmp_path / "bytes", chunk_mb=0.0015)
    for folder, expected in (("pages", [4, 4, 1]), ("bytes", [2, 2, 2, 2, 1])):
        journal = read_journal(ShardFiles(tmp_path / folder, "a").journal)
        assert journal is not None
        assert [entry.counts.pages for entry in journal.entries] == expected


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many pages the annotator `Words` has seen since the last call."""
    log = tmp_path / "seen"
    monkeypatch.setenv("WORDS_LOG", str(log))

    def count() -> int:
        found = log.read_text().count("\n") if log.exists() else 0
        log.unlink(missing_ok=True)
        return found

    return count


def test_what_is_complete_is_not_made_again(
    pages: Path, tmp_path: Path, seen: Callable[[], int]
) -> None:
    def run(*more: str, **settings: Any) -> int:
        annotate(
            str(pages), tmp_path / "out", annotators=["url", f"{CUSTOM}.Words", *more], **settings
        )
        return seen()

    assert run() == 39
    first = contents(tmp_path / "out")
    assert run() == 0
    assert run(workers=2, chunk_pages=3, page_seconds=9) == 0  # they do not shape the rows
    assert contents(tmp_path / "out") == first
    # A changed input is noticed, even if size and time are the same.
    path = pages / "b.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"Page", b"Leaf")))
    assert run() == 9
    assert rows(tmp_path / "out" / "b.jsonl.gz")[0]["text"].startswith("Leaf 0")
    # So is another text: all is made again.
    assert run(profile="all") == 39
    # A damaged or a missing shard is made again.
    (tmp_path / "out" / "b.jsonl.gz").write_bytes(b"")
    assert run(profile="all") == 9
    (tmp_path / "out" / "b.jsonl.gz").unlink()
    assert run(profile="all") == 9


def test_only_what_has_changed_is_made_again(
    pages: Path, tmp_path: Path, seen: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.annotate.custom import Words

    names = ["url", "title", f"{CUSTOM}.Words"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    assert seen() == 39
    # One more annotator: the others keep their columns.
    annotate(str(pages), tmp_path / "out", annotators=[*names, "length"])
    assert seen() == 0
    # The result is that of making all at once.
    annotate(str(pages), tmp_path / "fresh", annotators=[*names, "length"])
    assert seen() == 39
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    # A new version.
    monkeypatch.setattr(Words, "version", 2)
    annotate(str(pages), tmp_path / "out", annotators=[*names, "length"], only=["title"])
    assert seen() == 0
    annotate(str(pages), tmp_path / "out", annotators=[*names, "length"])
    assert seen() == 39
    # On request.
    annotate(str(pages), tmp_path / "out", annotators=[*names, "length"], replace=["words"])
    assert seen() == 39
    annotate(str(pages), tmp_path / "out", annotators=[*names, "length"], replace=["title"])
    assert seen() == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    # An annotator that is no longer named leaves its columns.
    annotate(str(pages), tmp_path / "out", annotators=["url"], replace=["url"])
    for name in ("a", "b"):
        out, fresh = (rows(tmp_path / one / f"{name}.jsonl.gz") for one in ("out", "fresh"))
        assert out == fresh


def test_settings_of_an_annotator_count_for_it_alone(
    pages: Path, tmp_path: Path, seen: Callable[[], int]
) -> None:
    names = ["paragraph", f"{CUSTOM}.Words"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    seen()
    annotate(str(pages), tmp_path / "out", annotators=names, paragraph_values=True)
    assert seen() == 0
    row = rows(tmp_path / "out" / "b.jsonl.gz")[0]
    assert row["metadata_paragraph"][0]["value"] == row["text"]


def test_an_annotator_is_made_again_with_the_one_that_it_needs(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.annotate.custom import Words

    names = [f"{CUSTOM}.ManyWords", f"{CUSTOM}.Words"]  # in the wrong order
    annotate(str(pages), tmp_path / "out", annotators=names)
    made = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert made == ["False"] * 3 + ["True"] * 4 + ["False"] * 2
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "99"}]})
    monkeypatch.setattr(Words, "version", 2)
    annotate(str(pages), tmp_path / "out", annotators=names)
    made = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert made == ["True"] * 9
    # Also if the version is the same, and the other one is named in `replace`.
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "9"}]})
    annotate(str(pages), tmp_path / "out", annotators=names, replace=["words"])
    made = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert made == ["False"] * 9


def test_columns_made_from_old_ones_are_made_again_with_these(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.annotate.custom import ManyWords, Words

    names = [f"{CUSTOM}.Words", f"{CUSTOM}.ManyWords"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "99"}]})
    monkeypatch.setattr(Words, "version", 2)
    monkeypatch.setattr(ManyWords, "version", 2)
    annotate(str(pages), tmp_path / "out", annotators=names, only=["many_words"])
    made = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert made == ["False"] * 3 + ["True"] * 4 + ["False"] * 2
    annotate(str(pages), tmp_path / "out", annotators=names)
    made = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert made == ["True"] * 9


def test_shards_that_have_text_keep_it_and_their_columns(pages: Path, tmp_path: Path) -> None:
    annotate(str(pages), tmp_path / "first", annotators=["html", "url", "title"])
    names = ["title", "html", "length", "paragraph"]
    annotate(str(tmp_path / "first"), tmp_path / "second", annotators=names)
    for name in ("a", "b"):
        old, new = (rows(tmp_path / folder / f"{name}.jsonl.gz") for folder in ("first", "second"))
        for before, after in zip(old, new, strict=True):
            assert {key: after[key] for key in before if key != "annotation_errors"} == {
                key: before[key] for key in before if key != "annotation_errors"
            }
            assert after["annotation_errors"] == {"html": "no_html"}
            assert after["metadata_generation_length_text"][0]["value"] == str(len(after["text"]))
            assert after["metadata_paragraph"][0]["marker"] == "p"


def test_a_column_of_another_form_counts_no_records(tmp_path: Path) -> None:
    """As `metadata_html` of another program, where its own page has no HTML."""
    line = {**some_pages(1)[0], "text": "A page.", "metadata_html": "", "metadata_title": "A"}
    del line["html"]
    pages = tmp_path / "pages.jsonl"
    pages.write_text(json.dumps(line) + "\n")
    assert annotate(str(pages), tmp_path / "out", annotators=["title", "html"]) == 0
    (shard,) = (tmp_path / "out").glob("*.jsonl.gz")
    assert len(rows(shard)) == 1


def test_faulty_pages_are_counted_and_harm_no_other(tmp_path: Path) -> None:
    pages = some_pages(40)
    faults = {
        3: "refuse",
        7: "raise",
        11: "hang",
        15: "crash",
        16: "crash",
        20: "swell",
        30: "object",
    }
    faults |= {31: "nothing", 32: "surrogate"}
    for number, fault in faults.items():
        pages[number]["url"] += f"#{fault}"
    pages[25]["html"] = "<p>"
    pages[26] = {"url": "https://www.example.org/none"}
    write_pages(tmp_path / "a.jsonl.gz", pages)
    for workers in (1, 2):
        annotate(
            str(tmp_path / "a.jsonl.gz"),
            tmp_path / str(workers),
            annotators=["url", f"{CUSTOM}.Faulty", "title"],
            workers=workers,
            chunk_pages=10,
            page_seconds=10,  # the page that hangs takes longer, and no other
        )
    made = rows(tmp_path / "1/a.jsonl.gz")
    kept = [page for number, page in enumerate(pages) if number not in (25, 26)]
    assert [row["url"] for row in made] == [page["url"] for page in kept]
    errors = {
        row["url"].rpartition("#")[2]: row["annotation_errors"]
        for row in made
        if row["annotation_errors"]
    }
    assert errors == {
        "refuse": {"faulty": "refused"},
        "raise": {"faulty": "error_KeyError"},
        "hang": {"faulty": "time_limit"},
        "crash": {"faulty": "worker_died"},
        "swell": {"faulty": "memory"},
        "object": {"faulty": "error_TypeError"},
        "nothing": {"faulty": "error_AttributeError"},
        "surrogate": {"faulty": "error_UnicodeEncodeError"},
    }
    assert all(row["metadata_url"] and row["metadata_title"] for row in made)
    assert sum(not row["metadata_faulty"] for row in made) == 9
    journal = read_journal(ShardFiles(tmp_path / "1", "a").journal)
    assert journal is not None
    counts = journal.counts()
    assert (counts.pages, counts.rows) == (40, 38)
    assert counts.dropped == {"no_text": 1, "no_html": 1}
    assert counts.errors == {
        "faulty": {
            "refused": 1,
            "error_KeyError": 1,
            "time_limit": 1,
            "worker_died": 2,
            "memory": 1,
            "error_TypeError": 1,
            "error_AttributeError": 1,
            "error_UnicodeEncodeError": 1,
        }
    }
    assert counts.present == {"url": 38, "title": 38, "faulty": 29}
    assert [entry.dropped for entry in journal.entries] == [
        [], [],
        [(5, "no_text", pages[25]["url"]), (6, "no_html", "https://www.example.org/none")], [],
    ]  # fmt: skip
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_damaged_file_leaves_the_others_whole(pages: Path, tmp_path: Path) -> None:
    whole = (pages / "a.jsonl.gz").read_bytes()
    (pages / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: damaged after \d+ records"):
        annotate(str(pages), tmp_path / "out", chunk_pages=2)
    assert list(contents(tmp_path / "out")) == ["b.jsonl.gz"]
    (pages / "a.jsonl.gz").write_bytes(whole)
    annotate(str(pages), tmp_path / "out")
    annotate(str(pages), tmp_path / "fresh")
    assert rows(tmp_path / "out/a.jsonl.gz") == rows(tmp_path / "fresh/a.jsonl.gz")


def test_a_disk_that_is_too_small_is_noticed_before_the_start(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigurationError, match="are needed for 2 shards: free"):
        annotate(str(pages), tmp_path / "out")
    assert not contents(tmp_path / "out")
    annotate(str(pages), tmp_path / "out", check_disk=False)
    annotate(str(pages), tmp_path / "out")  # nothing is left to be written


def test_progress_is_printed_where_there_is_no_terminal(
    pages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    settings = {"annotators": ["url", "entity"], "disambiguation": str(tmp_path / "sets")}
    annotate(str(pages / "b.jsonl.gz"), tmp_path / "out", report=True, **settings)
    output = capsys.readouterr()
    lines = [re.sub(r"[\d,]+(/s| s\b)", r"N\1", line) for line in output.err.splitlines()]
    assert lines == [
        "reading input 100%, N s, N s left",
        "reading titles 100%, 9 pages, N/s, N s, N s left",
        "annotating 100%, 9 pages, N/s, N s, N s left",
        "annotating 100%, 9 pages, N/s, N s, N s left",  # the end of the file
        "writing sets 100%, 9 pages, N/s, N s, N s left",
    ]
    assert "9 pages, 9 rows in 1 shard (" in output.out
    assert "profiles.jsonl (9 lines), train.jsonl (0 lines)" in output.out


def test_two_runs_do_not_write_one_shard(pages: Path, tmp_path: Path) -> None:
    files = ShardFiles(tmp_path / "out", "a")
    files.lock.parent.mkdir(parents=True)
    with FileLock(files.lock), pytest.raises(ConfigurationError, match="written by another"):
        annotate(str(pages), tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"annotators": ["titel"]}, r"there is no titel \(did you mean title\?\)"),
        ({"annotators": ["no.such.Class"]}, r"no\.such\.Class cannot be imported"),
        ({"annotators": ["json.JSONDecoder"]}, "is no class derived from"),
        ({"annotators": [f"{CUSTOM}.WithoutColumns"]}, "is no class .* with name, columns and"),
        (
            {"annotators": ["entity_paragraph"]},
            "needs metadata_entity: add entity",
        ),
        ({"annotators": [f"{CUSTOM}.ManyWords"]}, "needs metadata_words: add an annotator that"),
        ({"replace": ["entity"]}, r"replace: found entity .*expected some of `annotators`"),
        ({"descriptions": "/none.tsv"}, "descriptions=/none.tsv cannot be read"),
        ({"input": None}, "input is not set"),
        ({"input": "/none/*.warc.gz"}, r"input: /none/\*.warc.gz leads to no such file"),
        ({"output": None}, "output is not set"),
    ],
)
def test_wrong_settings(
    settings: dict[str, Any], message: str, pages: Path, tmp_path: Path
) -> None:
    if "descriptions" in settings:
        settings = settings | {"annotators": ["website_description"]}
    given = {"input": str(pages), "output": str(tmp_path / "out")} | settings
    from bsmeta.annotate.command import main
    from bsmeta.annotate.config import AnnotateConfig

    with pytest.raises((ConfigurationError, DataError), match=message):
        main(AnnotateConfig(**given))


def test_names_of_shards(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write_pages(tmp_path / "in" / folder / "a.jsonl.gz", some_pages(2))
    annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert list(contents(tmp_path / "out")) == ["x_a.jsonl.gz", "y_a.jsonl.gz"]


def test_a_shard_is_not_made_again_under_another_name(tmp_path: Path) -> None:
    for folder, count in (("x", 2), ("y", 3)):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write_pages(tmp_path / "in" / folder / "a.jsonl.gz", some_pages(count))
    annotate(str(tmp_path / "in/x"), tmp_path / "out")
    before = contents(tmp_path / "out")
    message = "a.jsonl.gz has the pages of the input file whose shard is now named x_a.jsonl.gz"
    with pytest.raises(ConfigurationError, match=message):
        annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert contents(tmp_path / "out") == before
    (tmp_path / "out/a.jsonl.gz").unlink()
    annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert list(contents(tmp_path / "out")) == ["x_a.jsonl.gz", "y_a.jsonl.gz"]


def test_files_of_equal_pages_have_a_shard_each(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        write_pages(tmp_path / "in" / f"{name}.jsonl.gz", some_pages(2))
    annotate(str(tmp_path / "in/*.gz"), tmp_path / "out")
    before = contents(tmp_path / "out")
    annotate(str(tmp_path / "in/a.jsonl.gz"), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_a_page_of_the_wrong_text_is_not_annotated_by_its_html(tmp_path: Path) -> None:
    """Offsets into the page's text would be wrong in another text."""
    html = f"<title>T</title><p>{WORDS}"
    lines = [{"url": "a", "html": html, "text": text} for text in (WORDS.strip(), "other")]
    write_pages(tmp_path / "a.jsonl.gz", lines)
    annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out")
    same, other = rows(tmp_path / "out/a.jsonl.gz")
    assert same["annotation_errors"] == {}
    assert other["annotation_errors"] == {"html": "other_text", "title": "other_text"}
    assert (other["text"], other["html"], other["metadata_html"]) == ("other", html, [])
    assert json.dumps(same["metadata_title"]).count("T") == 1


def test_pages_are_not_parsed_for_annotators_that_do_not_need_them(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bsmeta.annotate import annotator

    names = ["html", "url", "length"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    monkeypatch.setattr(annotator, "parse_page", None)
    annotate(str(pages), tmp_path / "out", annotators=names, replace=["length", "url"])
    assert contents(tmp_path / "out").keys() == {"a.jsonl.gz", "b.jsonl.gz"}
    assert all(made["annotation_errors"] == {} for made in rows(tmp_path / "out/a.jsonl.gz"))


def test_a_file_without_usable_pages_becomes_a_shard_without_rows(tmp_path: Path) -> None:
    write_pages(tmp_path / "a.jsonl.gz", [{"url": "https://a.org/", "html": "<p>"}])
    write_pages(tmp_path / "b.jsonl.gz", [])
    for _ in range(2):
        annotate([str(tmp_path / "a.jsonl.gz"), str(tmp_path / "b.jsonl.gz")], tmp_path / "out")
        for name in ("a", "b"):
            assert rows(tmp_path / "out" / f"{name}.jsonl.gz") == []
            assert ShardFiles(tmp_path / "out", name).complete() is not None
    assert len(first_lines(str(tmp_path / "out/a.jsonl.gz"), 1)) == 0
    assert not list((tmp_path / "out").rglob("*.part"))

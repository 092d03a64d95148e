"""What a repeated command makes again, and what it may not do to the shards that are there."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.annotate import annotator, plan
from bsmeta.annotate.html.page import Page, PageError, parse_page
from bsmeta.annotate.shard import FOLDER, ShardFiles
from bsmeta.core import files
from bsmeta.core.errors import ConfigurationError
from tests.annotate.conftest import CUSTOM, read_shards
from tests.annotate.helpers import RAWPAGES, annotate, rows, some_pages, write_pages
from tests.warm import REPOSITORY

NAMES = ["html", "url", "title", "length", "paragraph"]
SHARD = "raw-000.jsonl.gz"


@pytest.fixture(scope="module")
def annotated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with real pages, and their shard with all columns."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "pages").mkdir()
    shutil.copy(RAWPAGES / SHARD, folder / "pages")
    assert run(folder) == 0
    return folder


@pytest.fixture
def folder(annotated_folder: Path, tmp_path: Path) -> Path:
    """A copy of the annotated folder."""
    shutil.copytree(annotated_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def run(folder: Path, **settings: Any) -> int:
    return annotate(str(folder / "pages"), folder / "out", **{"annotators": NAMES} | settings)


def contents(folder: Path) -> dict[str, bytes]:
    """Returns all files of the output except locks, by path."""
    files = (folder / "out").rglob("*")
    return {
        str(file): file.read_bytes() for file in files if file.is_file() and file.suffix != ".lock"
    }


def change_pages(folder: Path) -> None:
    path = folder / "pages" / SHARD
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[1:])))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"only": ["title"], "profile": "all"}, "made with profile=published, now all"),
        ({"only": ["title"], "page_mb": 1}, r"made with page_mb=8\.0, now 1"),
        ({"annotators": ["title"], "profile": "all"}, "made with profile=published, now all"),
        ({"annotators": ["title"], "replace": ["title"], "page_mb": 9}, "made with page_mb"),
    ],
)
def test_updating_some_columns_under_another_text_is_refused(
    settings: dict[str, Any], message: str, folder: Path
) -> None:
    before = contents(folder)
    with pytest.raises(ConfigurationError, match=message) as error:
        run(folder, **settings)
    assert f"{SHARD}: made with" in str(error.value)
    assert "would lose html, url, length, paragraph" in str(error.value)
    assert contents(folder) == before


@pytest.mark.parametrize("settings", [{"only": ["title"]}, {"annotators": ["title", "url"]}])
def test_updating_some_columns_of_other_pages_is_refused(
    settings: dict[str, Any], folder: Path
) -> None:
    change_pages(folder)
    before = contents(folder)
    with pytest.raises(ConfigurationError, match="the input file has other content; would lose"):
        run(folder, **settings)
    assert contents(folder) == before


def test_updating_some_columns_with_another_parser_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = plan.VERSION
    monkeypatch.setattr(plan, "VERSION", version + 1)
    before = contents(folder)
    message = f"made with parser={version}, now {version + 1}; would lose"
    with pytest.raises(ConfigurationError, match=message):
        run(folder, only=["title"])
    assert contents(folder) == before


@pytest.mark.parametrize("settings", [{"only": ["title"]}, {"annotators": ["title"]}])
def test_a_damaged_shard_is_not_replaced_with_only_some_columns(
    settings: dict[str, Any], folder: Path
) -> None:
    path = folder / "out" / SHARD
    path.write_bytes(path.read_bytes()[:-100])
    before = contents(folder)
    with pytest.raises(ConfigurationError, match="it is damaged; would lose html"):
        run(folder, **settings)
    assert contents(folder) == before


def test_a_shard_without_its_journal_is_not_overwritten(folder: Path) -> None:
    shutil.rmtree(folder / "out" / FOLDER)
    before = contents(folder)
    with pytest.raises(ConfigurationError, match=rf"{SHARD}: no journal of this version describes"):
        run(folder)
    assert contents(folder) == before


def test_the_input_is_not_overwritten(folder: Path) -> None:
    before = contents(folder)
    for link in (folder / "out", folder / "link"):
        if link.name == "link":
            os.symlink(folder / "out", link)
        with pytest.raises(ConfigurationError, match=rf"{SHARD}: is the input file itself"):
            annotate(str(folder / "out"), link, annotators=NAMES)
    assert contents(folder) == before


def test_a_message_names_a_few_shards_and_counts_the_others(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for number in range(8):
        write_pages(tmp_path / "pages" / f"{number}.jsonl.gz", some_pages(1))
    run(tmp_path)
    with pytest.raises(ConfigurationError) as error:
        run(tmp_path, only=["title"], profile="all")
    shards = ", ".join(f"{number}.jsonl.gz" for number in range(5))
    assert re.search(rf"^  {shards} and 3 more: made with profile", str(error.value), re.MULTILINE)


@pytest.mark.parametrize(
    "settings", [{"profile": "all"}, {"profile": "all", "only": NAMES}, {"page_mb": 0.05}]
)
def test_all_columns_may_be_rebuilt(settings: dict[str, Any], folder: Path) -> None:
    run(folder, **settings)
    annotate(str(folder / "pages"), folder / "fresh", **{"annotators": NAMES} | settings)
    assert rows(folder / "out" / SHARD) == rows(folder / "fresh" / SHARD)


def test_the_raw_page_is_added_and_then_kept(folder: Path) -> None:
    """No column is rebuilt for it, not even with `only`."""
    without = rows(folder / "out" / SHARD)
    run(folder, only=["title"], keep_html=True)
    kept = rows(folder / "out" / SHARD)
    pages = {page["url"]: page["html"] for page in rows(folder / "pages" / SHARD)}
    assert [row.pop("html") for row in kept] == [pages[row["url"]] for row in without]
    assert kept == without
    before = contents(folder)
    run(folder)
    assert contents(folder) == before
    run(folder, replace=["title"])
    assert all("html" in row for row in rows(folder / "out" / SHARD))


def test_a_page_without_a_row_gets_none_of_some_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it could be parsed now, its other columns would be missing."""

    def fail(html: str, **more: Any) -> Page:
        if "Page 2" in html:
            raise PageError("not_parsed", "no memory is left")
        return parse_page(html, **more)

    (tmp_path / "pages").mkdir()
    write_pages(tmp_path / "pages/a.jsonl.gz", some_pages(4))
    with monkeypatch.context() as patched:
        patched.setattr(annotator, "parse_page", fail)
        run(tmp_path)
    for settings in ({"only": ["title"]}, {}):
        run(tmp_path, replace=["title"], **settings)
        numbers = [row["url"][-6] for row in rows(tmp_path / "out/a.jsonl.gz")]
        assert numbers == ["0", "1", "3"]
        journal = ShardFiles(tmp_path / "out", "a").open_complete()
        assert journal is not None
        url = "https://www.example.org/pages/2.html"
        assert [entry.dropped for entry in journal.entries] == [[(2, "not_parsed", url)]]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns the number of pages that the annotator `Words` has seen since the last call."""
    log = tmp_path / "seen"
    monkeypatch.setenv("WORDS_LOG", str(log))

    def count() -> int:
        found = log.read_text().count("\n") if log.exists() else 0
        log.unlink(missing_ok=True)
        return found

    return count


def test_complete_shards_are_not_rebuilt(
    pages: Path, tmp_path: Path, seen: Callable[[], int]
) -> None:
    def run(*more: str, **settings: Any) -> int:
        annotate(
            str(pages), tmp_path / "out", annotators=["url", f"{CUSTOM}.Words", *more], **settings
        )
        return seen()

    assert run() == 39
    first = read_shards(tmp_path / "out")
    assert run() == 0
    assert run(workers=2, chunk_pages=3, page_seconds=9) == 0  # they do not shape the rows
    assert read_shards(tmp_path / "out") == first
    # A changed input is noticed, even if size and time are the same.
    path = pages / "b.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"Page", b"Leaf")))
    assert run() == 9
    assert rows(tmp_path / "out" / "b.jsonl.gz")[0]["text"].startswith("Leaf 0")
    # With another text, everything is rebuilt.
    assert run(profile="all") == 39
    # A damaged or missing shard is rebuilt.
    (tmp_path / "out" / "b.jsonl.gz").write_bytes(b"")
    assert run(profile="all") == 9
    (tmp_path / "out" / "b.jsonl.gz").unlink()
    assert run(profile="all") == 9


def test_only_changed_columns_are_rebuilt(
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
    assert read_shards(tmp_path / "out") == read_shards(tmp_path / "fresh")
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
    assert read_shards(tmp_path / "out") == read_shards(tmp_path / "fresh")
    # An annotator that is no longer named leaves its columns.
    annotate(str(pages), tmp_path / "out", annotators=["url"], replace=["url"])
    for name in ("a", "b"):
        out, fresh = (rows(tmp_path / folder / f"{name}.jsonl.gz") for folder in ("out", "fresh"))
        assert out == fresh


def test_settings_of_an_annotator_affect_only_that_annotator(
    pages: Path, tmp_path: Path, seen: Callable[[], int]
) -> None:
    names = ["paragraph", f"{CUSTOM}.Words"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    seen()
    annotate(str(pages), tmp_path / "out", annotators=names, paragraph_values=True)
    assert seen() == 0
    row = rows(tmp_path / "out" / "b.jsonl.gz")[0]
    assert row["metadata_paragraph"][0]["value"] == row["text"]


def test_an_annotator_is_rebuilt_with_the_annotator_it_needs(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.annotate.custom import Words

    names = [f"{CUSTOM}.ManyWords", f"{CUSTOM}.Words"]  # in the wrong order
    annotate(str(pages), tmp_path / "out", annotators=names)
    values = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert values == ["False"] * 3 + ["True"] * 4 + ["False"] * 2
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "99"}]})
    monkeypatch.setattr(Words, "version", 2)
    annotate(str(pages), tmp_path / "out", annotators=names)
    values = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert values == ["True"] * 9
    # Also if the version is the same, and the other one is named in `replace`.
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "9"}]})
    annotate(str(pages), tmp_path / "out", annotators=names, replace=["words"])
    values = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert values == ["False"] * 9


def test_columns_made_from_stale_columns_are_rebuilt_with_them(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.annotate.custom import ManyWords, Words

    names = [f"{CUSTOM}.Words", f"{CUSTOM}.ManyWords"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    monkeypatch.setattr(Words, "annotate", lambda *_: {"metadata_words": [{"value": "99"}]})
    monkeypatch.setattr(Words, "version", 2)
    monkeypatch.setattr(ManyWords, "version", 2)
    annotate(str(pages), tmp_path / "out", annotators=names, only=["many_words"])
    values = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert values == ["False"] * 3 + ["True"] * 4 + ["False"] * 2
    annotate(str(pages), tmp_path / "out", annotators=names)
    values = [row["metadata_many_words"][0]["value"] for row in rows(tmp_path / "out/b.jsonl.gz")]
    assert values == ["True"] * 9


def test_a_disk_that_is_too_small_is_refused_before_the_start(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigurationError, match="are needed for 2 shards: free"):
        annotate(str(pages), tmp_path / "out")
    assert not read_shards(tmp_path / "out")
    annotate(str(pages), tmp_path / "out", check_disk=False)
    annotate(str(pages), tmp_path / "out")  # nothing is left to be written


def test_a_shard_is_not_rebuilt_under_another_name(tmp_path: Path) -> None:
    for folder, count in (("x", 2), ("y", 3)):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write_pages(tmp_path / "in" / folder / "a.jsonl.gz", some_pages(count))
    annotate(str(tmp_path / "in/x"), tmp_path / "out")
    before = read_shards(tmp_path / "out")
    message = "a.jsonl.gz has the pages of the input file whose shard is now named x_a.jsonl.gz"
    with pytest.raises(ConfigurationError, match=message):
        annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert read_shards(tmp_path / "out") == before
    (tmp_path / "out/a.jsonl.gz").unlink()
    annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert list(read_shards(tmp_path / "out")) == ["x_a.jsonl.gz", "y_a.jsonl.gz"]


def test_files_of_equal_pages_have_separate_shards(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        write_pages(tmp_path / "in" / f"{name}.jsonl.gz", some_pages(2))
    annotate(str(tmp_path / "in/*.gz"), tmp_path / "out")
    before = read_shards(tmp_path / "out")
    annotate(str(tmp_path / "in/a.jsonl.gz"), tmp_path / "out")
    assert read_shards(tmp_path / "out") == before


def test_every_annotator_has_a_row_in_the_documentation() -> None:
    page = (REPOSITORY / "docs/annotation.md").read_text()
    assert [name for name in plan.ANNOTATORS if f"\n| `{name}` |" not in page] == []

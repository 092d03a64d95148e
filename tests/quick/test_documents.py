"""The pages that are used, without copies of earlier ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.documents import Page, PageSet, drop_copies, list_repeated_types, read_pages
from bsmeta.quick.pages import list_page_files
from tests.quick.pages import make_row, make_text, write_rows


def test_rows_become_pages_and_bad_ones_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_rows(
        file,
        [
            {"body": "A text.", "meta": {"link": "https://A.org:443/x/", "date": "2020-05-01"}},
            {"body": "Another.", "meta": {"link": None, "date": "unknown"}},
            {"body": "", "meta": {}},
            {"body": 3},
        ],
    )
    with file.open("a") as lines:
        lines.write("no JSON\n")
    columns = {"text": "body", "url": "meta.link", "timestamp": "meta.date"}
    page_set = read_pages(list_page_files(str(file), 100), columns)
    assert page_set.pages == [
        Page(
            "A text.",
            {"url": "https://A.org:443/x/", "timestamp": "2020-05-01"},
            "a.org/x",
            "a.org",
        ),
        Page("Another.", {}),
    ]
    assert page_set.left_out == {"no text": 2, "unreadable": 1}
    assert json.loads(page_set.pages[0].encode_line()) == {
        "text": "A text.", "url": "https://A.org:443/x/", "timestamp": "2020-05-01"
    }  # fmt: skip


def test_pages_without_any_text_are_refused(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", [{"text": None}, {"text": " "}])
    with pytest.raises(DataError, match=r"pages: no row of .*a.jsonl has a text in text"):
        read_pages(list_page_files(str(file), 100), {"text": "text"})


def test_exact_and_near_copies_of_earlier_pages_are_dropped(tmp_path: Path) -> None:
    texts = [make_row(number)["text"] for number in range(4)]
    long = " ".join(make_text(number, 100) for number in range(3))
    pages = [*texts, texts[1], long, f"{long} And a last sentence of the footer."]
    page_set = PageSet([Page(text, {}) for text in pages])

    kept = drop_copies(page_set, tmp_path, near=True)
    assert [page.text for page in kept.pages] == [*texts, long]
    assert kept.left_out == {
        "the text of an earlier page": 1,
        "nearly the text of an earlier page": 1,
    }

    kept = drop_copies(page_set, tmp_path / "none", near=False)
    assert [page.text for page in kept.pages] == [*texts, *pages[5:]]
    assert not (tmp_path / "none").exists()


def test_without_the_extra_near_copies_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)  # as if it were not installed
    for module in ("bsmeta.annotate.duplicates.search", "bsmeta.annotate.duplicates.signatures"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    page_set = PageSet([Page("a", {}), Page("b", {}), Page("a", {})])

    kept = drop_copies(page_set, tmp_path, near=None)
    assert [page.text for page in kept.pages] == ["a", "b"]
    assert kept.notes == [
        "Near copies of a page were not looked for: import of datasketch halted; None in "
        "sys.modules, which is installed by: pip install 'bsmeta[annotate]'."
    ]
    with pytest.raises(ConfigurationError, match=r"near_copies=true: .*pip install 'bsmeta"):
        drop_copies(page_set, tmp_path, near=True)


def test_values_that_occur_in_the_text_are_named() -> None:
    pages = [
        Page(f"The  \xa0Title {number}\nand more", {"title": f"the title {number}", "url": "a.org"})
        for number in range(4)
    ]
    assert list_repeated_types(pages, ["url", "title"]) == ["title"]
    assert list_repeated_types(pages, ["url"]) == []
    assert list_repeated_types([*pages, *[Page("other", {"title": "x"})] * 5], ["title"]) == []

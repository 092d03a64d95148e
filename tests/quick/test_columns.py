"""Which columns are the text and the metadata, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.quick.columns import (
    ColumnChoice,
    find_columns,
    list_types,
    make_column_table,
    map_choices,
    read_value,
)
from tests.quick.pages import make_row, make_text

ROWS = [make_row(number) for number in range(20)]


def choose(extra: dict[str, Any], **settings: Any) -> dict[str, ColumnChoice]:
    """Returns the choices for rows with further columns; a list has a value for each row."""
    rows = []
    for number, row in enumerate(ROWS):
        values = {
            name: value[number] if isinstance(value, list) else value
            for name, value in extra.items()
        }
        rows.append({**row, **values})
    choices = find_columns(rows, settings.pop("requested", {}), settings.pop("types", None))
    return {choice.path: choice for choice in choices}


def test_columns_are_recognized_by_their_names_and_values() -> None:
    choices = find_columns(ROWS, {})
    assert map_choices(choices) == {
        "text": "text", "url": "url", "title": "title", "timestamp": "date"
    }  # fmt: skip
    assert choices[0] == ColumnChoice(
        "text", "text", 20, "its name, and long texts", ROWS[0]["text"]
    )
    assert choices[3] == ColumnChoice(
        "date", "timestamp", 20, "its name, and its values fit", "2000-03-01"
    )


def test_published_columns_of_records_are_recognized() -> None:
    def records(key: str, values: list[str]) -> list[Any]:
        return [[{"key": key, "type": "global", "value": value}] for value in values]

    tags = [[{"key": "html", "type": "local", "value": "b", "char_start_idx": 0}]] * 20
    choices = choose(
        {
            "metadata_url": records("url", [f"https://a.org/{k}" for k in range(20)]),
            "metadata_website_desc": records("website_description", [f"d{k}" for k in range(20)]),
            "metadata_generation_datasource": records("datasource", [f"s{k}" for k in range(20)]),
            "metadata_generation_length_text": records("length", [str(k) for k in range(20)]),
            "metadata_html": tags,
        }
    )
    assert choices["metadata_url"].reason == "url is taken as url"
    assert choices["metadata_website_desc"].taken_as == "website_description"
    assert choices["metadata_website_desc"].example == "d0"
    assert choices["metadata_generation_datasource"].taken_as == "datasource"
    assert choices["metadata_generation_length_text"].reason == (
        "counts the text itself; columns.length=metadata_generation_length_text takes it"
    )
    assert choices["metadata_html"].reason == ("about places in the text; bsmeta train takes it")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("url", [f"page {k}" for k in range(20)],
         "not taken as url: no web address (20 of 20 values)"),
        ("date", ["soon"] * 10 + ["later"] * 10,
         "not taken as timestamp: no date (20 of 20 values)"),
        ("title", ["Home"] * 20,
         "not taken as title: the same value in all rows says nothing about a page"),
        ("title", ["a"] + [None] * 19, "not taken as title: only 1 of 20 rows have it"),
        ("title", [[["a"]]] * 20,
         "not taken as title: its values are neither plain nor records about the page"),
        ("title", [make_text(k, 400) for k in range(20)],
         "not taken as title: texts of 3,099 characters"),
        ("author", [f"A{k}" for k in range(20)],
         "no known name; columns.author=author takes it"),
    ],
)  # fmt: skip
def test_an_unused_column_has_a_reason(name: str, values: list[Any], reason: str) -> None:
    choice = choose({name: values})[name]
    assert choice.taken_as is None
    assert choice.reason == reason


def test_column_names_of_other_tools_are_recognized() -> None:
    names = {
        "WARC-Target-URI": "url", "pubDate": "timestamp", "published_at": "timestamp",
        "Headline": "title", "meta.link": "url", "siteDescription": "website_description",
        "breadcrumbs": "datasource",
    }  # fmt: skip
    for name, type_name in names.items():
        rows = [{"body": row["text"], name: row["url"]} for row in ROWS]
        if type_name == "timestamp":
            rows = [{"body": row["text"], name: row["date"]} for row in ROWS]
        assert map_choices(find_columns(rows, {})) == {"text": "body", type_name: name}


def test_the_only_column_of_long_texts_is_the_text() -> None:
    rows = [{"wiki": make_text(number, 80), "url": row["url"]} for number, row in enumerate(ROWS)]
    first, _ = find_columns(rows, {})
    assert (first.taken_as, first.reason) == ("text", "the only column of long texts")


def test_a_missing_text_column_is_explained() -> None:
    html = [{"html": f"<html><p>{row['text']}", "url": row["url"]} for row in ROWS]
    with pytest.raises(ConfigurationError) as caught:
        find_columns(html, {})
    assert str(caught.value).startswith(
        "pages: no column of the first rows is the text of a page; found html (markup); url "
        "(short: 32 characters); expected a column such as text, content"
    )
    assert "html holds raw pages: bsmeta annotate" in str(caught.value)

    two = [{"a": make_text(k, 80), "b": make_text(k + 1, 80)} for k in range(20)]
    with pytest.raises(ConfigurationError, match="several columns may be the text") as caught:
        find_columns(two, {})
    assert str(caught.value).endswith("columns.text=a names it")
    assert map_choices(find_columns(two, {"text": "b"})) == {"text": "b"}


def test_requested_columns_are_used_without_checks() -> None:
    choices = choose({"author": "Ada"}, requested={"author": "author", "timestamp": "date"})
    assert choices["author"].taken_as == "author"
    assert choices["author"].reason == "columns.author"
    with pytest.raises(ConfigurationError, match=r"columns.url=ur: .*\(did you mean url\?\)"):
        find_columns(ROWS, {"url": "ur"})


def test_requested_types_are_selected_and_sites_still_held_out_by_url() -> None:
    choices = choose({}, types=["title"])
    assert choices["url"].reason == "only to hold out sites: metadata_list leaves it out"
    assert choices["date"].reason == "timestamp, which metadata_list leaves out"
    columns = map_choices([*choices.values()])
    assert columns == {"text": "text", "url": "url", "title": "title"}
    assert list_types(columns, ["title"]) == ["title"]
    assert list_types(columns, None) == ["url", "title"]
    with pytest.raises(ConfigurationError, match=r"titel was not found; .*\(did you mean title\?"):
        find_columns(ROWS, {}, ["titel"])


def test_pages_without_metadata_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="so there is nothing to compare; expected a col"):
        list_types({"text": "text"}, None)


def test_every_column_is_shown() -> None:
    table = make_column_table([*choose({"author": [f"A{k}" for k in range(20)]}).values()], 20)
    assert table.title == "Columns of the first 20 rows"
    assert [row[:4] for row in table.rows] == [
        ["text", "text", "100%", "its name, and long texts"],
        ["url", "url", "100%", "its name, and its values fit"],
        ["title", "title", "100%", "its name, and its values fit"],
        ["date", "timestamp", "100%", "its name, and its values fit"],
        ["author", "– (left)", "100%", "no known name; columns.author=author takes it"],
    ]


def test_invalid_values_are_dropped_from_their_page() -> None:
    assert read_value("timestamp", "2020-01-02") == "2020-01-02"
    assert read_value("timestamp", "unknown") is None
    assert read_value("url", "see there") is None
    assert read_value("title", "  ") is None
    assert read_value("title", True) is None
    assert read_value("score", 0.5) == 0.5
    records = [{"value": "b", "char_start_idx": 3}, {"value": "t", "type": "global"}]
    assert read_value("title", records) == "t"
    assert read_value("author", ["Ada", None, "Charles"]) == "Ada, Charles"
    assert read_value("author", [["Ada"]]) is None

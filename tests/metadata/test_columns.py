"""A long column is taken out of lines as if they had been parsed whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata import columns
from bsmeta.metadata.columns import LongColumn
from bsmeta.metadata.records import BadDocument, DocumentDecoder

TAG = {"key": "html", "type": "local", "value": "b", "char_start_idx": 0, "char_end_idx": 1}
ROW = {"text": "a", "metadata_html": [TAG], "html_title": ["t"], "metadata_entity": []}
KEYS = ["html", "entity", "title"]


def line(row: object, **kwargs: Any) -> bytes:
    return json.dumps(row, **kwargs).encode()


def cut_after(first: bytes, then: bytes) -> tuple[bytes, bytes] | None:
    column = LongColumn("metadata_html", others=b'"metadata')
    assert column.cut(first) is None
    column.learn(first)
    parts = column.cut(then)
    return parts and (parts[0], bytes(parts[1]))


@pytest.mark.parametrize("indent", [None, 1])
def test_it_is_cut_where_it_stands(indent: int | None) -> None:
    tags = json.dumps([TAG] * 3, indent=indent).encode()
    then = b'{"text": "x", "metadata_html" : ' + tags + b' ,\n "html_title":"]"}'
    cut = cut_after(line(ROW), then)
    assert cut == (b'{"text": "x", "metadata_html" : -1 ,\n "html_title":"]"}', tags)


def test_the_last_column_ends_with_its_object() -> None:
    row = {"text": "a", "metadata_html": [TAG]}
    cut = cut_after(line(row), line(row, separators=(",", ":")) + b"\r")
    assert cut == (b'{"text":"a","metadata_html":-1}\r', line([TAG], separators=(",", ":")))


def test_long_parts_before_and_behind() -> None:
    row = {**ROW, "text": "y" * 50_000, "metadata_entity": [TAG] * 500}
    cut = cut_after(line(ROW), line(row))
    assert cut is not None
    assert cut[1] == line([TAG])
    assert json.loads(cut[0]) == {**row, "metadata_html": -1}


@pytest.mark.parametrize(
    "then",
    [
        line({"text": '"metadata_html": ['}),
        line({"text": "a", "metadata_html": None, "html_title": []}),
        line({"text": "a", "metadata_html": [TAG], "other": []}),
        line({"text": "a", "html_title": [], "metadata_html": [TAG]}),
        line({"metadata_html": [TAG], "metadata_title": [], "html_title": []}),
        b"",
        b'{"metadata_html"',
    ],
)
def test_what_it_does_not_know_is_left_alone(then: bytes) -> None:
    assert cut_after(line(ROW), then) is None


def test_it_gives_up_on_lines_that_never_fit() -> None:
    column = LongColumn("metadata_html", others=b'"metadata')
    other = {"text": "a", "html_title": [], "metadata_html": [TAG]}
    for _ in range(40):
        column.learn(line(ROW))
        column.learn(line(other))
    assert column.cut(line(ROW)) is None


def test_lines_without_it_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_KEYS", None)  # would fail if it was used
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    for _ in range(2):
        assert decoder.decode(line({"text": "a", "metadata": [TAG]})).has("html")


def test_a_column_that_is_nested_too_deep() -> None:
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    found(decoder, line(ROW))
    deep = b'{"text": "a", "metadata_html": ' + b"[" * 9999 + b"]" * 9999 + b', "html_title": []}'
    document = decoder.decode(deep)
    with pytest.raises(BadDocument, match="metadata_html"):
        document.records("html")


def test_what_stands_between_in_some_lines_only() -> None:
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    found(decoder, line(ROW))
    between = line({"text": "a", "metadata_html": [TAG], "url": "u", "x": [1], "html_title": []})
    document = decoder.decode(between)
    assert (document.url, [record.value for record in document.records("html")]) == ("u", ["b"])


inner = st.recursive(
    st.none() | st.integers() | st.sampled_from(["metadata_html", '"metadata_html": [', "], "]),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata_html", "html_title", "x"]), some, max_size=3)
    ),
    max_leaves=6,
)
rows = st.fixed_dictionaries(
    {"text": st.text(max_size=8) | st.just('"metadata_html": [], "html_title": ')},
    optional={
        "before": inner,
        "url": st.just("https://a.b"),
        "metadata_html": st.lists(st.just(TAG), max_size=3) | inner,
        "html_title": inner,
        "metadata_entity": st.lists(st.just({**TAG, "key": "entity"}), max_size=2),
    },
).flatmap(lambda row: st.permutations(list(row.items())).map(dict))


def found(decoder: DocumentDecoder, row: bytes) -> object:
    """What a decoder makes of a line: its text and records, or the reason against them."""
    try:
        document = decoder.decode(row)
        return document.text, document.url, {key: list(document.records(key)) for key in KEYS}
    except BadDocument as error:
        return error.reason


@pytest.mark.parametrize("keys", [KEYS, ["title"]])
@given(rows=st.lists(rows, min_size=1, max_size=4), compact=st.booleans())
def test_lines_read_as_if_each_was_the_first(
    keys: list[str], rows: list[dict[str, object]], compact: bool
) -> None:
    config = MetadataConfig(metadata_list=keys)
    decoder = DocumentDecoder(config)
    found(decoder, line(ROW))
    for row in rows:
        text = line(row, separators=(",", ":") if compact else None)
        assert found(decoder, memoryview(text)) == found(DocumentDecoder(config), text)

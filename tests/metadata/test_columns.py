"""A long column is taken out of lines as if they had been parsed whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.decoding import DocumentDecoder, cut_column
from bsmeta.metadata.records import BadDocument

TAG = {"key": "html", "type": "local", "value": "b", "char_start_idx": 0, "char_end_idx": 1}
ROW = {"text": "a", "metadata_html": [TAG], "html_title": ["t"], "metadata_entity": []}
KEYS = ["html", "entity", "title"]


def line(row: object, **kwargs: Any) -> bytes:
    return json.dumps(row, **kwargs).encode()


def cut(text: bytes) -> tuple[bytes, bytes] | None:
    parts = cut_column(text, b'"metadata_html"')
    return parts and (parts[0], bytes(parts[1]))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_it_is_cut_where_it_stands(separators: tuple[str, str]) -> None:
    tags = json.dumps([TAG] * 3, separators=separators).encode()
    text = b'{"text": "x", "metadata_html" : ' + tags + b' , "html_title":"]"}'
    assert cut(text) == (b'{"text": "x", "metadata_html" : -1 , "html_title":"]"}', tags)


def test_the_last_column_ends_with_its_object() -> None:
    row = {"text": "a", "metadata_html": [TAG]}
    tags = line([TAG], separators=(",", ":"))
    found = cut(line(row, separators=(",", ":")) + b"\r")
    assert found == (b'{"text":"a","metadata_html":-1}\r', tags)


def test_long_parts_before_and_after() -> None:
    row = {**ROW, "text": "y" * 50_000, "metadata_entity": [TAG] * 500}
    found = cut(line(row))
    assert found is not None
    assert found[1] == line([TAG])
    assert json.loads(found[0]) == {**row, "metadata_html": -1}


@pytest.mark.parametrize(
    "text",
    [
        line({"text": '"metadata_html": [{}], "'}),
        line({"text": "a", "metadata_html": None, "html_title": []}),
        line({"text": "a", "metadata_html": [], "metadata_entity": [TAG]}),
        line({"text": "a", "metadata_html": [TAG, 1]}),
        b"",
        b'{"metadata_html"',
        b'{"metadata_html": [{}]',
    ],
)
def test_a_line_without_a_list_of_records_is_left_alone(text: bytes) -> None:
    assert cut(text) is None


TITLE = {"key": "title", "value": "t"}


@pytest.mark.parametrize(
    "after",
    [
        {"text": "a"},
        {"text": "a", "url": "u"},
        {"text": 'ends like a list of records }], "', "z": 1},
        {"x": [TAG], "text": "a", "y": [TAG], "url": "u"},
        {"x": [TAG], "text": "a", "y": [TAG], "metadata_title": [TITLE]},
        {"x": [TAG], "text": "a", "y": [TAG], "metadata": [TITLE]},
        {"text": "a", "metadata_html": None},
        {"text": "a", "metadata_entity": [TAG], "metadata_title": [TITLE]},
    ],
)
@pytest.mark.parametrize("keys", [KEYS, ["title"]])
def test_no_order_of_keys_loses_a_column(after: dict[str, Any], keys: list[str]) -> None:
    """With the html column first and with it last; the line is the first of its shard."""
    first = {"metadata_html": [TAG]} | after
    last = after | ({} if "metadata_html" in after else {"metadata_html": [TAG]})
    decoders = [DocumentDecoder(MetadataConfig(metadata_list=keys)) for _ in range(2)]
    documents = [decoders[0].decode(line(first)), decoders[1].decode(line(last))]
    for document in documents:
        assert (document.text, document.url) == (after["text"], after.get("url"))
    read = [[document.records(key) for key in keys] for document in documents]
    assert read[0] == read[1]
    titles = [record.value for record in documents[0].records("title")]
    assert titles == ["t"] * (("metadata_title" in after) + ("metadata" in after))


@pytest.mark.parametrize("broken", [b'[{"value": }]', b"[{]}]", b'[{"a" "b"}]', b'[{"\xff"}]'])
@pytest.mark.parametrize("keys", [KEYS, ["title"]])
@pytest.mark.parametrize(
    "before",
    [ROW, {"html_title": ["t"], "metadata_html": [TAG], "text": "a"}, {"text": "no metadata"}],
)
def test_a_malformed_column_reads_the_same_after_any_lines(
    before: dict[str, Any], keys: list[str], broken: bytes
) -> None:
    malformed = b'{"text": "a", "metadata_html": ' + broken + b', "html_title": []}'
    other_order = b'{"html_title": [], "metadata_html": ' + broken + b', "text": "a"}'
    config = MetadataConfig(metadata_list=keys)
    decoder = DocumentDecoder(config)
    for _ in range(3):
        found(decoder, line(before))
    for text in (malformed, other_order):
        assert found(decoder, text) == found(DocumentDecoder(config), text)


@pytest.mark.parametrize("value", [b"%s", b'[{"x": %s}]'])
def test_a_column_that_is_nested_too_deep(value: bytes) -> None:
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    deep = value % (b"[" * 9999 + b"]" * 9999)
    with pytest.raises(BadDocument, match="recursion depth exceeded"):
        decoder.decode(b'{"text": "a", "metadata_html": ' + deep + b"}").records("html")


def test_what_stands_between_in_some_lines_only() -> None:
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    between = line({"text": "a", "metadata_html": [TAG], "url": "u", "x": [TAG], "html_title": []})
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

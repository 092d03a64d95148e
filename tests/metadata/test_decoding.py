"""A long column is taken out of lines as if they had been parsed whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.decoding import DocumentDecoder, cut_column, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Renderer

TAG = {"key": "html", "type": "local", "value": "b", "char_start_idx": 0, "char_end_idx": 1}
ROW = {"text": "a", "metadata_html": [TAG], "html_title": ["t"], "metadata_entity": []}
KEYS = ["html", "entity", "title"]

DOLMA = {
    "id": "d-1",
    "text": "A page.",
    "source": "common-crawl",
    "created": "2019-04-25T12:57:54Z",
    "added": "2023-04-12T00:00:00.000Z",
    "metadata": {"url": "https://a.example/b", "scores": {"quality": 0.29}, "length": 7},
}
COLUMNS = {
    "url": "metadata.url",
    "timestamp": "created",
    "quality": "metadata.scores.quality",
    "source": "source",
}


def line(row: object, **kwargs: Any) -> bytes:
    return json.dumps(row, **kwargs).encode()


def cut(text: bytes) -> tuple[bytes, bytes] | None:
    parts = cut_column(text, b'"metadata_html"')
    return parts and (parts[0], bytes(parts[1]))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_column_is_cut_out_of_its_line(separators: tuple[str, str]) -> None:
    tags = json.dumps([TAG] * 3, separators=separators).encode()
    text = b'{"text": "x", "metadata_html" : ' + tags + b' , "html_title":"]"}'
    assert cut(text) == (b'{"text": "x", "metadata_html" : -1 , "html_title":"]"}', tags)


def test_the_last_column_ends_before_the_closing_brace() -> None:
    row = {"text": "a", "metadata_html": [TAG]}
    tags = line([TAG], separators=(",", ":"))
    parts = cut(line(row, separators=(",", ":")) + b"\r")
    assert parts == (b'{"text":"a","metadata_html":-1}\r', tags)


def test_a_column_between_long_columns_is_cut_out() -> None:
    row = {**ROW, "text": "y" * 50_000, "metadata_entity": [TAG] * 500}
    parts = cut(line(row))
    assert parts is not None
    assert parts[1] == line([TAG])
    assert json.loads(parts[0]) == {**row, "metadata_html": -1}


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
def test_a_line_without_a_list_of_records_is_not_cut(text: bytes) -> None:
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
    """With the html column first or last, in the first line of a shard."""
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
        decode_or_get_reason(decoder, line(before))
    for text in (malformed, other_order):
        assert decode_or_get_reason(decoder, text) == decode_or_get_reason(
            DocumentDecoder(config), text
        )


@pytest.mark.parametrize("value", [b"%s", b'[{"x": %s}]'])
def test_a_deeply_nested_column_is_refused(value: bytes) -> None:
    decoder = DocumentDecoder(MetadataConfig(metadata_list=KEYS))
    deep = value % (b"[" * 9999 + b"]" * 9999)
    with pytest.raises(BadDocument, match="nested too deeply"):
        decoder.decode(b'{"text": "a", "metadata_html": ' + deep + b"}").records("html")


def test_a_column_that_follows_in_some_lines_only_is_read() -> None:
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


def decode_or_get_reason(decoder: DocumentDecoder, row: bytes) -> object:
    """Returns text, address and records of a line, or the reason that it is bad."""
    try:
        document = decoder.decode(row)
        return document.text, document.url, {key: list(document.records(key)) for key in KEYS}
    except BadDocument as error:
        return error.reason


@pytest.mark.parametrize("keys", [KEYS, ["title"]])
@given(rows=st.lists(rows, min_size=1, max_size=4), compact=st.booleans())
def test_decoding_does_not_depend_on_earlier_lines(
    keys: list[str], rows: list[dict[str, object]], compact: bool
) -> None:
    config = MetadataConfig(metadata_list=keys)
    decoder = DocumentDecoder(config)
    decode_or_get_reason(decoder, line(ROW))
    for row in rows:
        text = line(row, separators=(",", ":") if compact else None)
        assert decode_or_get_reason(decoder, memoryview(text)) == decode_or_get_reason(
            DocumentDecoder(config), text
        )


def config(*types: str, **settings: Any) -> MetadataConfig:
    return MetadataConfig(metadata_list=list(types), **settings)


def decode(
    row: Any, columns: dict[str, str], metadata: MetadataConfig, source: str = ""
) -> Document:
    return make_decoder(metadata, columns, source).decode(json.dumps(row).encode())


def render_prefix(
    row: Any, columns: dict[str, str], metadata: MetadataConfig, source: str = ""
) -> str:
    document = decode(row, columns, metadata, source)
    return Renderer(metadata).render(document, metadata.metadata_list).prefix


def test_plain_values_are_rendered_as_global_records() -> None:
    assert render_prefix(DOLMA, COLUMNS, config("url", "timestamp", "quality", "source")) == (
        "url: https://a.example/b | Year: 2019 | Month: April | quality: 0.29 | "
        "source: common-crawl |||"
    )


def test_buckets_and_templates_apply_to_plain_values() -> None:
    metadata = config(
        "quality",
        "length",
        value_bucket_scale={"quality": 100},
        value_bucket_bounds={"length": [5, 9]},
        metadata_templates={"quality": "Q{value}"},
    )
    columns = {**COLUMNS, "length": "metadata.length"}
    assert render_prefix(DOLMA, columns, metadata) == "Q29 | Text Length: 5-9 |||"


def test_another_column_may_be_the_text() -> None:
    row = {"text": 3, "body": {"content": "Words."}, "ok": True, "n": 12}
    columns = {"text": "body.content", "ok": "ok", "n": "n"}
    assert decode(row, columns, config("ok", "n")).text == "Words."
    assert render_prefix(row, columns, config("ok", "n")) == "ok: true | n: 12 |||"


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a"},
        {"text": "a", "metadata": None},
        {"text": "a", "metadata": "none"},
        {"text": "a", "metadata": ["none"]},
        {"text": "a", "metadata": {}},
        {"text": "a", "metadata": {"url": None}},
        {"text": "a", "metadata": {"url": ""}},
        {"text": "a", "metadata": {"url": []}},
    ],
)
def test_a_record_without_the_path_lacks_the_type(row: dict[str, Any]) -> None:
    document = decode(row, COLUMNS, config("url"))
    assert document.text == "a"
    assert not document.has("url")


def test_a_list_of_plain_values_is_one_record_each() -> None:
    row = {"text": "a", "topics": ["art", None, "", "law"]}
    assert render_prefix(row, {"topic": "topics"}, config("topic")) == "topic: art | topic: law |||"


def test_mapped_lists_of_records_keep_their_types() -> None:
    row = {
        "text": "bold word",
        "tags": [
            {"key": "html", "type": "local", "value": "b", "char_start_idx": 0, "char_end_idx": 4}
        ],
        "about": [{"key": "title", "type": "global", "value": "A title"}],
    }
    metadata = config("html", "title", add_local_metadata_special_tokens_in_prefix=False)
    document = decode(row, {"html": "tags", "title": "about"}, metadata)
    rendered = Renderer(metadata).render(document, ["html", "title"])
    assert (rendered.prefix, rendered.body) == ("Title: A title |||", "<b>bold</b> word")


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"body": "a"}, "missing_text", "the object has no `page.text`"),
        ({"page": "a"}, "missing_text", "the object has no `page.text`"),
        ({"page": {"text": 3}}, "text_not_string", "got `int` - at `$.page.text`"),
        ({"page": {"text": None}}, "text_not_string", "got `null` - at `$.page.text`"),
        ({"page": {"text": "a"}, "url": {"href": "b"}}, "wrong_type", "got `object` - at `$.url`"),
        (["a"], "not_an_object", "Expected `object`"),
    ],
)
def test_bad_documents_in_mapped_columns_have_the_usual_reasons(
    row: Any, reason: str, detail: str
) -> None:
    with pytest.raises(BadDocument) as error:
        decode(row, {"text": "page.text", "url": "url"}, config("url"))
    assert error.value.reason == reason
    assert detail in error.value.detail


def test_the_address_is_read_whether_or_not_it_is_used() -> None:
    row = {"text": "a", "url": "https://x.example", "meta": {"link": "https://y.example"}}
    for types in ([], ["url"]):
        mapped = decode(row, {"url": "meta.link"}, config(*types))
        assert mapped.collect_addresses("url") == {"https://y.example"}
        assert decode(row, {"text": "text"}, config(*types)).collect_addresses("url") == {
            "https://x.example"
        }
    # an address that cannot be read is not a fault of a document that does not use it
    odd = {"text": "a", "url": {"href": "https://x.example"}}
    assert decode(odd, {"text": "text"}, config()).collect_addresses("url") == set()


@pytest.mark.parametrize("columns", [{}, {"text": "text"}])
def test_the_name_of_the_source_renders_as_a_record(columns: dict[str, str]) -> None:
    row = {"text": "a"}
    assert render_prefix(row, columns, config("source"), source="books") == "source: books |||"
    assert render_prefix(row, columns, config("source")) == ""
    assert not decode(row, columns, config("url"), source="books").has("source")


def test_a_mapped_source_takes_precedence() -> None:
    assert (
        render_prefix(DOLMA, COLUMNS, config("source"), source="dolma")
        == "source: common-crawl |||"
    )


def test_two_types_cannot_share_a_column_of_many_records() -> None:
    with pytest.raises(ConfigurationError, match="tags is mapped to html and to entity; the rec"):
        make_decoder(config("html"), {"html": "tags", "entity": "tags"})

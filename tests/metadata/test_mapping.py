"""Records of any corpus, mapped onto text and metadata by `data_config.columns`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.mapping import make_decoder
from bsmeta.metadata.records import BadDocument, Document
from bsmeta.metadata.rendering import Renderer

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


def config(*types: str, **settings: Any) -> MetadataConfig:
    return MetadataConfig(metadata_list=list(types), **settings)


def decode(
    row: Any, columns: dict[str, str], metadata: MetadataConfig, source: str = ""
) -> Document:
    return make_decoder(metadata, columns, source).decode(json.dumps(row).encode())


def prefix(row: Any, columns: dict[str, str], metadata: MetadataConfig, source: str = "") -> str:
    document = decode(row, columns, metadata, source)
    return Renderer(metadata).render(document, metadata.metadata_list).prefix


def test_plain_values_are_rendered_as_global_records() -> None:
    assert prefix(DOLMA, COLUMNS, config("url", "timestamp", "quality", "source")) == (
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
    assert prefix(DOLMA, columns, metadata) == "Q29 | Text Length: 5-9 |||"


def test_another_column_may_be_the_text() -> None:
    row = {"text": 3, "body": {"content": "Words."}, "ok": True, "n": 12}
    columns = {"text": "body.content", "ok": "ok", "n": "n"}
    assert decode(row, columns, config("ok", "n")).text == "Words."
    assert prefix(row, columns, config("ok", "n")) == "ok: true | n: 12 |||"


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
    row = {"text": "a", "topics": ["art", None, "law"]}
    assert prefix(row, {"topic": "topics"}, config("topic")) == "topic: art | topic: law |||"


def test_lists_of_records_stay_what_they_are() -> None:
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
def test_bad_documents_have_the_same_reasons(row: Any, reason: str, detail: str) -> None:
    with pytest.raises(BadDocument) as error:
        decode(row, {"text": "page.text", "url": "url"}, config("url"))
    assert error.value.reason == reason
    assert detail in error.value.detail


def test_the_address_is_read_whether_or_not_it_is_used() -> None:
    row = {"text": "a", "url": "https://x.example", "meta": {"link": "https://y.example"}}
    for types in ([], ["url"]):
        mapped = decode(row, {"url": "meta.link"}, config(*types))
        assert mapped.addresses("url") == {"https://y.example"}
        assert decode(row, {"text": "text"}, config(*types)).addresses("url") == {
            "https://x.example"
        }
    # an address that cannot be read is no fault of a document that does not use it
    odd = {"text": "a", "url": {"href": "https://x.example"}}
    assert decode(odd, {"text": "text"}, config()).addresses("url") == set()


@pytest.mark.parametrize("columns", [{}, {"text": "text"}])
def test_the_name_of_the_source_is_a_record(columns: dict[str, str]) -> None:
    row = {"text": "a"}
    assert prefix(row, columns, config("source"), source="books") == "source: books |||"
    assert prefix(row, columns, config("source")) == ""
    assert not decode(row, columns, config("url"), source="books").has("source")


def test_a_mapped_source_takes_precedence() -> None:
    assert prefix(DOLMA, COLUMNS, config("source"), source="dolma") == "source: common-crawl |||"


def test_columns_of_many_records_are_not_shared() -> None:
    with pytest.raises(ConfigurationError, match="tags is mapped to html and to entity; the rec"):
        make_decoder(config("html"), {"html": "tags", "entity": "tags"})

"""The template renders what the renderer of training renders, or refuses."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.chat_form import ChatForm
from bsmeta.metadata.chat_template import find_chat_form, render_chat_template, takes_chat_template
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import MetadataType
from bsmeta.metadata.processors import PROCESSORS, Title, Url, find_type, make_types
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import small_tokenizer

WEBDOCS = Path(__file__).resolve().parents[2] / "examples" / "webdocs"
TOKENIZER = small_tokenizer()
TOKENIZER.bos_token = "<eos>"

GLOBAL = ["title", "url", "datasource", "website_description", "timestamp", "length"]
RENDERED: list[dict[str, Any]] = [
    {"metadata_list": GLOBAL},
    {"metadata_list": GLOBAL[::-1], "metadata_sep": "; ", "metadata_key_value_sep": "="},
    {"metadata_list": GLOBAL, "metadata_position": "append"},
    {"metadata_list": ["meta_tokens", *GLOBAL], "metadata_position": "both"},
    {"metadata_list": GLOBAL, "metadata_boundary_token": "<|text|>"},
    {
        "metadata_list": GLOBAL,
        "metadata_boundary_token": "<|text|>",
        "metadata_position": "both",
        "metadata_prefix_start_seq": "<|{% raw %}|>",
    },
    {"metadata_list": ["url", "title"], "url_granularity": "host"},
    {"metadata_list": ["url", "title"], "url_granularity": "path"},
    {
        "metadata_list": ["url", "timestamp", "length"],
        "metadata_templates": {
            "url": 'URL: {value}\n\n"\\',
            "timestamp": "{month}{year} ({value})",
            "length": "{{{key}}} {value} é😀",
        },
        "value_bucket_bounds": {"length": [500, 2500.5, 5000]},
    },
    {"metadata_list": ["length", "url"], "value_bucket_scale": {"length": 0.01}},
]


def render_chat(
    config: MetadataConfig,
    metadata: Any,
    text: Any = "",
    *,
    continues_text: bool = False,
    **more: Any,
) -> str:
    """Renders a document by the template; ended by EOS, unless the model continues its text."""
    messages = [{"role": "metadata", "content": metadata}, {"role": "text", "content": text}]
    rendered: str = TOKENIZER.apply_chat_template(
        messages,
        chat_template=render_chat_template(config, **more),
        add_generation_prompt=continues_text,
        tokenize=False,
    )
    return rendered


def list_values(document: Document, config: MetadataConfig) -> dict[str, Any]:
    """Returns the values of a document's global records, and the meta tokens."""
    values: dict[str, Any] = {"meta_tokens": True} if "meta_tokens" in config.metadata_list else {}
    for key in config.metadata_list:
        if document.has(key):
            values[key] = [record.value for record in document.records(key)]
    return values


def read_pages(config: MetadataConfig) -> list[Document]:
    (path,) = WEBDOCS.glob("*_pq00-000.jsonl.gz")
    decoder = DocumentDecoder(config)
    with gzip.open(path) as file:
        return [decoder.decode(line) for line in file]


@pytest.mark.parametrize("settings", RENDERED)
def test_all_pages_of_the_sample_render_as_in_training(settings: dict[str, Any]) -> None:
    config = MetadataConfig(**settings)
    renderer = Renderer(config)
    pages = read_pages(config)
    assert len(pages) == 59
    for page in pages:
        expected = renderer.render(page, config.metadata_list).full_text
        assert len(expected) > len(page.text)
        assert render_chat(config, list_values(page, config), page.text) == f"{expected}<eos>"


def test_the_template_renders_literal_strings() -> None:
    config = MetadataConfig(metadata_list=["title", "url", "timestamp"])
    metadata = {"timestamp": "2019-04-22", "url": "https://a.org/b%20c", "title": "T"}
    assert render_chat(config, metadata, "A set", continues_text=True) == (
        "Title: T | url: https://a.org/b c | Year: 2019 | Month: April ||| A set"
    )
    assert render_chat(config, {"title": ["T", "U"], "url": None}, "A") == (
        "Title: T | Title: U ||| A<eos>"
    )
    assert render_chat(config, {}, "A set") == "A set<eos>"
    assert (
        render_chat(config, {}, "", continues_text=True) == "<eos>"
    )  # a model needs a token to begin with
    assert render_chat(config, {}, "A", continues_text=True, has_bos=True) == "<eos>A"


def test_an_empty_text_keeps_only_separators_that_do_not_merge_with_tokens() -> None:
    config = MetadataConfig(metadata_list=["title"], metadata_text_sep="\n ")
    assert (
        render_chat(config, {"title": "T"}, "", continues_text=True, bare_lead="\n")
        == "Title: T |||\n"
    )
    assert (
        render_chat(config, {"title": "T"}, "A", continues_text=True, bare_lead="\n")
        == "Title: T |||\n A"
    )


def test_the_template_accepts_lines_parts_and_continued_texts() -> None:
    config = MetadataConfig(metadata_list=["title", "url", "html"])
    expected = "Title: a: b | url: https://a.org | html ||| One two"
    lines = "url: https://a.org\ntitle: a: b\n\nhtml: true"
    assert render_chat(config, lines, "One two", continues_text=True) == expected
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": " two"}]
    content = [{"type": "text", "text": lines}]
    assert render_chat(config, content, parts, continues_text=True) == expected

    template = render_chat_template(config)
    messages = [{"role": "user", "content": "One"}, {"role": "assistant", "content": " two"}]
    metadata = {"title": "a: b", "url": "https://a.org", "html": True}
    rendered = TOKENIZER.apply_chat_template(
        messages,
        chat_template=template,
        metadata=metadata,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert rendered == expected


@pytest.mark.parametrize(
    ("settings", "metadata", "message"),
    [
        ({}, {"titel": "T"}, "metadata titel: the model was trained with title, url"),
        ({}, "title", 'found "title", expected a line such as "type: value"'),
        ({}, {"title": True}, "metadata title (True): expected a string or a number"),
        ({}, {"title": {"a": 1}}, "expected a string or a number"),
        ({}, {"url": "https://a.org/%ff"}, "metadata url (https://a.org/%ff): no UTF-8"),
        ({"url_granularity": "hash"}, {"url": "a.org"}, "url_granularity=hash takes code"),
        ({"url_granularity": "suffix"}, {"url": "a.org"}, "url_granularity=suffix takes code"),
        ({"url_granularity": "host"}, {"url": "ftp://a.org"}, "expected an address such as"),
        ({"metadata_list": ["timestamp"]}, {"timestamp": "19 Feb 2023"}, "expected a date such"),
        ({"metadata_list": ["timestamp"]}, {"timestamp": "1556064000"}, "expected a date such"),
        ({"metadata_list": ["timestamp"]}, {"timestamp": "2019-13"}, "expected a date such"),
        ({"metadata_list": ["meta_tokens"]}, {"meta_tokens": 3}, "expected true"),
        ({"metadata_list": ["html"]}, {"html": "<b>"}, "metadata html (<b>): expected true"),
        (
            {"metadata_list": ["html"], "add_local_metadata_special_tokens_in_prefix": False},
            {"html": True},
            "it is inserted into the text, which takes code",
        ),
        (
            {"metadata_list": ["quality"], "value_bucket_scale": {"quality": 10}},
            {"quality": "high"},
            "metadata quality (high): expected a number",
        ),
        (
            {
                "metadata_list": ["quality"],
                "value_bucket_bounds": {"quality": [1, float("inf")]},
            },
            {"quality": 3},
            "an infinite bound takes code",
        ),
        (
            {"metadata_position": "append"},
            {"title": "T"},
            "the model reads it after the text only",
        ),
    ],
)
def test_metadata_that_cannot_be_rendered_is_refused(
    settings: dict[str, Any], metadata: Any, message: str
) -> None:
    config = MetadataConfig(**({"metadata_list": ["title", "url"]} | settings))
    with pytest.raises(jinja2.TemplateError) as caught:
        render_chat(config, metadata, "A", continues_text=True)
    assert message in str(caught.value)


def render_both(config: MetadataConfig, key: str, value: Any) -> tuple[str | None, str | None]:
    """Returns a text with a record, rendered as in training and by the template; None: refused."""
    document = Document("A", None, {key: [Record(value=value, key=key, type="global")]})
    trained: str | None = None
    templated: str | None = None
    try:
        trained = f"{Renderer(config).render(document, [key]).full_text}<eos>"
        templated = render_chat(config, {key: value}, "A")
    except (BadDocument, jinja2.TemplateError):
        pass
    return trained, templated


@given(st.text(), st.sampled_from(["full", "path"]))
def test_escaped_addresses_are_decoded(path: str, granularity: str) -> None:
    config = MetadataConfig(metadata_list=["url"], url_granularity=granularity)
    address = f"https://a.org/{quote(path)}"
    trained, templated = render_both(config, "url", address)
    assert templated is not None
    assert templated == trained


@given(
    st.text(st.sampled_from("aZ09%+/:?#@.[]cC3Aa9é \t"), max_size=24),
    st.sampled_from(["full", "host", "path"]),
)
def test_any_address_is_rendered_as_in_training_or_refused(value: str, granularity: str) -> None:
    config = MetadataConfig(metadata_list=["url"], url_granularity=granularity)
    trained, templated = render_both(config, "url", value)
    assert templated is None or templated == trained


numbers = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(-1e9, 1e9),
    st.decimals(-1000, 1000, places=3).map(str),
    st.sampled_from(["0.29", "1e-7", "5E2", " 7 ", "+3", "-0.5", ".5", "3."]),
)


@given(numbers, st.sampled_from([10, 100, 0.5, 0.001, 3.7]))
def test_scaled_numbers_render_as_in_training(value: Any, scale: float) -> None:
    config = MetadataConfig(metadata_list=["quality"], value_bucket_scale={"quality": scale})
    trained, templated = render_both(config, "quality", value)
    assert templated is not None
    assert templated == trained


@given(st.one_of(numbers, st.sampled_from([0.1, "0.1", 10, "100", "99.9999"])))
def test_bucket_bounds_render_as_in_training(value: Any) -> None:
    bounds = {"quality": [-5, 0.1, 10, 100]}
    config = MetadataConfig(metadata_list=["quality"], value_bucket_bounds=bounds)
    trained, templated = render_both(config, "quality", value)
    assert templated is not None
    assert templated == trained


@given(st.dates(), st.sampled_from(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d 10:00", "%Y-%m"]))
def test_dates_in_iso_notation_render_as_in_training(date: Any, notation: str) -> None:
    config = MetadataConfig(metadata_list=["timestamp"])
    value = f"{date.year:04}{date.strftime(notation).removeprefix(date.strftime('%Y'))}"
    trained, templated = render_both(config, "timestamp", value)
    assert trained is None or (templated is not None and templated == trained)


class Shouted(Title):
    """Overrides the rendering of a type, but not its form."""

    def _render_value(self, record: Record) -> str | None:
        return str(record.value).upper()


def test_a_class_that_changes_the_rendering_does_not_inherit_the_form() -> None:
    config = MetadataConfig(metadata_list=["title"])
    assert find_chat_form(Shouted("title", config), config).kind == "code"
    assert find_chat_form(Title("title", config), config) == ChatForm(
        kind="value", parts=(("Title: ", "value"),)
    )
    assert find_chat_form(Url("url", config), config).kind == "address"


def test_every_type_about_the_document_has_a_form() -> None:
    config = MetadataConfig(metadata_list=list(PROCESSORS))
    forms = {key: find_chat_form(made, config) for key, made in make_types(config).items()}
    assert [key for key, form in forms.items() if form.kind == "code"] == []
    assert {key for key in forms if find_type(key).is_local} == {
        key for key, form in forms.items() if form.kind == "constant" and key != "meta_tokens"
    }
    assert find_chat_form(MetadataType("mood", config), config).parts == (("mood: ", "value"),)


def test_metadata_without_types_or_content_has_no_template() -> None:
    assert takes_chat_template(MetadataConfig(metadata_list=["url"]))
    assert takes_chat_template(MetadataConfig(metadata_list=["url"], metadata_values="shuffled"))
    assert not takes_chat_template(MetadataConfig(metadata_list=[]))
    assert not takes_chat_template(MetadataConfig(metadata_list=["url"], metadata_values="random"))

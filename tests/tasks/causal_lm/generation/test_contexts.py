"""Contexts: what the model reads before it writes, and what cannot be given to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.generation.contexts import Context, Contexts

URL = "https://docs.python.org/3/library/a%20b.html"


def build_context(
    tokenizer: PreTrainedTokenizerBase, metadata: dict[str, Any], prompt: str, **settings: Any
) -> Context:
    settings.setdefault("metadata_list", ["html", "title", "url", "timestamp", "length"])
    config = DataConfig(metadata_config=MetadataConfig(**settings))
    return Contexts(config, tokenizer).make_context(metadata, prompt)


@pytest.mark.parametrize(
    ("metadata", "settings", "prefix"),
    [
        ({}, {}, ""),
        ({"title": None}, {}, ""),
        ({"title": "Sets"}, {}, "Title: Sets |||"),
        (
            {"url": URL, "title": "Sets"},  # in the order of metadata_list
            {},
            "Title: Sets | url: https://docs.python.org/3/library/a b.html |||",
        ),
        ({"url": URL}, {"url_granularity": "host"}, "url: docs.python.org |||"),
        ({"url": URL}, {"metadata_templates": {"url": "URL: {value}"}}, f"URL: {URL[:34]}a b.html"),
        ({"timestamp": "2018-12-10"}, {}, "Year: 2018 | Month: December |||"),
        ({"length": 700}, {"value_bucket_bounds": {"length": [500]}}, "Text Length: >=500 |||"),
        ({"html": True, "title": "Sets"}, {}, "html | Title: Sets |||"),
        (
            {"html": True},
            {"local_metadata_special_tokens": {"html": "HtmlOn"}},
            "HtmlOn |||",
        ),
        (
            {"meta_tokens": True},
            {"metadata_list": ["meta_tokens"], "num_meta_tokens": 2},
            "<|meta_0|><|meta_1|> |||",
        ),
        ({"title": ["A", "B"]}, {}, "Title: A | Title: B |||"),
        ({"title": "A"}, {"metadata_position": "both"}, "Title: A |||"),
    ],
)
def test_metadata_renders_as_in_training(
    metadata: dict[str, Any],
    settings: dict[str, Any],
    prefix: str,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    if "metadata_templates" in settings:
        prefix += " |||"
    assert build_context(tokenizer, metadata, "The", **settings).prefix == prefix


def test_tokens_equal_those_of_training(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    title = Record(value="Sets", key="title", type="global")
    document = Document("A set is", None, {"title": [title]})
    rendered = Renderer(data_config.metadata_config).render(document, ("title",))
    (encoded,) = DocumentEncoder(tokenizer, data_config).encode([rendered])
    context = Contexts(data_config, tokenizer).make_context({"title": "Sets"}, "A set is")
    assert context.ids == [*encoded.prefix_ids, *encoded.ids[:-1]]
    assert tokenizer.decode(context.ids) == "Title: Sets ||| A set is"
    assert context.joint == ""


def test_without_a_prompt_the_first_word_brings_its_own_space(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    context = build_context(tokenizer, {"title": "Sets"}, "")
    assert tokenizer.decode(context.ids) == "Title: Sets |||"
    assert context.joint == " "
    context = build_context(tokenizer, {"title": "Sets"}, "", metadata_text_sep="\n\n")
    assert tokenizer.decode(context.ids) == "Title: Sets |||\n\n"
    assert context.joint == ""


def test_a_separator_with_separate_tokens_is_encoded_as_in_training(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    config = replace(data_config, row_budget="text")
    title = Record(value="Sets", key="title", type="global")
    rendered = Renderer(config.metadata_config).render(
        Document("A set is", None, {"title": [title]}), ("title",)
    )
    (encoded,) = DocumentEncoder(tokenizer, config).encode([rendered])
    contexts = Contexts(config, tokenizer)
    assert contexts.make_context({"title": "Sets"}, "A set is").ids == [
        *encoded.prefix_ids,
        *encoded.ids[:-1],
    ]
    context = contexts.make_context({"title": "Sets"}, "")
    assert context.ids == [*encoded.prefix_ids, *tokenizer.encode(" ")]
    assert context.joint == ""
    assert contexts.make_context({}, "") == Context(prefix="", ids=[0], joint="")


def test_without_metadata_and_prompt_the_context_is_the_end_of_text_token(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert build_context(tokenizer, {}, "") == Context(prefix="", ids=[0], joint="")


@pytest.mark.parametrize(
    ("metadata", "settings", "message"),
    [
        ({"titel": "A"}, {}, "metadata.titel: the model was not trained with this type; expected"),
        ({"titel": "A"}, {}, "did you mean title?"),
        (
            {"generation_length_text": 3},
            {},
            "did you mean length?",
        ),
        ({"html": "<b>"}, {}, "html is a local type; it stands at places in the text and cannot"),
        ({"html": "<b>"}, {}, "the prefix only announces it: metadata.html=true"),
        (
            {"html": True},
            {"add_local_metadata_special_tokens_in_prefix": False},
            "training did not announce it",
        ),
        ({"html": True}, {"local_metadata_special_tokens": {"html": ""}}, "did not announce it"),
        ({"title": True}, {}, "metadata.title=True: expected a string or a number"),
        ({"title": []}, {}, "expected a string or a number"),
        ({"title": {"a": 1}}, {}, "expected a string or a number"),
        ({"timestamp": "soon"}, {}, "not_a_timestamp: 'soon'"),
        ({"title": "A"}, {"metadata_position": "append"}, "metadata_position=append"),
        ({"url": "x"}, {"url_granularity": "suffix"}, "nothing of it can be rendered"),
    ],
)
def test_metadata_unknown_to_the_model_is_refused(
    metadata: dict[str, Any],
    settings: dict[str, Any],
    message: str,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(ConfigurationError) as error:
        build_context(tokenizer, metadata, "The", **settings)
    assert message in str(error.value)


def test_a_prefix_that_is_too_long_is_truncated_as_in_training(
    tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    short = replace(data_config.metadata_config, prefix_max_tokens=12)
    contexts = Contexts(replace(data_config, metadata_config=short), tokenizer)
    context = contexts.make_context({"title": "word " * 50}, "")
    assert len(context.ids) == 12
    assert tokenizer.decode(context.ids).endswith(" |||")

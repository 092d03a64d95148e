"""Which comparisons are made, and with whose values."""

from __future__ import annotations

import pytest

from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.encoding import FREQUENT_WORDS
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.evaluation.arms import (
    Arm,
    StyledRenderer,
    apply_control,
    list_comparisons,
)
from tests.metadata.helpers import entity_record, page


def test_comparisons_are_listed_in_a_fixed_order() -> None:
    config = EvaluateConfig(
        comparisons=["all", "left_out", "added"],
        chosen=["url+title"],
        controls=["wrong"],
        prompt=True,
    )
    listed = list_comparisons(config, ["title", "url", "length"])
    shown = [(arm.name, arm.base.types, arm.test.types) for arm in listed]
    everything = ("title", "url", "length")
    assert shown == [
        ("text", (), ()),
        ("all", (), everything),
        ("left_out/title", (), ("url", "length")),
        ("left_out/url", (), ("title", "length")),
        ("left_out/length", (), ("title", "url")),
        ("added/title", ("url", "length"), everything),
        ("added/url", ("title", "length"), everything),
        ("added/length", ("title", "url"), everything),
        ("chosen/url+title", (), ("title", "url")),
        ("wrong/all", (), everything),
        ("wrong/url+title", (), ("title", "url")),
        ("own_against_wrong/all", everything, everything),
        ("own_against_wrong/url+title", ("title", "url"), ("title", "url")),
        ("prompt/all", (), everything),
        ("prompt/url+title", (), ("title", "url")),
    ]
    assert [(arm.test.values, arm.test.style) for arm in listed[-6:]] == [
        ("wrong", "training"),
        ("wrong", "training"),
        ("own", "training"),
        ("own", "training"),
        ("own", "prompt"),
        ("own", "prompt"),
    ]


def test_all_unknown_names_are_listed_at_once() -> None:
    config = EvaluateConfig(chosen=["url+color", "size"])
    with pytest.raises(ConfigurationError) as caught:
        list_comparisons(config, ["url"])
    assert "color is not in metadata_list ['url']" in str(caught.value)
    assert "size is not in metadata_list ['url']" in str(caught.value)


def test_a_prompt_reads_like_english() -> None:
    config = MetadataConfig(metadata_list=["url", "entity", "html", "my_field"])
    document = Document(
        "Some text.",
        None,
        {
            "url": [Record("https://a.org/two%20words", "url", "global")],
            "entity": [
                entity_record("New_York", 0),
                entity_record("Oslo", 2),
                entity_record("Oslo", 5),
            ],
            "html": [entity_record("b", 0)],
            "my_field": [Record("7", "my_field", "global")],
        },
    )
    rendered = StyledRenderer("prompt", config).render(
        document, ("url", "entity", "html", "my_field")
    )
    assert rendered.prefix == (
        "URL: https://a.org/two words; Entities: New York, Oslo; My field: 7."
    )
    assert (rendered.lead, rendered.body) == (" ", "Some text.")
    assert rendered.types == ("url", "entity", "my_field")
    assert rendered.prefix_spans[-1].tolist() == [56, 68]
    assert rendered.prefix_token_types.tolist() == [1, 2, 4]


def test_a_prompt_without_fields_is_the_text() -> None:
    config = MetadataConfig(metadata_list=["url"])
    rendered = StyledRenderer("prompt", config).render(page(1), ("url",))
    assert (rendered.prefix, rendered.lead, rendered.types) == ("", "", ())


def test_form_is_an_uninformative_prefix_of_the_same_length() -> None:
    config = MetadataConfig(metadata_list=["html", "title"])
    document = page(1, title="How to knit a hat that does not fit anybody")
    rendered = Renderer(config).render(document, ("title",))
    assert rendered.prefix == "Title: How to knit a hat that does not fit anybody |||"
    junk = StyledRenderer("form", config).render(document, ("title",))
    assert junk.prefix.endswith(" |||")
    assert set(junk.prefix.removesuffix(" |||").split()) <= set(FREQUENT_WORDS)
    assert 0 <= len(junk.prefix) - len(rendered.prefix) < max(map(len, FREQUENT_WORDS)) + 1
    again = StyledRenderer("form", config).render(document, ("title",))
    assert again.prefix == junk.prefix
    bare = StyledRenderer("separator", config).render(document, ("title",))
    assert (bare.prefix, bare.lead, bare.body, bare.types) == ("|||", " ", "text 1", ("title",))
    assert StyledRenderer("form", config).render(document, ("html",)).types == ()


def test_form_keeps_the_special_tokens_of_training() -> None:
    config = MetadataConfig(
        metadata_list=["title"],
        metadata_prefix_start_seq="<|start|>",
        metadata_prefix_special_token_state=True,
        metadata_boundary_token="<|text|>",
    )
    document = page(1, title="How to knit a hat")
    junk = StyledRenderer("form", config).render(document, ("title",))
    parts = [junk.prefix[start:end] for start, end in junk.prefix_configured.tolist()]
    assert parts == ["<|start|>", "<|text|>"]
    bare = StyledRenderer("separator", config).render(document, ("title",))
    assert (bare.prefix, bare.lead) == ("<|start|><|text|>", "")
    assert bare.prefix_configured.tolist() == [[0, 9], [9, 17]]

    prompt = StyledRenderer("prompt", config).render(document, ("title",))
    assert (prompt.prefix, prompt.lead) == ("Title: How to knit a hat.", " ")


def test_form_controls_change_the_style_and_content_controls_the_values() -> None:
    arm = Arm(("url",))
    assert apply_control(arm, "matched") == Arm(("url",), values="matched")
    assert apply_control(arm, "separator") == Arm(("url",), style="separator")
    assert str(apply_control(arm, "form")) == "url (form)"
    assert str(Arm()) == "without metadata"

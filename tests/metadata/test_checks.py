"""Metadata that cannot be rendered is refused before the first document, in one error."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bsmeta.config.metadata import HtmlParserConfig, MetadataConfig, Phase
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.checks import find_metadata_problems
from bsmeta.metadata.rendering import Renderer


def test_the_default_configuration_has_no_problems() -> None:
    assert find_metadata_problems(MetadataConfig()) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"metadata_list": ["url", "url"]},
            "metadata_list: url more than once, expected each type once",
        ),
        (
            {"metadata_list": ["website_desc"]},
            "expected the key of its records, website_description",
        ),
        (
            {"metadata_list": [f"t{i}" for i in range(32)]},
            "metadata_list: 32 types, expected at most 31",
        ),
        ({"metadata_probability": 1.5}, "metadata_probability: 1.5, expected 0 to 1"),
        ({"html_overall_sample_rate": -1}, "html_overall_sample_rate: -1, expected 0 to 1"),
        ({"metadata_dropout": {"url": 2}}, "metadata_dropout.url: 2, expected 0 to 1"),
        (
            {"metadata_dropout": {"urls": 0.1}},
            "metadata_dropout: the type urls, expected types of metadata_list (did you mean url?)",
        ),
        (
            {"random_sample_metadata_weights": {"url": -1.0}},
            "weights.url: -1.0, expected 0 or more",
        ),
        (
            {"metadata_position": "before"},
            'metadata_position: "before", expected one of prepend, append, both',
        ),
        ({"url_granularity": "domain"}, 'url_granularity: "domain", expected one of full, host'),
        ({"entity_setting": "start"}, "expected one of beg, end"),
        ({"prefix_on": "all"}, "expected one of every_piece, first_piece"),
        (
            {"metadata_templates": {"url": "URL"}},
            "expected a text with some of {key}, {value} in it",
        ),
        ({"metadata_templates": {"url": "{value} {year}"}}, 'metadata_templates.url: "{value'),
        ({"metadata_templates": {"url": "{value"}}, 'metadata_templates.url: "{value'),
        ({"metadata_templates": {"url": "{value:d}"}}, "in it, and no format after a name"),
        ({"metadata_templates": {"urls": "{value}"}}, "metadata_templates: the type urls"),
        ({"value_bucket_bounds": {"length": []}}, "expected rising numbers"),
        ({"value_bucket_bounds": {"length": [1, 1]}}, "value_bucket_bounds.length: [1, 1]"),
        ({"value_bucket_scale": {"length": 0}}, "value_bucket_scale.length: 0, expected"),
        (
            {"value_bucket_bounds": {"length": [1]}, "value_bucket_scale": {"length": 1}},
            "value_bucket_scale also names length",
        ),
        ({"loss_on_metadata_types": ["url"]}, "because loss_on_metadata is false"),
        (
            {"loss_on_metadata": True, "loss_on_metadata_types": ["u"]},
            "loss_on_metadata_types: the type u",
        ),
        ({"max_seq_len": 1}, "max_seq_len: 1, expected 2 or more"),
        ({"prefix_max_tokens": 1024}, "prefix_max_tokens: 1024, expected 1 to 1023"),
        (
            {"metadata_boundary_token": "< text >"},
            'metadata_boundary_token: "< text >", expected a string that no text contains, without '
            "blanks, such as <|text|>",
        ),
        ({"metadata_boundary_token": "text"}, 'metadata_boundary_token: "text", expected a string'),
        (
            {"metadata_list": ["meta_tokens"], "num_meta_tokens": 0},
            "num_meta_tokens: 0, expected 1 or more",
        ),
    ],
)
def test_each_problem_names_key_found_expected_and_fix(
    changes: dict[str, Any], problem: str
) -> None:
    (refusal,) = find_metadata_problems(MetadataConfig(**changes))
    assert refusal.key.startswith("data_config.metadata_config.")
    assert problem in f"{refusal.key}: {refusal.found}, expected {refusal.expected}"
    assert refusal.fix


def test_problems_of_the_html_rules_are_reported() -> None:
    rules = HtmlParserConfig(
        tags_to_remove_alone_tag_name=["p", "p"],
        tags_to_remove_alone_txt_max_chr_len=[1.0, 2.0],
    )
    few, repeated = find_metadata_problems(MetadataConfig(html_parser_config=rules))
    assert few.key.endswith("html_parser_config.tags_to_remove_alone_txt_min_chr_len")
    assert few.found == "0 lengths"
    assert repeated.found == "p more than once"


def test_one_error_lists_all_problems() -> None:
    config = MetadataConfig(metadata_probability=2, max_seq_len=0, entity_setting="mid")
    with pytest.raises(ConfigurationError) as caught:
        Renderer(config)
    assert re.findall(r"^\d\. (\S+)", str(caught.value), re.M) == [
        "data_config.metadata_config.entity_setting",
        "data_config.metadata_config.metadata_probability",
        "data_config.metadata_config.max_seq_len",
    ]


METADATA = "data_config.metadata_config"


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"metadata_column_list": []}, ["metadata_column_list"]),
        ({"metadata_column_list": [], "metadata_list": ["meta_tokens"]}, []),
        ({"metadata_column_list": [], "metadata_list": []}, []),
        (
            {"random_sample_metadata_weights": {"url": 0, "website_desc": 0}},
            ["random_sample_metadata_weights"],
        ),
        ({"random_sample_metadata_weights": {"url": 0}}, []),
        (
            {
                "random_sample_metadata_weights": {"url": 0, "website_desc": 0},
                "random_sample_metadata": False,
            },
            [],
        ),
        ({"metadata_dropout": {"url": 1.0, "website_description": 1.0}}, ["metadata_dropout"]),
        ({"metadata_list": ["html"], "html_overall_sample_rate": 0.0}, ["metadata_dropout"]),
        (
            {"schedule": [Phase(share=0.5), Phase(share=0.5, metadata_dropout={"url": 1.0})]},
            [],
        ),
        (
            {
                "schedule": [
                    Phase(share=0.5, types=["url"], metadata_dropout={"url": 1.0}),
                    Phase(share=0.5, types=[]),
                ]
            },
            ["schedule.0.metadata_dropout"],
        ),
    ],
)
def test_metadata_that_can_never_be_drawn_is_refused(
    values: dict[str, Any], keys: list[str]
) -> None:
    config = MetadataConfig(**{"metadata_list": ["url", "website_description"], **values})
    found = [problem.key for problem in find_metadata_problems(config)]
    assert found == [f"{METADATA}.{key}" for key in keys]
    never_drawn = replace(config, metadata_probability=0.0)
    assert keys == ["metadata_column_list"] or find_metadata_problems(never_drawn) == []


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            [Phase(share=0.5)],
            "schedule in Hydra configuration: found the shares [0.5], expected shares",
        ),
        (
            [Phase(share=1.5), Phase(share=-0.5)],
            "schedule.1.share in Hydra configuration: found -0.5, expected a",
        ),
        (
            [Phase(types=["color"])],
            "schedule.0.types in Hydra configuration: found the type color",
        ),
        (
            [Phase(metadata_probability=2.0)],
            "schedule.0.metadata_probability in Hydra configuration: found 2.0",
        ),
    ],
)
def test_invalid_schedules_are_refused(phases: list[Phase], message: str) -> None:
    problems = find_metadata_problems(MetadataConfig(schedule=phases))
    assert any(message in str(problem) for problem in problems), problems


def test_constant_values_of_local_or_appended_metadata_are_refused() -> None:
    config = MetadataConfig(
        metadata_list=["html", "url"], metadata_values="constant", metadata_position="both"
    )
    shown = [
        f"{problem.key}: {problem.found}; {problem.fix}"
        for problem in find_metadata_problems(config)
    ]
    assert shown == [
        "data_config.metadata_config.metadata_list: html; leave html out",
        "data_config.metadata_config.metadata_position: both; "
        "data_config.metadata_config.metadata_position=prepend",
    ]

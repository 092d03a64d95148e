"""What cannot be rendered is refused before the first document, all of it in one error."""

from __future__ import annotations

from typing import Any

import pytest

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.metadata import MetadataConfig, metadata_problems
from bsmeta.metadata.rendering import Renderer


def test_the_default_configuration_is_sound() -> None:
    assert metadata_problems(MetadataConfig()) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metadata_list": ["url", "url"]}, "metadata_list names url more than once"),
        ({"metadata_list": ["website_desc"]}, "name its key, website_description"),
        ({"metadata_list": [f"t{i}" for i in range(256)]}, "has 256 types; at most 255"),
        ({"metadata_probability": 1.5}, "metadata_probability is 1.5; expected a chance"),
        ({"html_overall_sample_rate": -1}, "html_overall_sample_rate is -1"),
        ({"metadata_dropout": {"url": 2}}, "metadata_dropout.url is 2"),
        ({"metadata_dropout": {"urls": 0.1}}, "metadata_dropout names urls, which"),
        ({"random_sample_metadata_weights": {"url": -1.0}}, "weights.url is -1.0; expected 0"),
        ({"metadata_position": "before"}, "'before'; expected one of prepend, append, both"),
        ({"url_granularity": "domain"}, "url_granularity is 'domain'"),
        ({"entity_setting": "start"}, "expected one of beg, end"),
        ({"prefix_on": "all"}, "expected one of every_piece, first_piece"),
        ({"metadata_templates": {"url": "URL"}}, "expected some of {key}, {value} in it"),
        ({"metadata_templates": {"url": "{value} {year}"}}, "metadata_templates.url is"),
        ({"metadata_templates": {"url": "{value"}}, "metadata_templates.url is"),
        ({"metadata_templates": {"url": "{value:d}"}}, "expected no format after a name"),
        ({"metadata_templates": {"urls": "{value}"}}, "metadata_templates names urls"),
        ({"value_bucket_bounds": {"length": []}}, "expected rising numbers"),
        ({"value_bucket_bounds": {"length": [1, 1]}}, "value_bucket_bounds.length is [1, 1]"),
        ({"value_bucket_scale": {"length": 0}}, "value_bucket_scale.length is 0"),
        (
            {"value_bucket_bounds": {"length": [1]}, "value_bucket_scale": {"length": 1}},
            "both name length",
        ),
        ({"loss_on_metadata_types": ["url"]}, "but loss_on_metadata is false"),
        ({"loss_on_metadata": True, "loss_on_metadata_types": ["u"]}, "types names u"),
        ({"max_seq_len": 1}, "max_seq_len is 1"),
        ({"prefix_max_tokens": 1024}, "prefix_max_tokens is 1024"),
        ({"metadata_list": ["meta_tokens"], "num_meta_tokens": 0}, "num_meta_tokens is 0"),
    ],
)
def test_a_problem_is_named(changes: dict[str, Any], problem: str) -> None:
    (line,) = metadata_problems(MetadataConfig(**changes))
    assert line.startswith("data_config.metadata_config.")
    assert problem in line


def test_problems_of_the_html_rules() -> None:
    config = MetadataConfig()
    rules = config.html_parser_config
    rules.tags_to_remove_alone_tag_name = ["p", "p"]
    rules.tags_to_remove_alone_txt_max_chr_len = [1.0, 2.0]
    few, repeated = metadata_problems(config)
    assert "tags_to_remove_alone_txt_min_chr_len has 0 lengths for the 2 names" in few
    assert "has p more than once" in repeated


def test_one_error_lists_all_problems() -> None:
    config = MetadataConfig(metadata_probability=2, max_seq_len=0, entity_setting="mid")
    with pytest.raises(ConfigurationError) as caught:
        Renderer(config)
    assert [line.split()[0] for line in str(caught.value).splitlines()] == [
        "data_config.metadata_config.metadata_probability",
        "data_config.metadata_config.max_seq_len",
        "data_config.metadata_config.entity_setting",
    ]

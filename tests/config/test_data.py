"""The configuration of the data: shares of a mixture, and the data of its sources."""

from __future__ import annotations

import pytest

from bsmeta.config.data import DataConfig, SourceConfig, build_source_configs, compute_parts


@pytest.mark.parametrize(
    ("weights", "parts"),
    [([1, 1], [1, 1]), ([0.7, 0.3], [7, 3]), ([2, 4, 6], [1, 2, 3]), ([0.1, 0.25], [2, 5])],
)
def test_weights_become_the_smallest_whole_numbers(weights: list[float], parts: list[int]) -> None:
    assert compute_parts(weights) == parts


def test_sources_have_the_columns_of_the_mixture_unless_they_map_their_own() -> None:
    web = SourceConfig(name="web", train_file="web/*.jsonl", weight=1.0)
    news = SourceConfig(name="news", train_file="news.jsonl", weight=1.0, columns={"text": "body"})
    mixture = DataConfig(columns={"url": "link"}, sources=[web, news])
    configs = build_source_configs(mixture)
    assert {name: config.train_file for name, config in configs.items()} == {
        "web": "web/*.jsonl",
        "news": "news.jsonl",
    }
    assert {name: config.columns for name, config in configs.items()} == {
        "web": {"url": "link"},
        "news": {"text": "body"},
    }


def test_data_without_sources_are_one_source_without_a_name() -> None:
    config = DataConfig(train_file="train.jsonl")
    assert build_source_configs(config) == {"": config}

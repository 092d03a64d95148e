"""The recipes of the papers: composed on top of the shipped configurations, rendered literally."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.checks.metadata import metadata_problems
from bsmeta.config.compose import compose
from bsmeta.config.metadata import Phase
from bsmeta.config.schema import TrainConfig
from bsmeta.metadata.records import DocumentDecoder
from bsmeta.metadata.rendering import Renderer

RECIPES = sorted(
    path.stem
    for path in (Path(__file__).resolve().parents[2] / "hydra_configs" / "recipes").glob("*.yaml")
)
LINE = (
    b'{"text": "Some text.", "metadata_url": [{"key": "url", "type": "global", '
    b'"value": "https://docs.example.org/a%20b"}], "metadata_quality": [{"key": "quality", '
    b'"type": "global", "value": "0.73"}]}'
)
# What the model reads, and what is added to the tokenizer.
READ = {
    "meco": ("URL: docs.example.org\n\nSome text.", []),
    "urls_help": (
        "<|context_begin|>https://docs.example.org/a b<|context_end|>Some text.",
        ["<|context_begin|>", "<|context_end|>"],
    ),
    "beyond_urls_quality": ("Quality: 7 ||| Some text.", []),
    "beyond_urls_append": ("Some text. ||| url: https://docs.example.org/a b", []),
    "beyond_urls_meta_tokens": (None, None),
}


def test_each_recipe_is_held_to_what_it_renders() -> None:
    assert sorted(READ) == RECIPES


@pytest.mark.parametrize("base", ["demo", "v2"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_composes_and_reads(name: str, base: str) -> None:
    metadata = compose(TrainConfig, base, [f"+recipes={name}"]).data_config.metadata_config
    assert metadata_problems(metadata) == []
    renderer = Renderer(metadata)
    document = DocumentDecoder(metadata).decode(LINE)
    one = renderer.render(document, metadata.metadata_list)
    read, special = READ[name]
    if read is None:
        special = renderer.special_tokens()[-5:]
        read = "".join(special) + " ||| Some text."
        assert len(set(special)) == 5
    assert one.prefix + one.lead + one.body + one.suffix == read
    wrappers = {"<HTML>", "</HTML>", "<ENTITY_CHAIN>", " </ENTITY_CHAIN> "}  # of v2 itself
    assert [token for token in renderer.special_tokens() if token not in wrappers] == special


def test_meco_cools_down_in_the_same_run() -> None:
    config = compose(TrainConfig, "v2", ["+recipes=meco"])
    assert config.data_config.metadata_config.schedule == [
        Phase(share=0.9),
        Phase(share=0.1, metadata_probability=0.0),
    ]

"""The examples of README.md, metadata.md and recipes.md are what the code renders."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import fields

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.processors import PROCESSORS
from bsmeta.metadata.rendering import Renderer
from tests.warm import REPOSITORY

METADATA = (REPOSITORY / "docs/metadata.md").read_text()
RECIPES = (REPOSITORY / "docs/recipes.md").read_text()
SETTINGS = re.findall(r"^```yaml\n(.*?)^```\n```text\n(.*?)^```", METADATA, re.M | re.S)
OVERRIDES = re.findall(r"^<!-- renders: (.*?) -->\n```text\n(.*?)^```", RECIPES, re.M | re.S)

README = (REPOSITORY / "README.md").read_text()
SHARD = REPOSITORY / "examples/webdocs/c4-en-html_cc-main-2019-18_pq00-001.jsonl.gz"


def read(config: MetadataConfig) -> str:
    """Renders the document of metadata.md."""
    (record,) = re.findall(r"^<!-- record -->\n```json\n(.*?)^```", METADATA, re.M | re.S)
    return render(config, json.dumps(json.loads(record)).encode())


def render(config: MetadataConfig, line: bytes) -> str:
    """Renders a document with all types of a configuration."""
    document = DocumentDecoder(config).decode(line)
    one = Renderer(config).render(document, config.metadata_list)
    return one.prefix + one.lead + one.body + one.suffix


@pytest.mark.parametrize(("settings", "text"), SETTINGS)
def test_a_setting_renders_as_shown(settings: str, text: str) -> None:
    assert read(MetadataConfig(**yaml.safe_load(settings))) == text.removesuffix("\n")


@pytest.mark.parametrize(("override", "text"), OVERRIDES)
def test_a_recipe_renders_as_shown(override: str, text: str) -> None:
    config = compose_command_line(CausalLMConfig, "demo", [override]).data_config.metadata_config
    assert read(config) == text.removesuffix("\n")


def test_the_readme_shows_a_page_of_the_sample() -> None:
    overrides = ["data_config.metadata_config.metadata_list=[title,url]"]
    config = compose_command_line(CausalLMConfig, "demo", overrides).data_config.metadata_config
    with gzip.open(SHARD) as shard:
        text = " ".join(render(config, shard.readline()).split())
    (shown,) = re.findall(r"^(Title: .*) …$", README, re.M)
    assert text.startswith(shown)


def test_every_type_and_every_recipe_is_shown() -> None:
    shown = {key for settings, _ in SETTINGS for key in yaml.safe_load(settings)["metadata_list"]}
    assert set(PROCESSORS) <= shown
    recipes = {path.stem for path in (REPOSITORY / "hydra_configs/recipes").glob("*.yaml")}
    assert {override.removeprefix("+recipes=") for override, _ in OVERRIDES} == recipes


def test_the_keys_of_the_page_exist() -> None:
    field_names = {field.name for field in fields(MetadataConfig)}
    used = {key for settings, _ in SETTINGS for key in yaml.safe_load(settings)}
    assert used <= field_names

"""Where the project reaches into Hydra, against the Hydra that is installed."""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path

from bsmeta.config import sources
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import register
from bsmeta.core.files import CONFIG_FOLDER


def test_the_version_is_the_one_it_was_written_for() -> None:
    assert hydra.__version__.startswith("1.3.")


def test_hydra_takes_the_reader_and_the_search_path(tmp_path: Path) -> None:
    register(CausalLMConfig, tmp_path)
    source = SourcesRegistry.instance().types[FileConfigSource.scheme()]
    assert source is sources.ExpandingSource
    found = create_config_search_path(str(CONFIG_FOLDER)).get_path()
    names = [element.provider for element in found]
    assert names == ["hydra", "own", "main", "schema"]
    register(CausalLMConfig)
    names = [element.provider for element in create_config_search_path("x").get_path()]
    assert names == ["hydra", "main", "schema"]

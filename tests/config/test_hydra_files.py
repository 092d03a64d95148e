"""Where the project reaches into Hydra, against the Hydra that is installed."""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import register_schema
from bsmeta.config.hydra_files import ConfigReader, RecordingSource
from bsmeta.core.files import CONFIG_FOLDER


def test_hydra_has_the_version_that_the_module_was_written_for() -> None:
    assert hydra.__version__.startswith("1.3.")


def test_hydra_uses_the_reader_and_searches_the_own_folder_first(tmp_path: Path) -> None:
    register_schema(CausalLMConfig, ConfigReader(own_folder=tmp_path))
    source = SourcesRegistry.instance().types[FileConfigSource.scheme()]
    assert source is RecordingSource
    search_path = create_config_search_path(str(CONFIG_FOLDER)).get_path()
    assert [element.provider for element in search_path] == ["hydra", "own", "main", "schema"]

    register_schema(CausalLMConfig, ConfigReader())
    search_path = create_config_search_path("x").get_path()
    assert [element.provider for element in search_path] == ["hydra", "main", "schema"]

"""Where the project reaches into Hydra, against the Hydra that is installed."""

from __future__ import annotations

import copy
from pathlib import Path

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource,
)
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import register_schema
from bsmeta.config.composing.hydra_files import (
    ConfigReader,
    PackageSource,
    RecordingSource,
    StructuredConfigSource,
)
from bsmeta.core.files import CONFIG_FOLDER


def test_hydra_has_the_version_that_the_module_was_written_for() -> None:
    assert hydra.__version__.startswith("1.3.")


def test_hydra_uses_the_reader_and_searches_the_users_folder_first(tmp_path: Path) -> None:
    register_schema(CausalLMConfig, ConfigReader(own_folder=tmp_path))
    sources = SourcesRegistry.instance().types
    assert sources[FileConfigSource.scheme()] is RecordingSource
    assert (sources["pkg"], sources["structured"]) == (PackageSource, StructuredConfigSource)
    search_path = create_config_search_path(str(CONFIG_FOLDER)).get_path()
    assert [element.provider for element in search_path] == ["hydra", "own", "main", "schema"]

    register_schema(CausalLMConfig, ConfigReader())
    search_path = create_config_search_path("x").get_path()
    assert [element.provider for element in search_path] == ["hydra", "main", "schema"]


def test_hydras_own_files_are_read_as_hydra_reads_them() -> None:
    package = ("hydra", "pkg://hydra.conf")
    for name in PackageSource(*package).list("hydra/help", None):
        expected = ImportlibResourcesConfigSource(*package).load_config(f"hydra/help/{name}")
        assert PackageSource(*package).load_config(f"hydra/help/{name}") == expected


def test_the_store_is_not_copied_for_each_composition() -> None:
    register_schema(CausalLMConfig, ConfigReader())
    source = copy.deepcopy(StructuredConfigSource("schema", "structured://"))
    assert source.store is ConfigStore.instance()
    first, second = [source.load_config("causal_lm_config").config for _ in range(2)]
    assert first is not second

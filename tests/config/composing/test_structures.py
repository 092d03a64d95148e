"""Schemas are frozen, and their structures are writable while a configuration is composed."""

from __future__ import annotations

import importlib
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.structures import merge_into_structure, open_structure, unlock
from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.studies.config import ArmConfig, StudyConfig


def is_schema(value: object) -> bool:
    """Whether a value is a dataclass with a field that `key(...)` declares."""
    if not (isinstance(value, type) and is_dataclass(value)):
        return False
    return any("declaration" in field.metadata for field in fields(value))


def find_schemas() -> dict[str, type]:
    """Every schema of the package by its full name."""
    package = Path(bsmeta.__file__).parent
    schemas = {}
    for file in sorted(package.rglob("*.py")):
        if " key(" not in file.read_text():
            continue
        module = importlib.import_module(
            ".".join(file.relative_to(package.parent).with_suffix("").parts)
        )
        for value in vars(module).values():
            if is_schema(value):
                schemas[f"{value.__module__}.{value.__qualname__}"] = value
    return schemas


SCHEMAS = find_schemas()


def test_the_schemas_of_all_programs_are_collected() -> None:
    names = {name.rpartition(".")[2] for name in SCHEMAS}
    assert names >= {
        "RunConfig", "CausalLMConfig", "DataConfig", "MetadataConfig", "ClassificationConfig",
        "DisambiguationConfig", "SecConfig", "AnnotateConfig", "StudyConfig", "EvaluateConfig",
        "ExplainConfig", "GenerateConfig", "PredictConfig", "ModelCardConfig",
    }  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_frozen(name: str) -> None:
    config = SCHEMAS[name]()
    first = fields(config)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(config, first, getattr(config, first))


def test_only_one_module_makes_structures() -> None:
    """Other modules would make it read-only for a frozen schema, so no value could be set."""
    package = Path(bsmeta.__file__).parent
    files = [file for file in package.rglob("*.py") if ".structured(" in file.read_text()]
    assert [file.relative_to(package).as_posix() for file in files] == [
        "config/composing/structures.py"
    ]


def test_a_structure_is_writable_at_every_level() -> None:
    structure = open_structure(CausalLMConfig)
    structure.seed = 7
    structure.data_config.metadata_config.html_parser_config.all_tags_rules.txt_min_chr_len = 3
    config = OmegaConf.to_object(structure)
    assert isinstance(config, CausalLMConfig)
    rules = config.data_config.metadata_config.html_parser_config.all_tags_rules
    assert (config.seed, rules.txt_min_chr_len) == (7, 3)


def test_the_structure_of_an_instance_has_its_values_and_is_writable_in_lists() -> None:
    sources = [SourceConfig(name="a", train_file="a.gz"), SourceConfig(name="b")]
    structure = open_structure(DataConfig(num_streams=6, sources=sources))
    structure.sources[1].train_file = "b.gz"
    config = OmegaConf.to_object(structure)
    assert isinstance(config, DataConfig)
    assert config.num_streams == 6
    assert [source.train_file for source in config.sources] == ["a.gz", "b.gz"]


def test_structures_of_one_schema_share_no_value() -> None:
    changed = open_structure(CausalLMConfig)
    changed.seed = 7
    changed.data_config.metadata_config.metadata_list.append("added")
    changed.data_config.sources = [open_structure(SourceConfig)]
    assert OmegaConf.to_object(open_structure(CausalLMConfig)) == CausalLMConfig()


def test_added_entries_are_writable() -> None:
    structure = open_structure(DataConfig)
    structure.sources = [open_structure(SourceConfig)]
    unlock(structure)
    structure.sources[0].name = "a"
    assert structure.sources[0].name == "a"


def test_values_are_merged_into_the_sections_of_a_mapping() -> None:
    values = {"baseline": "a", "arms": {"a": {"overrides": ["seed=1"]}, "b": {}}}
    study = OmegaConf.to_object(merge_into_structure(StudyConfig, values))
    assert isinstance(study, StudyConfig)
    assert study.arms == {"a": ArmConfig(overrides=["seed=1"]), "b": ArmConfig()}

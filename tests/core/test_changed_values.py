"""Copies of a configuration with other values, and paths under a home folder."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.core.changed_values import expand_home, replace_values
from bsmeta.core.keys import key
from bsmeta.studies.config import ArmConfig, StudyConfig


def test_values_are_replaced_in_a_copy_at_every_level() -> None:
    config = CausalLMConfig(seed=1)
    changed = replace_values(
        config,
        {
            "seed": 2,
            "data_config.num_streams": 6,
            "data_config.metadata_config.max_seq_len": 64,
            "data_config.metadata_config.metadata_list": ["url"],
        },
    )
    metadata = changed.data_config.metadata_config
    assert (changed.seed, changed.data_config.num_streams) == (2, 6)
    assert (metadata.max_seq_len, metadata.metadata_list) == (64, ["url"])
    assert config == CausalLMConfig(seed=1)


def test_sections_in_lists_and_mappings_are_replaced() -> None:
    data = DataConfig(sources=[SourceConfig(name="a"), SourceConfig(name="b")])
    changed = replace_values(data, {"sources.1.weight": 3.0})
    assert [source.weight for source in changed.sources] == [1.0, 3.0]
    assert [source.weight for source in data.sources] == [1.0, 1.0]

    study = StudyConfig(arms={"a": ArmConfig(), "b": ArmConfig()})
    changed_study = replace_values(study, {"arms.b.label": "second"})
    assert changed_study.arms == {"a": ArmConfig(), "b": ArmConfig(label="second")}


def test_an_unknown_key_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="nothing"):
        replace_values(DataConfig(), {"nothing": 1})


@dataclass(frozen=True, kw_only=True)
class Files:
    first: str = key("", is_path=True)
    others: list[str] = key([], is_path=True)
    title: str = key("~/kept")


def test_the_home_folder_is_expanded_in_paths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    written = Files(first="~/a", others=["b", "~/c", "~nobody_here/d"])
    expanded, unknown_users = expand_home(written)
    assert expanded == Files(first="/home/me/a", others=["b", "/home/me/c", "~nobody_here/d"])
    assert unknown_users == [("others", "~nobody_here/d")]
    assert written.first == "~/a"

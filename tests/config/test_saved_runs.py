"""Saved configurations of runs: read back as they were, and changed only within bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.saved_runs import (
    change_keys,
    format_yaml,
    load_resolved,
    read_saved_task,
)
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from tests.config.program import start


def test_overrides_of_a_saved_configuration_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"^overrides\.data_config\.num_streams=0: expec"):
        change_keys(CausalLMConfig(), {"data_config": {"num_streams": 0}})


def test_a_saved_configuration_round_trips(tmp_path: Path) -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["data_config.exclude=[a.gz]"])
    (tmp_path / "config.yaml").write_text(format_yaml(config))
    assert load_resolved(tmp_path / "config.yaml", CausalLMConfig) == config
    same = start(tmp_path, "--config-dir", ".", "--config-name", "config", "check_only=true")
    assert (same.returncode, same.stderr) == (0, "")
    assert "0.004 after 30 steps" in same.stdout


def test_text_that_looks_like_an_interpolation_is_kept(tmp_path: Path) -> None:
    """Also by Hydra, which restarts a saved run."""
    templates = {"title": r"\${oc.env:AWS_SECRET_ACCESS_KEY} for {value}"}
    config = compose_command_line(CausalLMConfig, "demo")
    changes = {
        "data_config.metadata_config.metadata_templates": templates,
        "run_name": "${seed}",
    }
    config = replace_values(config, changes)
    (tmp_path / "config.yaml").write_text(format_yaml(config))
    assert r"run_name: \${seed}" in (tmp_path / "config.yaml").read_text()

    read = load_resolved(tmp_path / "config.yaml", CausalLMConfig)
    assert read == config
    assert change_keys(read, {"seed": 1, "model_name": "${seed}"}) == replace(
        config, seed=1, model_name="${seed}"
    )
    assert compose_command_line(CausalLMConfig, "config", own_folder=tmp_path) == config


def test_a_saved_text_is_not_parsed_as_yaml(tmp_path: Path) -> None:
    """Text becomes a list only where Hydra has resolved a variable."""
    text = r'["\${oc.env:AWS_SECRET_ACCESS_KEY}"]'
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"trackers": text}))
    with pytest.raises(ConfigurationError, match=r"trackers in .*expected a value of type list"):
        load_resolved(tmp_path / "config.yaml", CausalLMConfig)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"run/config\.yaml: there is no such file"):
        read_saved_task(tmp_path / "run" / "config.yaml")


def test_a_value_out_of_bounds_is_refused_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data_config: {num_workers: -1}\n")
    with pytest.raises(ConfigurationError) as error:
        load_resolved(file, CausalLMConfig)
    assert f"data_config.num_workers in {file}: found -1, expected 0 or more" in str(error.value)

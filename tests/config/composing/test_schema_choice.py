"""The schema of a command line, chosen by the defaults lists of its configuration."""

from __future__ import annotations

from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.schema_choice import choose_schema
from bsmeta.config.schema import RunConfig
from bsmeta.tasks.classification.config import ClassificationConfig


def test_a_defaults_list_chooses_the_schema_directly_or_through_another_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.yaml").write_text("defaults: [classification_config, _self_]\n")
    (tmp_path / "mine.yaml").write_text("defaults:\n  - own\n  - _self_\n")
    schemas: list[type[RunConfig]] = [CausalLMConfig, ClassificationConfig]
    options = ["--config-dir", str(tmp_path), "--config-name"]
    assert choose_schema([*options, "mine"], schemas, "v2") is ClassificationConfig
    assert choose_schema(["seed=1"], schemas, "v2") is CausalLMConfig
    assert choose_schema([*options, "missing"], schemas, "v2") is CausalLMConfig
    # Refused where it is read.
    assert choose_schema(["--config-name"], schemas, "v2") is CausalLMConfig

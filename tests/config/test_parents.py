"""YAML files that name a parent of the schema that they are composed for."""

from __future__ import annotations

from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.tasks.classification.config import ClassificationConfig


def test_the_name_of_a_parent_selects_the_last_registered_schema(tmp_path: Path) -> None:
    defaults = "defaults: [pretrained_config, {model: llama_tiny}, _self_]"
    (tmp_path / "own.yaml").write_text(f"{defaults}\nmax_train_steps: 7\n")
    for _ in range(2):  # the second time after another schema with the same parents
        composed = compose_command_line(CausalLMConfig, "own", ["learning_rate=0.5"], tmp_path)
        assert isinstance(composed, CausalLMConfig)
        assert (composed.max_train_steps, composed.learning_rate) == (7, 0.5)
        assert isinstance(
            compose_command_line(ClassificationConfig, "classification"), ClassificationConfig
        )

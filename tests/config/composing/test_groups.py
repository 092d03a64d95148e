"""The groups of `hydra_configs/`: what each choice sets, over every configuration that has them."""

from __future__ import annotations

from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.groups import list_group_options
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.checks import find_metadata_problems

GROUPS = ("model", "optimizer", "schedule", "metadata", "data")
METADATA = "data_config.metadata_config"


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_composes_with_the_main_job(group: str) -> None:
    for option in list_group_options()[group]:
        config = compose_command_line(CausalLMConfig, "v2", [f"{group}={option}"])
        assert [
            *find_value_problems(config),
            *find_metadata_problems(config.data_config.metadata_config),
        ] == []


def test_choices_win_over_the_file_and_keys_over_choices() -> None:
    choices = ["model=llama_tiny", "optimizer=adamw_pretraining", "metadata=title_url"]
    choices += ["schedule=cosine_with_0.05_warmup", "data=webdocs", "max_train_steps=200"]
    config = compose_command_line(CausalLMConfig, "v2", [*choices, "learning_rate=1e-3"])
    metadata = config.data_config.metadata_config
    values: list[Any] = [config.learning_rate, config.weight_decay, config.adam_beta2]
    values += [config.lr_scheduler_type, config.num_warmup_steps, metadata.metadata_list]
    assert values == [1e-3, 0.1, 0.95, "cosine", 10, ["title", "url"]]
    assert str(config.model_config_file).endswith("examples/model/config.json")
    assert str(config.data_config.train_file).endswith("examples/webdocs/*.jsonl.gz")
    assert metadata.html_parser_config.tags_to_remove_alone_tag_name == ["body"]  # v2's own


def test_a_recipe_wins_over_a_choice() -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["metadata=all", "+recipes=meco"])
    assert config.data_config.metadata_config.metadata_list == ["url"]


def test_every_misspelling_is_reported_with_the_nearest_name() -> None:
    wrong = ["model=lama_tiny", "schedul=cosine", "+recipes=meko", "learning_rat=1"]
    with pytest.raises(ConfigurationError) as caught:
        compose_command_line(
            CausalLMConfig, "v2", [*wrong, "max_train_steps=1.5", "seed=7", "out_dir=${oc.env:NO}"]
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "6 problems in the configuration"
    for line, beginning in zip(
        lines[1::2],
        [
            '1. model in the command line: found "lama_tiny", expected one of gpt2,',
            "2. schedul in the command line: found an unknown key",
            '3. recipes in the command line: found "meko"',
            "4. learning_rat in the command line: found an unknown key",
            "5. max_train_steps in the command line: found 1.5, expected a value of type int",
            "6. out_dir in Hydra configuration: found ${oc.env:NO}, but",
        ],
        strict=True,
    ):
        assert line.startswith(beginning), line
    fixes = [line.removeprefix("   Fix: ") for line in lines[2::2]]
    assert fixes[:4] == [
        "model=llama_tiny",
        "write schedule, or drop it",
        "+recipes=meco",
        "write learning_rate, or drop it",
    ]

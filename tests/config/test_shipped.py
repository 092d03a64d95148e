"""Every shipped configuration with every launch file that it belongs to is composed and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.deepspeed import AUTO
from bsmeta.config.checks.run import check_launch
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.schema_choice import choose_schema
from bsmeta.config.launch import read_launch
from bsmeta.config.schema import RunConfig
from bsmeta.reference import PROGRAMS
from bsmeta.tasks import TASKS
from bsmeta.tasks.classification.config import ClassificationConfig
from tests.conftest import REPOSITORY

LAUNCH_FILES = sorted((REPOSITORY / "experiments" / "accelerate").glob("*.yaml"))
JSON_FILES = sorted((REPOSITORY / "deepspeed_configs").glob("*.json"))
CPU_FILES = ["cpu.yaml", "cpu_zero2.yaml", "cpu_fsdp2.yaml"]
WITHOUT_JSON = ("cpu", "cpu_fsdp2", "ddp", "fsdp2")


def check_shipped(config_name: str, launch_file: Path, *overrides: str) -> dict[str, object] | None:
    """Checks a configuration with a launch file; returns the filled DeepSpeed configuration."""
    overrides = ("check_only=true", f"accelerate_config_file={launch_file}", *overrides)
    config = compose_command_line(CausalLMConfig, config_name, overrides)
    launch = read_launch({}, config.accelerate_config_file)
    return check_launch(config, launch, TASKS[config.task]).deepspeed_config


def test_all_launch_files_and_jsons_are_listed() -> None:
    names = ["cpu", "cpu_fsdp2", "cpu_zero2", "ddp", "fsdp2"]
    names += ["zero1", "zero2", "zero2_offload", "zero3"]
    assert [path.stem for path in LAUNCH_FILES] == names
    assert [path.stem for path in JSON_FILES] == ["cpu", "offload", "v2", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda path: path.stem)
def test_demo_passes_the_checks_with_every_launch_file(file: Path) -> None:
    filled = check_shipped("demo", file)
    assert (filled is None) == (file.stem in WITHOUT_JSON)
    assert '"auto"' not in json.dumps(filled)


@pytest.mark.parametrize(
    "file", [path for path in LAUNCH_FILES if "fsdp" not in path.stem], ids=lambda path: path.stem
)
def test_the_classifier_passes_the_checks_with_every_other_launch_file(file: Path) -> None:
    overrides = ("check_only=true", f"accelerate_config_file={file}", "data_config.csv=ads.csv")
    config = compose_command_line(ClassificationConfig, "classification", overrides)
    launch = read_launch({}, config.accelerate_config_file)
    filled = check_launch(config, launch, TASKS["classification"]).deepspeed_config
    assert (filled is None) == (file.stem in WITHOUT_JSON)
    assert filled is None or filled["train_batch_size"] == 16 * launch.num_processes


@pytest.mark.parametrize(
    "file",
    [path for path in LAUNCH_FILES if path.name not in CPU_FILES],
    ids=lambda path: path.stem,
)
def test_v2_passes_the_checks_with_every_launch_file_for_gpus(file: Path) -> None:
    filled = check_shipped("v2", file)
    if filled is not None:
        assert (filled["train_batch_size"], filled["bf16"]) == (256, {"enabled": True})


def test_the_json_of_v2_agrees_with_its_yaml(tmp_path: Path) -> None:
    launch = yaml.safe_load((REPOSITORY / "experiments" / "accelerate" / "zero2.yaml").read_text())
    launch["deepspeed_config"]["deepspeed_config_file"] = "deepspeed_configs/v2.json"
    file = tmp_path / "v2.yaml"
    file.write_text(yaml.safe_dump(launch))
    filled = check_shipped("v2", file)
    assert filled is not None
    assert {"optimizer", "scheduler"}.isdisjoint(filled)


@pytest.mark.parametrize("recipe", list_group_options()["recipes"])
def test_every_recipe_passes_the_checks_with_demo_and_v2(recipe: str, tmp_path: Path) -> None:
    more = []
    if recipe == "beyond_urls_quality":  # the shipped sample has no quality
        record = {"key": "quality", "type": "global", "value": "0.73"}
        line = json.dumps({"text": "A page.", "metadata_quality": [record]})
        (tmp_path / "rated.jsonl").write_text(line + "\n")
        more = [f"data_config.train_file={tmp_path}/rated.jsonl"]
    for config_name, launch_file in (("demo", "cpu_zero2"), ("v2", "zero2")):
        file = REPOSITORY / "experiments" / "accelerate" / f"{launch_file}.yaml"
        assert check_shipped(config_name, file, f"+recipes={recipe}", *more) is not None


@pytest.mark.long
def test_every_configuration_is_composed_with_its_schema() -> None:
    schemas = [schema for _, schema, _ in PROGRAMS]
    for file in sorted((REPOSITORY / "hydra_configs").glob("*.yaml")):
        schema = choose_schema([], schemas, file.stem)
        assert schema is not RunConfig, f"{file.name} names no schema of PROGRAMS"
        assert isinstance(compose_command_line(schema, file.stem), schema)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama_tiny", 1_328_256),
        ("llama_0.6b", 665_371_648),
        ("llama_1.6b", 1_639_024_640),
        ("llama_3b", 3_606_752_256),
        ("llama_8b", 8_030_261_248),  # as published for Llama 3 8B
    ],
)
def test_models_have_the_published_number_of_parameters(model: str, parameters: int) -> None:
    config = compose_command_line(CausalLMConfig, "v2", (f"model={model}",))
    with torch.device("meta"):
        shape = AutoConfig.from_pretrained(config.model_config_file)
        built = AutoModelForCausalLM.from_config(shape)
    assert built.num_parameters() == parameters


@pytest.mark.parametrize("file", JSON_FILES, ids=lambda path: path.stem)
def test_shared_deepspeed_keys_are_auto(file: Path) -> None:
    document = json.loads(file.read_text())
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu")
    keys += ("gradient_accumulation_steps", "gradient_clipping")
    assert [document[key] for key in keys] == [AUTO] * 4


def test_v2_has_the_values_that_users_rely_on() -> None:
    config = compose_command_line(CausalLMConfig, "v2")
    assert config.data_config.metadata_config.metadata_probability == 0.5
    assert config.data_config.metadata_config.metadata_list[0] == "html"
    assert config.gradient_checkpointing
    assert config.extra_steps_to_eval_save_at == [2]


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("html_v2.yaml", "html_parser_config"),
        ("weights_v2.yaml", "random_sample_metadata_weights"),
    ],
)
def test_each_part_fits_its_key(file: str, key: str) -> None:
    """As in the docstring of `from_file`, and by v2."""
    part = REPOSITORY / "hydra_configs" / "parts" / file
    override = f"data_config.metadata_config.{key}=${{from_file:parts/{file}}}"
    metadata = compose_command_line(CausalLMConfig, "demo", [override]).data_config.metadata_config
    assert getattr(metadata, key) == getattr(
        compose_command_line(CausalLMConfig, "v2").data_config.metadata_config, key
    )
    assert f"for {key}" in part.read_text().splitlines()[0]


def test_every_part_is_tested() -> None:
    parts = REPOSITORY / "hydra_configs" / "parts"
    assert sorted(path.name for path in parts.iterdir()) == [
        "html_v2.yaml", "spelling_sources.yaml", "weights_v2.yaml",
    ]  # fmt: skip
    assert "parts" not in list_group_options()

"""The configuration of a language model: of its run, of its recipe, or the default one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import checkpoints
from bsmeta.tasks.causal_lm.checkpoints import has_other_data, load_model, read_run_config
from bsmeta.tasks.causal_lm.model_card import write_card
from bsmeta.tasks.checkpoints import RECIPE_KEYS, Location, locate_model, read_recipe
from tests.conftest import REPOSITORY
from tests.tasks.run_folders import write_held_out, write_run_folder

RECIPE = "data_config: {metadata_config: {metadata_list: [url], max_seq_len: 77}}\n"


def test_a_model_on_the_hub_brings_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, file: str) -> str:
        assert (name, file) == ("owner/name", "metadata.yaml")
        (tmp_path / file).write_text(RECIPE)
        return str(tmp_path / file)

    monkeypatch.setattr(checkpoints, "hf_hub_download", download)
    files_of_model = locate_model("hf://owner/name")
    assert (files_of_model.model, files_of_model.is_on_hub, files_of_model.has_run_config) == (
        "owner/name",
        True,
        False,
    )
    metadata = read_run_config(files_of_model, None, {}).data_config.metadata_config
    assert (metadata.metadata_list, metadata.max_seq_len) == (["url"], 77)


def test_a_model_determines_only_how_its_metadata_is_rendered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not determine which data is read, where it is cached, or where anything is sent."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metadata.yaml").write_text(
        "push_to_hub: owner/name\n"
        "data_config:\n"
        "  validation_file: s3://bucket/shard.jsonl.gz\n"
        "  cache_dir: /cache\n"
        "  row_budget: text\n"
        "  metadata_config: {metadata_list: [url], metadata_sep: ' / '}\n"
    )
    config = read_run_config(locate_model(str(tmp_path)), None, {"seed": 7})
    metadata = MetadataConfig(metadata_list=["url"], metadata_sep=" / ")
    data = DataConfig(row_budget="text", metadata_config=metadata)
    assert config == CausalLMConfig(seed=7, data_config=data)
    assert (
        '"data_config.validation_file, data_config.cache_dir, push_to_hub" ignored, because a '
        "model says only how its metadata is rendered"
    ) in caplog.text


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "{a: ${seed}}"])
def test_interpolations_in_the_recipe_of_a_model_are_not_resolved(
    value: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metadata.yaml").write_text(
        f"data_config:\n  metadata_config:\n    metadata_sep: '{value}'\n"
    )
    with pytest.raises(ConfigurationError, match=r"metadata_config\.metadata_sep in .*finished"):
        read_run_config(locate_model(str(tmp_path)), None, {})


def test_the_recipe_of_an_exported_model_round_trips(tmp_path: Path) -> None:
    metadata = MetadataConfig(
        metadata_list=["title"], metadata_templates={"title": "${value}{value}"}
    )
    data = DataConfig(row_budget="text", row_metadata_budget=9, metadata_config=metadata)
    config = CausalLMConfig(data_config=data)
    write_card(config, tmp_path / "metrics.jsonl", [], tmp_path)
    assert set(read_recipe(tmp_path / "metadata.yaml")["data_config"]) == set(RECIPE_KEYS)
    (tmp_path / "config.json").write_text("{}")
    assert read_run_config(locate_model(str(tmp_path)), None, {}).data_config == config.data_config


@pytest.mark.parametrize("content", ["data_config: 3\n", "data_config: {metadata_config: [1]}\n"])
def test_a_malformed_recipe_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metadata.yaml").write_text(content)
    with pytest.raises(ConfigurationError, match="data_config.* in .*metadata.yaml"):
        read_run_config(locate_model(str(tmp_path)), None, {})


def test_an_export_without_its_recipe_is_refused(tmp_path: Path) -> None:
    """Its metadata would be rendered with the default settings, and not as in training."""
    config_file = tmp_path / "config.json"
    config_file.write_text('{"model_type": "gpt2"}')
    assert read_run_config(locate_model(str(tmp_path)), None, {}) == CausalLMConfig()

    config_file.write_text('{"model_type": "gpt2", "tokenizer_xxh3": "0123"}')
    with pytest.raises(ConfigurationError) as error:
        read_run_config(locate_model(str(tmp_path)), None, {})
    assert str(error.value) == (
        f"checkpoint={tmp_path}: neither metadata.yaml nor the config.yaml of its run is beside "
        "the model, although bsmeta has exported it (tokenizer_xxh3 in its config.json), so it is "
        "unknown how its metadata was rendered. Copy metadata.yaml from the folder that the model "
        "comes from, or try again with a connection to the Hub; evaluate and generate also take "
        "training_config=FILE"
    )


def test_a_run_whose_config_renders_other_metadata_than_its_model_is_refused(
    tmp_path: Path,
) -> None:
    def make_config(types: list[str], separator: str) -> CausalLMConfig:
        metadata = MetadataConfig(metadata_list=types, metadata_sep=separator)
        return CausalLMConfig(data_config=DataConfig(metadata_config=metadata))

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    run_config = tmp_path / "config.yaml"
    trained = make_config(["url", "title"], " | ")
    write_card(trained, tmp_path / "metrics.jsonl", [], model)
    run_config.write_text(format_yaml(trained))
    location = locate_model(str(tmp_path))
    assert read_run_config(location, None, {}) == trained
    overridden = {"data_config": {"metadata_config": {"metadata_sep": "; "}}}
    assert read_run_config(location, None, overridden) == make_config(["url", "title"], "; ")

    run_config.write_text(format_yaml(make_config(["url"], "; ")))
    with pytest.raises(ConfigurationError) as error:
        read_run_config(location, None, {})
    assert str(error.value) == (
        f"{run_config} renders metadata in another way than {model}/metadata.yaml, which was saved "
        "with the weights. Restore the file that was changed; to evaluate other settings than "
        "those of training, use overrides:\n"
        "  data_config.metadata_config.metadata_list: ['url', 'title'] in metadata.yaml, "
        "['url'] in config.yaml\n"
        "  data_config.metadata_config.metadata_sep:  |  in metadata.yaml, ;  in config.yaml"
    )
    assert read_run_config(location, str(run_config), {}) == make_config(["url"], "; ")


def test_metadata_with_special_tokens_that_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    """They would be encoded as ordinary text, which no training has seen."""
    shape = LlamaConfig(
        vocab_size=4096, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    shutil.copytree(REPOSITORY / "examples" / "tokenizer", tmp_path, dirs_exist_ok=True)

    def load(token: str) -> PreTrainedTokenizerBase:
        metadata = MetadataConfig(metadata_boundary_token=token)
        config = CausalLMConfig(data_config=DataConfig(metadata_config=metadata))
        location = locate_model(str(tmp_path))
        return load_model(location, config, "float32", torch.device("cpu"))[1]

    assert len(load("<|endoftext|>")) == 4096
    with pytest.raises(ConfigurationError) as error:
        load("<|body|>")
    assert str(error.value) == (
        "data_config.metadata_config: its special tokens '<|body|>' are not in the tokenizer of "
        "the model, which was trained without them; expected the metadata settings and types of "
        "the training"
    )


def test_the_report_of_a_run_is_only_replaced_by_one_on_the_same_data(tmp_path: Path) -> None:
    own = write_held_out(tmp_path / "x/dev.jsonl")
    location = write_run_folder(tmp_path / "run", str(own))

    def is_other(file: Path | None) -> bool:
        name = None if file is None else str(file)
        return has_other_data(EvaluateConfig(validation_file=name), location)

    assert not is_other(None)
    assert not is_other(own)
    assert is_other(write_held_out(tmp_path / "y/dev.jsonl"))
    assert is_other(write_held_out(tmp_path / "x/test.jsonl"))
    own.rename(tmp_path / "dev.jsonl")
    assert not is_other(tmp_path / "dev.jsonl")


def test_the_held_out_file_of_a_run_is_found_in_its_data_set(tmp_path: Path) -> None:
    own, other = (
        write_held_out(tmp_path / "data/dev.jsonl"),
        write_held_out(tmp_path / "other/dev.jsonl"),
    )
    local = write_run_folder(tmp_path / "local", "dev.jsonl", str(tmp_path / "data"))
    hub = write_run_folder(tmp_path / "hub", "dev.jsonl", "owner/pages")

    def is_other(file: object, location: Location) -> bool:
        return has_other_data(EvaluateConfig(validation_file=str(file)), location)

    assert not is_other(own, local)
    assert not is_other("dev.jsonl", local)
    assert is_other(other, local)
    assert not is_other("hf://datasets/owner/pages/dev.jsonl", hub)
    assert is_other("hf://datasets/owner/more/dev.jsonl", hub)
    assert is_other(other, hub)

"""Models, tokenizers and shapes are loaded, and code that they come with is not run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bsmeta.core import model_files
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import UnsafeNameError
from bsmeta.core.model_files import (
    create_model,
    read_model,
    read_model_and_report,
    read_model_config,
    read_tokenizer,
    refuse_unsafe_model,
)
from bsmeta.core.parsing import has_surrogates
from tests.conftest import REPOSITORY
from tests.core.hostile_names import HOSTILE_NAMES
from tests.waiting import STUCK_S

TOKENIZER = REPOSITORY / "examples" / "tokenizer"
AUTO_MAP = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
SHAPE = {"vocab_size": 4096, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 1}  # fmt: skip

LOADERS: dict[str, Callable[[Path], object]] = {
    "read_model_config": read_model_config,
    "read_tokenizer": read_tokenizer,
    "read_model": lambda folder: read_model(AutoModelForCausalLM, folder),
    "read_model_and_report": lambda folder: read_model_and_report(AutoModelForCausalLM, folder),
    "refuse_unsafe_model": refuse_unsafe_model,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with its tokenizer, and code beside it."""
    folder = tmp_path / "model"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    marker = tmp_path / "was_run"
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    return folder


def change_json(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))


def write_index(file: Path, part: str) -> None:
    weights = {"lm_head.weight": "model.safetensors", "model.norm.weight": part}
    file.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}))


def test_a_model_without_code_is_loaded(folder: Path) -> None:
    assert read_model_config(folder).model_type == "llama"
    assert len(read_tokenizer(folder)) > 1000
    model = read_model(AutoModelForCausalLM, folder)
    assert type(model) is LlamaForCausalLM
    model, report = read_model_and_report(AutoModelForCausalLM, folder)
    assert (type(model), list(report["missing_keys"])) == (LlamaForCausalLM, [])
    assert type(create_model(AutoModelForCausalLM, read_model_config(folder))) is LlamaForCausalLM


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("model_type", ["llama", "its_own"])
@pytest.mark.parametrize(
    "file",
    [
        "config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json",
        "preprocessor_config.json", "config.5.0.0.json",
    ],
)  # fmt: skip
def test_code_is_refused_by_name(loader: str, model_type: str, file: str, folder: Path) -> None:
    """Also if transformers has its own class and would ignore the entry."""
    change_json(folder / "config.json", model_type=model_type)
    change_json(folder / file, auto_map=AUTO_MAP)
    with pytest.raises(ConfigurationError) as error:
        LOADERS[loader](folder)
    assert str(error.value) == (
        f"{folder / file}: auto_map asks to run Python code that comes with the model: "
        '{"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}. bsmeta never runs '
        "such code. Expected classes that transformers itself has: if model_type and "
        "tokenizer_class name some, delete auto_map; otherwise convert the model, or choose another"
    )
    assert not (folder.parent / "was_run").exists()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"text_config": {"auto_map": AUTO_MAP}}, "auto_map asks to run Python code"),
        ({"parts": [{"auto_map": ["code.Tokenizer", None]}]}, "auto_map asks to run Python code"),
        ({"attn_implementation": "owner/kernel"}, "attn_implementation asks for a kernel of the"),
        ({"_attn_implementation": "owner/kernel:f"}, "asks for a kernel of the Hub, compiled code"),
        ({"attn_implementation": {"": "owner/kernel"}}, "asks for a kernel of the Hub"),
        ({"megatron_core": "code"}, 'asks to import the Python module "code"; expected megatron.'),
    ],
)
def test_code_is_refused_at_any_depth(values: Mapping[str, Any], reason: str, folder: Path) -> None:
    change_json(folder / "config.json", **values)
    with pytest.raises(ConfigurationError, match=reason):
        read_model(AutoModelForCausalLM, folder)


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_an_index_that_names_files_elsewhere_is_refused(
    name: str, index: str, folder: Path
) -> None:
    """transformers would join any name to the folder."""
    write_index(folder / index, name)
    with pytest.raises((UnsafeNameError, ConfigurationError)) as error:
        read_model(AutoModelForCausalLM, folder)
    expected = f"{folder / index}: the name {name!r} cannot be used for a file in {folder}"
    if has_surrogates(name):
        expected = f"{folder / index}: a text with half of a surrogate pair"
    assert str(error.value).startswith(expected)


def test_a_model_of_two_parts_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Also from the cache of the Hub, where every part is a link."""
    model, parts = read_model(AutoModelForCausalLM, folder), tmp_path / "parts"
    model.save_pretrained(parts, max_shard_size="100KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 1
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in parts.iterdir():
        (linked / file.name).symlink_to(file)
    for source in (parts, linked):
        read = read_model(AutoModelForCausalLM, source).state_dict()
        assert all(torch.equal(read[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_an_adapter_that_names_a_base_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    change_json(tmp_path / "adapter_config.json", peft_type="LORA", base_model_name_or_path=name)
    with pytest.raises(ConfigurationError) as error:
        read_model(AutoModelForCausalLM, tmp_path)
    file = tmp_path / "adapter_config.json"
    expected = f"{file}: base_model_name_or_path={name!r} cannot be used: "
    if has_surrogates(name):
        expected = f"{file}: a text with half of a surrogate pair"
    assert str(error.value).startswith(expected)


def test_the_base_of_an_adapter_is_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    change_json(adapter / "adapter_config.json", peft_type="LORA", base_model_name_or_path="model")
    change_json(folder / "config.json", auto_map=AUTO_MAP)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^model/config\.json: auto_map asks to run"):
        read_model(AutoModelForCausalLM, adapter)


def test_a_whole_model_may_record_the_base_that_it_was_adapted_from(folder: Path) -> None:
    """transformers does not read that base then."""
    name = "/home/me/llama"
    change_json(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path=name)
    refuse_unsafe_model(folder)


@pytest.mark.parametrize(
    "content", ['{"weight_map": 5}', "[]", '{"metadata": {}, "weight_map": {"a": 5}}']
)
def test_an_index_of_another_form_is_refused_with_the_folder(content: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(DataError, match=r"model: one of its files is damaged"):
        read_model(AutoModelForCausalLM, folder)


def test_a_shape_with_code_is_refused(folder: Path) -> None:
    shape = LlamaConfig(**SHAPE, auto_map=AUTO_MAP)
    with pytest.raises(ConfigurationError, match=r"^the shape of the model: auto_map asks to run"):
        create_model(AutoModelForCausalLM, shape)


def test_a_config_file_alone_is_checked(tmp_path: Path) -> None:
    change_json(tmp_path / "shape.json", model_type="llama", auto_map=AUTO_MAP)
    with pytest.raises(ConfigurationError, match=r"shape\.json: auto_map asks to run"):
        read_model_config(tmp_path / "shape.json")


@pytest.mark.long
def test_a_model_of_the_hub_with_code_is_refused(tmp_path: Path) -> None:
    """The model is in the cache: there is no network. The message names the copy to change."""
    model = tmp_path / "models--owner--name"
    (model / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("a" * 40)
    change_json(
        model / "snapshots" / ("a" * 40) / "config.json", model_type="own", auto_map=AUTO_MAP
    )
    program = (
        "from bsmeta.core.model_files import read_model_config; read_model_config('owner/name')"
    )
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = run_program(program, **environment)
    assert done.returncode == 1
    assert (
        "config.json: auto_map asks to run Python code that comes with the model: "
        '{"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}' in done.stderr
    )
    assert "in a copy (hf download owner/name --local-dir FOLDER), and name that" in done.stderr


# Loads a tokenizer from files that have changed since they were checked.
CHANGED_SINCE = """
import shutil, sys
from pathlib import Path
from transformers import AutoTokenizer
from bsmeta.core.model_files import refuse_unsafe_model
folder, other = map(Path, sys.argv[1:])
refuse_unsafe_model(folder)
shutil.copytree(other, folder, dirs_exist_ok=True)
AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
"""


@pytest.mark.long
@pytest.mark.parametrize("tokenizer_class", [None, "AutoModelForCausalLM", "AutoConfig"])
def test_transformers_never_asks_to_run_code(
    tokenizer_class: str | None, folder: Path, tmp_path: Path
) -> None:
    """transformers drops `trust_remote_code` for a tokenizer_class that is not a tokenizer."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    change_json(other / "config.json", model_type="its_own", auto_map=AUTO_MAP)
    change_json(other / "tokenizer_config.json", tokenizer_class=tokenizer_class)
    if tokenizer_class is None:
        tokenizer = {"AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"]}
        change_json(other / "tokenizer_config.json", auto_map=tokenizer)
    modules = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = run_program(CHANGED_SINCE, str(folder), str(other), **modules)
    assert "[y/N]" not in done.stdout + done.stderr
    assert not (tmp_path / "was_run").exists()


def test_a_tokenizer_class_that_is_not_a_tokenizer_is_refused(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", tokenizer_class="AutoConfig")
    expected = "tokenizer_class of its tokenizer_config.json names no tokenizer, but a LlamaConfig"
    with pytest.raises(DataError, match=expected):
        read_tokenizer(folder)


def test_a_tokenizer_that_draws_tokens_at_random_is_refused(folder: Path) -> None:
    """With BPE-dropout, the same text has other tokens in every call."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["dropout"] = 0.25
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError) as error:
        read_tokenizer(folder)
    assert str(error.value) == (
        f"{folder}: dropout=0.25 in the model of its tokenizer.json draws the tokens of a text at "
        "random, so every call would have other tokens; expected a tokenizer that always returns "
        'the same tokens: set "dropout" to null there'
    )

    content["model"]["dropout"] = 0.0
    file.write_text(json.dumps(content))
    assert read_tokenizer(folder)("a")["input_ids"] == [65]


def test_values_that_make_transformers_fail_are_reported_as_damage(folder: Path) -> None:
    change_json(folder / "config.json", num_attention_heads=0)
    with pytest.raises(DataError, match=r"model: one of its files is damaged \(ZeroDivisionError"):
        read_model(AutoModelForCausalLM, folder)


def test_a_panic_of_the_tokenizer_is_an_error(folder: Path) -> None:
    """A Rust panic is not an Exception, and would end the program with a stack trace."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["continuing_subword_prefix"] = "x" * 99
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="one of its files is damaged"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ('{"a": ' * 300 + '{"auto_map": {"AutoConfig": "m.C"}}' + "}" * 300, "nested too deeply"),
        (f'{{"a": {"9" * 400}, "auto_map": {{"AutoConfig": "m.C"}}}}', "an integer that is larger"),
    ],
)
def test_extreme_values_are_refused(content: str, reason: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=rf"config\.json: {reason}"):
        read_model_config(folder)


def test_oversized_files_are_not_read(folder: Path) -> None:
    with (folder / "tokenizer.json").open("ab") as file:
        file.truncate(model_files.MAX_TEXT_BYTES + 1)  # of which nothing is on the disk
    with pytest.raises(ConfigurationError) as error:
        read_tokenizer(folder)
    assert str(error.value) == (
        f"{folder / 'tokenizer.json'}: has 536,870,913 bytes; expected at most 536,870,912 in a "
        "file of JSON or text beside a model"
    )


@pytest.mark.parametrize("name", ["adapter_config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_a_model_folder_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{tmp_path}/{name} is a pipe, a socket or a device; "):
        refuse_unsafe_model(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}/{name} is a pipe, a socket or a device; "):
        read_model_config(tmp_path / name)


def run_program(
    program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python and answers "y" to every question."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input="y\n" * 9, env={**os.environ, **environment},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=STUCK_S, check=False,
    )  # fmt: skip

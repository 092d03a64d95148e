"""Adapters: what they train, exact resumes, and merged exports."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.lora import merge_adapters
from bsmeta.models.manifest import write_model_manifest
from bsmeta.models.pretrained import record_tokenizer
from bsmeta.tasks.causal_lm.checks import find_value_problems
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.conftest import REPOSITORY, run_warm
from tests.data.helpers import write_shards
from tests.faults.conftest import RESUME, same_run
from tests.models.lora_shape import SHAPE

RANK = 4


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a small model and its tokenizer."""
    shape = AutoConfig.from_pretrained(REPOSITORY / "examples/model/config.json", **SHAPE)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer").save_pretrained(
        tmp_path / "base"
    )
    return tmp_path / "base"


def demo(base: Path, *overrides: str) -> CausalLMConfig:
    own = ("model_config_file=null", "tokenizer_name=null", f"model_name={base}")
    return compose_command_line(CausalLMConfig, "demo", (*own, *overrides))


def test_adapters_and_new_embeddings_are_trained(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The adapters are trained, and with new special tokens the embeddings."""
    caplog.set_level(logging.INFO)
    keys = ("lora.rank=4", "lora.targets=[q_proj,v_proj]")
    model = CausalLanguageModel(demo(base, *keys)).build_model()
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {
        f"model.layers.{layer}.self_attn.{name}.lora_{part}.default.weight"
        for layer in (0, 1)
        for name in ("q_proj", "v_proj")
        for part in "AB"
    }
    assert "embeddings are trained" not in caplog.text
    more = "+recipes=beyond_urls_meta_tokens"
    model = CausalLanguageModel(demo(base, *keys, more)).build_model()
    more_trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert more_trained == trained | {"model.embed_tokens.weight"}
    assert "the embeddings are trained, too, because 5 tokens are new" in caplog.text


def test_missing_target_layers_are_refused(base: Path) -> None:
    config = demo(base, "lora.rank=4", "lora.targets=[c_attn]")
    with pytest.raises(ConfigurationError, match=r"lora.targets=\['c_attn'\]"):
        CausalLanguageModel(config).build_model()


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        (["lora.dropout=0.1"], "lora.dropout", "there are no adapters"),
        (["lora.targets=[q_proj]"], "lora.targets", "there are no adapters"),
        (
            ["lora.rank=4", "model_config_file=${repo:examples/model/config.json}"],
            "lora.rank",
            "a model whose weights are random",
        ),
    ],
)
def test_keys_without_effect_are_refused(
    base: Path, keys: list[str], key: str, expected: str
) -> None:
    (problem,) = find_value_problems(demo(base, *keys))
    assert problem.key == key
    assert expected in problem.expected


def test_adapters_are_merged_before_the_weights_are_rounded(base: Path, tmp_path: Path) -> None:
    """Each weight is rounded once, after its change has been added."""
    task = CausalLanguageModel(demo(base, "lora.rank=4", "export_dtype=bfloat16"))
    model = task.build_model()
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            weight.data.normal_(std=0.02)
    merged = merge_adapters(model, model.state_dict())
    task.export(model, model.state_dict(), tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert exported.dtype == torch.bfloat16
    for name, weight in exported.state_dict().items():
        assert torch.equal(weight, merged[name].bfloat16()), name


def test_the_base_may_be_the_export_of_a_run_and_have_fewer_tokens(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens of `tokenizer_name` that are new to the base make the embeddings trainable."""
    task = CausalLanguageModel(demo(base, "lora.rank=4", "export_dtype=bfloat16"))
    model = task.build_model()
    task.export(model, model.state_dict(), tmp_path / "model")
    record_tokenizer(tmp_path / "model")
    write_model_manifest(tmp_path / "model")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_tokens(["<first>", "<second>"])
    tokenizer.save_pretrained(tmp_path / "wider")
    caplog.set_level(logging.INFO)
    keys = ("lora.rank=4", f"tokenizer_name={tmp_path / 'wider'}")
    model = CausalLanguageModel(demo(tmp_path / "model", *keys)).build_model()
    assert model.get_parameter("model.embed_tokens.weight").requires_grad
    assert "because 2 tokens are new to the model (<first>, <second>, ...)" in caplog.text
    embeddings = model.get_input_embeddings().weight.detach()
    mean = embeddings[: len(tokenizer) - 2].mean(0).expand(2, -1)
    torch.testing.assert_close(embeddings[len(tokenizer) - 2 :], mean, rtol=0, atol=1e-4)


def list_keys(base: Path, data: Path) -> list[str]:
    """Keys of a run of eight steps that adapts `base` to shards in `data`."""
    if not data.exists():
        data.mkdir()
        write_shards(data, [10, 14, 9, 12])
    return [
        "max_train_steps=8",
        "num_warmup_steps=2",
        "save_steps=1",
        "keep_last_checkpoints=0",
        "eval_steps=0",
        "learning_rate=0.01",
        "trackers=[]",
        "model_config_file=null",
        "tokenizer_name=null",
        f"model_name={base}",
        f"lora.rank={RANK}",
        f"data_config.train_file={data}",
        "data_config.validation_file=null",
        "data_config.num_streams=4",
        "data_config.window_documents=4",
        "data_config.metadata_config.max_seq_len=64",
    ]


def write_launch_file(folder: Path, engine: str) -> Path:
    """Returns the launch file of two CPU processes under an engine, written for ZeRO 1 and 3."""
    shipped = REPOSITORY / "experiments/accelerate"
    if engine in ("cpu", "cpu_zero2", "cpu_fsdp2"):
        return shipped / f"{engine}.yaml"

    deepspeed = json.loads((REPOSITORY / "deepspeed_configs/cpu.json").read_text())
    stage = int(engine.removeprefix("zero"))
    deepspeed["zero_optimization"]["stage"] = stage
    if stage == 3:
        deepspeed["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    (folder / "deepspeed.json").write_text(json.dumps(deepspeed))

    launch = (shipped / "cpu_zero2.yaml").read_text()
    launch = launch.replace("deepspeed_configs/cpu.json", str(folder / "deepspeed.json"))
    launch = launch.replace("zero3_init_flag: false", f"zero3_init_flag: {stage == 3}".lower())
    (folder / "launch.yaml").write_text(launch)
    return folder / "launch.yaml"


def train(launch_file: Path, out_dir: Path, *keys: str, processes: int = 2) -> tuple[int, str]:
    """Trains; returns the exit code of the launcher, and the end of its errors."""
    launch = ("-m", "accelerate.commands.launch", "--config_file", str(launch_file))
    number = ("--num_processes", str(processes))
    program = (REPOSITORY / "bsmeta/train.py", "--config-name", "demo", f"out_dir={out_dir}")
    done = run_warm([sys.executable, *launch, *number, *map(str, program), *keys])
    return done.returncode, done.stderr[-6000:]


def copy_until(whole: Path, copy: Path, step: int) -> None:
    """Copies a run as if it had been killed after a step."""
    shutil.copytree(whole, copy)
    for checkpoint in copy.glob("checkpoint-*step"):
        if int(checkpoint.name.split("-")[1].removesuffix("step")) > step:
            shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    ("engine", "more"),
    [
        ("cpu", []),
        pytest.param("cpu", ["async_save=true"], marks=pytest.mark.slow),
        pytest.param("zero1", [], marks=pytest.mark.slow),
        pytest.param("cpu_zero2", [], marks=pytest.mark.slow),
        pytest.param("cpu_zero2", ["async_save=true"], marks=pytest.mark.slow),
        pytest.param("zero3", [], marks=pytest.mark.slow),
        pytest.param("zero3", ["async_save=true"], marks=pytest.mark.slow),
        pytest.param("cpu_fsdp2", [], marks=pytest.mark.slow),
        pytest.param("cpu_fsdp2", ["async_save=true"], marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_run(
    base: Path, tmp_path: Path, engine: str, more: list[str]
) -> None:
    """Its checkpoints have no frozen weights, its model has them all."""
    launch_file = write_launch_file(tmp_path, engine)
    keys = [*list_keys(base, tmp_path / "shards"), "lora.dropout=0.1", *more]
    code, errors = train(launch_file, tmp_path / "whole", *keys)
    assert code == 0, errors
    copy_until(tmp_path / "whole", tmp_path / "again", 3)
    code, errors = train(launch_file, tmp_path / "again", *keys, RESUME)
    assert code == 0, errors
    assert same_run(tmp_path / "again", tmp_path / "whole")

    saved = tmp_path / "whole/checkpoint-3step"
    # With the frozen weights, it would be larger than their file.
    assert measure_bytes(saved / "state") < (base / "model.safetensors").stat().st_size
    exported = AutoModelForCausalLM.from_pretrained(saved / "model").state_dict()
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert exported.keys() == before.keys()
    assert torch.equal(exported["model.embed_tokens.weight"], before["model.embed_tokens.weight"])

    after = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/model").state_dict()
    assert before.keys() == after.keys()
    ranks = {name: int(torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-4))
             for name in after if before[name].ndim == 2}  # fmt: skip
    adapted = {name for name, rank in ranks.items() if rank}
    assert adapted == {name for name in ranks if "_proj." in name}
    assert max(ranks.values()) == RANK
    manifest = json.loads((tmp_path / "whole/model/config.json").read_text())
    assert manifest["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cpu_zero2", "zero3"])
def test_a_run_continues_on_another_number_of_processes_under_zero(
    base: Path, tmp_path: Path, engine: str
) -> None:
    """The checkpoint has only the trained weights; the base is loaded again."""
    launch_file = write_launch_file(tmp_path, engine)
    keys = list_keys(base, tmp_path / "shards")
    code, errors = train(launch_file, tmp_path / "whole", *keys)
    assert code == 0, errors
    copy_until(tmp_path / "whole", tmp_path / "again", 3)
    same_batch = "gradient_accumulation_steps=4"  # the configuration has 2, for two processes
    code, errors = train(launch_file, tmp_path / "again", *keys, RESUME, same_batch, processes=1)
    assert code == 0, errors

    whole, again, saved = (
        AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
        for folder in ("whole/model", "again/model", "again/checkpoint-3step/model")
    )
    assert whole.keys() == again.keys()
    # The steps after the checkpoint have changed the weights by more than the tolerance.
    assert max(float((whole[name] - saved[name]).abs().max()) for name in whole) > 1e-2
    for name in whole:
        torch.testing.assert_close(again[name], whole[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("engine", ["cpu", "cpu_zero2", "zero3", "cpu_fsdp2"])
def test_every_engine_adds_the_same_tokens_and_exports_the_same_weights(
    tmp_path: Path, engine: str, tied: bool
) -> None:
    """The new tokens take rows of the padding; tied embeddings are written once."""
    changes = {**SHAPE, "vocab_size": 4224, "tie_word_embeddings": tied}
    shape = AutoConfig.from_pretrained(REPOSITORY / "examples/model/config.json", **changes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / "examples/tokenizer")
    tokenizer.save_pretrained(tmp_path / "base")
    num_trained = len(tokenizer)
    tokenizer.add_tokens(["<first>", "<second>"])
    tokenizer.save_pretrained(tmp_path / "wider")

    keys = [
        *list_keys(tmp_path / "base", tmp_path / "shards"),
        "lora.rank=0",
        f"tokenizer_name={tmp_path / 'wider'}",
        "export_dtype=bfloat16",
        "max_train_steps=1",
        "num_warmup_steps=0",
        "learning_rate=1e-9",
    ]
    code, errors = train(write_launch_file(tmp_path, engine), tmp_path / "run", *keys)
    assert code == 0, errors

    base = load_file(tmp_path / "base/model.safetensors")
    for exported in ("run/model", "run/checkpoint-1step/model"):
        weights = load_file(tmp_path / exported / "model.safetensors")
        assert weights.keys() == base.keys()
        for name, weight in weights.items():
            assert weight.dtype == torch.bfloat16
            expected = base[name].clone()
            if len(expected) == 4224:
                expected[num_trained:] = expected[:num_trained].mean(0)
            torch.testing.assert_close(weight.float(), expected, rtol=2**-8, atol=1e-5, msg=name)


def measure_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

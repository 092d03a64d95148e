"""Broken configurations: which keys the one message must name, and which fix it must give.

Each goes through `train.py`'s own `main` to its exit code and its output; building the
model would fail the test. `test_refusals.py` does the same from the command line on.
"""

from __future__ import annotations

import copy
import dataclasses
import glob
import json
import re
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from bsmeta import train
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import run as checks
from bsmeta.config.checks.run import check_launch
from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.config.launch import Launch
from bsmeta.config.schema import ModelCardConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.process import run_and_report
from bsmeta.tasks import BUILT_IN, TASKS
from tests.conftest import REPOSITORY

SAMPLE = str(REPOSITORY / "examples" / "webdocs" / "*.jsonl.gz")
SHARDS = sorted(glob.glob(SAMPLE))
# A configuration, a DeepSpeed JSON and a launch that agree: 4 x 8 x 2 = 64 sequences.
HYDRA: dict[str, Any] = {
    "data_config": DataConfig(train_file=SAMPLE, per_device_train_batch_size=4, num_streams=64),
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 0.5,
    "learning_rate": 2e-4,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "num_warmup_steps": 100,
    "max_train_steps": 1000,
    "mixed_precision": "bf16",
}
JSON: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 2e-4, "betas": "auto", "eps": 1e-8, "weight_decay": 0.1},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": 100,
            "warmup_type": "auto",
            "total_num_steps": 1000,
        },
    },
    "zero_optimization": {"stage": 2},
}
LAUNCH: dict[str, Any] = {
    "source": "launch.yaml",
    "num_processes": 2,
    "distributed_type": "DEEPSPEED",
}
DROP = object()
OWN_ADAM = {"zero_force_ds_cpu_optimizer": False}  # the trainer's AdamW under offload


def change_values(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of `base` with the values of dotted keys set, or dropped."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is DROP:
            *blocks, name = key.split(".")
            del reduce(getitem, blocks, result)[name]
        else:
            result = replace_values(result, {key: value})
    return result


def run_check(
    tmp_path: Path,
    hydra: dict[str, Any] | None = None,
    document: dict[str, Any] | str | None = None,
    launch: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Checks the three agreeing files with changes; returns the filled DeepSpeed configuration."""
    config, read_launch = make_config_and_launch(tmp_path, hydra, document, launch)
    run = check_launch(config, read_launch, TASKS["causal_lm"])
    assert (run.config, run.launch, run.entry) == (config, read_launch, TASKS["causal_lm"])
    return run.deepspeed_config


def make_config_and_launch(
    tmp_path: Path,
    hydra: dict[str, Any] | None,
    document: dict[str, Any] | str | None,
    launch: dict[str, Any] | None,
) -> tuple[CausalLMConfig, Launch]:
    """Returns configuration and launch after changing the three agreeing files."""
    file = tmp_path / "ds.json"
    whole = isinstance(document, str)
    file.write_text(document if whole else json.dumps(change_values(JSON, document or {})))
    arguments = {"deepspeed_config_file": file, **LAUNCH, **(launch or {})}
    values = {"out_dir": str(tmp_path / "run"), **change_values(HYDRA, hydra or {})}
    return CausalLMConfig(**values), Launch(**arguments)


@dataclass(frozen=True)
class Broken:
    """Changes to the three agreeing files; for each problem, its key and part of its fix."""

    fixes: dict[str, str]
    hydra: dict[str, Any] = field(default_factory=dict)
    json: dict[str, Any] | str = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)


BROKEN: dict[str, Broken] = {
    "accumulation in the JSON": Broken(
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=4"},
        json={"gradient_accumulation_steps": 4},
    ),
    "accumulation in Hydra": Broken(
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=8"},
        hydra={"gradient_accumulation_steps": 2},
        json={"train_batch_size": "auto"},
    ),
    "micro-batch in the JSON": Broken(
        {"train_micro_batch_size_per_gpu": "or pass data_config.per_device_train_batch_size=16"},
        json={"train_micro_batch_size_per_gpu": 16},
    ),
    "global batch for other processes": Broken(
        {"train_batch_size": 'write "auto" for train_batch_size'}, launch={"num_processes": 4}
    ),
    "accumulation missing": Broken(
        {"gradient_accumulation_steps": 'write "auto" for gradient_accumulation_steps'},
        json={"gradient_accumulation_steps": DROP},
    ),
    "clipping missing": Broken(
        {"gradient_clipping": 'write "auto" for gradient_clipping'},
        json={"gradient_clipping": DROP},
    ),
    "micro-batch missing": Broken(
        {"train_micro_batch_size_per_gpu": 'write "auto"'},
        json={"train_micro_batch_size_per_gpu": DROP},
    ),
    "accumulation misspelt": Broken(
        {"gradient_accumulation_step": "correct", "gradient_accumulation_steps": 'write "auto"'},
        json={"gradient_accumulation_steps": DROP, "gradient_accumulation_step": 8},
    ),
    "clipping in the JSON": Broken(
        {"gradient_clipping": "or pass gradient_clipping=1.0"}, json={"gradient_clipping": 1.0}
    ),
    "a number as text": Broken(
        {"gradient_accumulation_steps": 'write "auto"'}, json={"gradient_accumulation_steps": "8"}
    ),
    "a whole number as 8.0": Broken(
        {"gradient_accumulation_steps": 'write "auto"'}, json={"gradient_accumulation_steps": 8.0}
    ),
    "true as the number 1": Broken(
        {"gradient_accumulation_steps": 'write "auto"'},
        hydra={"gradient_accumulation_steps": 1},
        json={"gradient_accumulation_steps": True, "train_batch_size": "auto"},
    ),
    "bf16 off in the JSON": Broken(
        {"bf16.enabled": "or pass mixed_precision=no"}, json={"bf16.enabled": False}
    ),
    "bf16 missing": Broken({"bf16.enabled": 'write "auto"'}, json={"bf16": DROP}),
    "bf16 as text": Broken({"bf16.enabled": 'write "auto"'}, json={"bf16.enabled": "true"}),
    "fp16 in the JSON, bf16 in Hydra": Broken(
        {"fp16.enabled": "or pass mixed_precision=fp16"}, json={"fp16.enabled": True}
    ),
    "learning rate": Broken(
        {"optimizer.params.lr": "or pass learning_rate=0.001"}, json={"optimizer.params.lr": 1e-3}
    ),
    "betas": Broken(
        {"optimizer.params.betas": "auto"}, json={"optimizer.params.betas": [0.9, 0.999]}
    ),
    "an optimizer of whole matrices": Broken(
        {"optimizer_type": "optimizer_type=adamw"}, hydra={"optimizer_type": "muon"}
    ),
    "an optimizer that does not exist": Broken(
        {"optimizer_type": "optimizer_type=adamw"}, hydra={"optimizer_type": "adam"}
    ),
    "weight decay": Broken(
        {"optimizer.params.weight_decay": "or pass weight_decay=0.01"},
        json={"optimizer.params.weight_decay": 0.01},
    ),
    "another optimizer": Broken(
        {"optimizer.type": "delete the optimizer block"}, json={"optimizer.type": "OneBitAdam"}
    ),
    "Adam with coupled decay": Broken(
        {"optimizer.params.adam_w_mode": 'write "auto"'},
        json={"optimizer.params.adam_w_mode": False},
    ),
    "an unknown optimizer parameter": Broken(
        {"optimizer.params.momentum": "delete it"}, json={"optimizer.params.momentum": 0.9}
    ),
    "warm-up": Broken(
        {"scheduler.params.warmup_num_steps": "or pass num_warmup_steps=10"},
        json={"scheduler.params.warmup_num_steps": 10},
    ),
    "total steps": Broken(
        {"scheduler.params.total_num_steps": "or pass max_train_steps=2000"},
        json={"scheduler.params.total_num_steps": 2000},
    ),
    "warm-up on a logarithm": Broken(
        {"scheduler.params.warmup_type": 'write "auto"'},
        json={"scheduler.params.warmup_type": "log"},
    ),
    "peak of the schedule": Broken(
        {"scheduler.params.warmup_max_lr": 'write "auto"'},
        json={"scheduler.params.warmup_max_lr": 1e-3},
    ),
    "another schedule": Broken(
        {"scheduler.type": "or pass lr_scheduler_type=cosine"},
        json={"scheduler.type": "WarmupCosineLR"},
    ),
    "a cosine that ends elsewhere": Broken(
        {"scheduler.params.cos_min_ratio": "or pass min_learning_rate_ratio=0.2"},
        hydra={"lr_scheduler_type": "cosine", "min_learning_rate_ratio": 0.1},
        json={
            "scheduler": {
                "type": "WarmupCosineLR",
                "params": {
                    "total_num_steps": 1000,
                    "warmup_num_steps": 100,
                    "cos_min_ratio": 0.2,
                },
            }
        },
    ),
    "a last learning rate above the peak": Broken(
        {"min_learning_rate_ratio": "min_learning_rate_ratio=0.0, for example"},
        hydra={"min_learning_rate_ratio": 1.5},
        json={"scheduler": DROP},
    ),
    "no zero_optimization": Broken(
        {"zero_optimization": '"zero_optimization": {"stage": 2}'}, json={"zero_optimization": DROP}
    ),
    "no stage": Broken(
        {"zero_optimization.stage": 'write "stage": 2'}, json={"zero_optimization": {}}
    ),
    "the stage as text": Broken(
        {"zero_optimization.stage": 'write "stage": 2'}, json={"zero_optimization.stage": "2"}
    ),
    "ZeRO-3 that cannot be exported": Broken(
        {"zero_optimization.stage3_gather_16bit_weights_on_model_save": "true"},
        json={"zero_optimization.stage": 3},
    ),
    "a misspelt ZeRO key": Broken(
        {"zero_optimization.overlap_com": "correct the name"},
        json={"zero_optimization.overlap_com": True},
    ),
    "an old name of offload": Broken(
        {"zero_optimization.cpu_offload": "write offload_optimizer instead"},
        json={"zero_optimization.cpu_offload": True},
    ),
    "no norm of the gradient": Broken(
        {"zero_optimization.compute_grad_norm": "delete it"},
        json={"zero_optimization.compute_grad_norm": False},
    ),
    "offload at stage 0": Broken(
        {"zero_optimization.offload_optimizer": 'write "stage": 1'},
        json={
            "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}},
            **OWN_ADAM,
        },
    ),
    "parameters offloaded at stage 2": Broken(
        {"zero_optimization.offload_param": 'write "stage": 3'},
        json={"zero_optimization.offload_param": {"device": "cpu"}},
    ),
    "offload to a disk": Broken(
        {"zero_optimization.offload_optimizer.device": "with more processes, or lora.rank, each"},
        json={"zero_optimization.offload_optimizer": {"device": "nvme"}, **OWN_ADAM},
    ),
    "offload of a part": Broken(
        {"zero_optimization.offload_optimizer.ratio": "delete it"},
        json={
            "zero_optimization.stage": 3,
            "zero_optimization.stage3_gather_16bit_weights_on_model_save": True,
            "zero_optimization.offload_optimizer": {"device": "cpu", "ratio": 0.5},
            **OWN_ADAM,
        },
    ),
    "offload to an unknown device": Broken(
        {"zero_optimization.offload_optimizer.device": "delete"},
        json={"zero_optimization.offload_optimizer": {"device": "gpu"}},
    ),
    "offload without a GPU": Broken(
        {"zero_optimization.offload_optimizer": "deepspeed_configs/cpu.json"},
        json={"zero_optimization.offload_optimizer": {"device": "cpu"}, **OWN_ADAM},
        launch={"gpus": 0},
    ),
    "auto that nothing fills": Broken(
        {"zero_optimization.allgather_bucket_size": "write the value"},
        json={"zero_optimization.allgather_bucket_size": "auto"},
    ),
    "elasticity, which changes the batch": Broken(
        {"elasticity": "delete it"}, json={"elasticity": {"enabled": True}}
    ),
    "a key twice": Broken(
        {"gradient_clipping": "delete one of them"},
        json=json.dumps(JSON)[:-1] + ', "gradient_clipping": 0.5}',
    ),
    "no JSON": Broken({"(the file)": "fix it"}, json="{'stage': 2}"),
    "a list": Broken({"(the file)": "begin the file with {"}, json="[]"),
    "no such JSON": Broken(
        {"deepspeed_config.deepspeed_config_file": "zero2.json"},
        launch={"deepspeed_config_file": Path("deepspeed_configs/zero9.json")},
    ),
    "DeepSpeed without a JSON": Broken(
        {"deepspeed_config.deepspeed_config_file": "deepspeed_configs/zero2.json"},
        launch={"deepspeed_config_file": None},
    ),
    "accumulation in accelerate's file, too": Broken(
        {"deepspeed_config.gradient_accumulation_steps": "delete gradient_accumulation_steps"},
        launch={"misplaced": ("gradient_accumulation_steps",), "gradient_accumulation_steps": 8},
    ),
    "accumulation exported": Broken(
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=4"},
        launch={"gradient_accumulation_steps": 4},
    ),
    "zero3_init without ZeRO-3": Broken(
        {"deepspeed_config.zero3_init_flag": "zero3_init_flag: false"}, launch={"zero3_init": True}
    ),
    "ZeRO options of accelerate launch beside a JSON": Broken(
        {
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "leave out --zero_stage of accelerate launch",
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "unset ACCELERATE_DEEPSPEED_OFFLOAD_",
        },
        launch={
            "zero_options": {
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
                "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
                "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false",
            }
        },
    ),
    "a weights switch beside a JSON of stage 3": Broken(
        {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "leave out --zero3_save_16bit_model"},
        json={
            "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}
        },
        launch={"zero_options": {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false"}},
    ),
    "one process where several were asked for": Broken(
        {"num_processes": "leave out --cpu and use_cpu"}, launch={"lacks_world_size": True}
    ),
    "precision of the launch": Broken(
        {"mixed_precision": "or pass mixed_precision=fp16"}, launch={"mixed_precision": "fp16"}
    ),
    "no without quotes in YAML": Broken(
        {"mixed_precision": "leave mixed_precision out of launch.yaml"},
        launch={"mixed_precision": False},
    ),
    "use_cpu turns DeepSpeed off": Broken(
        {"use_cpu": "leave use_cpu out"}, launch={"use_cpu": True}
    ),
    "MULTI_CPU": Broken(
        {"distributed_type": "experiments/accelerate/"}, launch={"distributed_type": "MULTI_CPU"}
    ),
    "several processes of NO": Broken(
        {"num_processes": "distributed_type: MULTI_GPU"}, launch={"distributed_type": "NO"}
    ),
    "more processes than GPUs": Broken(
        {"num_processes": "--num_processes 1"}, launch={"gpus": 1, "local_processes": 2}
    ),
    "a launch file for GPUs on a machine without": Broken(
        {"GPUs": "experiments/accelerate/cpu.yaml"}, launch={"gpus": 0, "wants_gpus": True}
    ),
    "a machine with too few processes": Broken(
        {"WORLD_SIZE": "BSMETA_WORLD_SIZE"}, launch={"expected_processes": 3}
    ),
    "fp16 on a CPU": Broken(
        {"mixed_precision": "mixed_precision=bf16"},
        hydra={"mixed_precision": "fp16"},
        json={"bf16.enabled": False, "fp16.enabled": True},
        launch={"gpus": 0},
    ),
    "streams that processes do not divide": Broken(
        {"data_config.num_streams": "data_config.num_streams=64"},
        hydra={"data_config.num_streams": 63},
    ),
    "streams that workers do not divide": Broken(
        {"data_config.num_streams": "data_config.num_streams=66"},
        hydra={"data_config.num_workers": 3},
    ),
    "a launch file without check_only": Broken(
        {"accelerate_config_file": "accelerate launch --config_file zero2.yaml"},
        hydra={"accelerate_config_file": "zero2.yaml"},
    ),
    "a misspelt attention": Broken(
        {"attn_implementation": "attn_implementation=flash_attention_2"},
        hydra={"attn_implementation": "flash_attention"},
    ),
    "chunks of less than nothing": Broken(
        {"loss_chunk_logits": "loss_chunk_logits=67108864, for example"},
        hydra={"loss_chunk_logits": -1},
    ),
    "no layer recomputed": Broken(
        {"gradient_checkpointing_every": "gradient_checkpointing_every=1, for example"},
        hydra={"gradient_checkpointing_every": 0},
    ),
    "a misspelt packing": Broken(
        {"data_config.packing": "data_config.packing=best_fit"},
        hydra={"data_config.packing": "bestfit"},
    ),
    "a misspelt tokenizer backend": Broken(
        {"data_config.tokenizer_backend": "data_config.tokenizer_backend=tiktoken"},
        hydra={"data_config.tokenizer_backend": "tictoken"},
    ),
    "an unknown reader": Broken(
        {"data_config.reader": "data_config.reader=native"},
        hydra={"data_config.reader": "tensorflow"},
    ),
    "paths that no record can have": Broken(
        {
            "data_config.columns.url": "data_config.columns.url=column.field",
            "data_config.columns.title": "map only one of the two",
        },
        hydra={"data_config.columns": {"url": "a..b", "title": "meta", "quality": "meta.score"}},
    ),
    "a path that no document has": Broken(
        {"data_config.columns.url": "data_config.columns.url=url"},
        hydra={"data_config.columns": {"url": "uri"}},
    ),
    "sources beside train_file, of one name, without a weight": Broken(
        {
            "data_config.sources.1.weight": "data_config.sources.1.weight=1.0",
            "data_config.sources.1.name": "rename one web",
            "data_config.sources.2.name": "data_config.sources.2.name=web",
            "data_config.sources.2.train_file": "data_config.sources.2.train_file=FOLDER",
            "data_config.train_file": "data_config.train_file=null",
        },
        hydra={
            "data_config.sources": [
                SourceConfig(name="web", train_file=SAMPLE),
                SourceConfig(name="web", train_file=SAMPLE, weight=0.0),
                SourceConfig(name="a b"),
            ]
        },
    ),
    "weights of too many digits": Broken(
        {"data_config.sources": "weights 0.704, 0.296"},
        hydra={
            "data_config.train_file": None,
            "data_config.sources": [
                SourceConfig(name="web", train_file=SAMPLE, weight=0.7123456789),
                SourceConfig(name="code", train_file=SAMPLE, weight=0.3),
            ],
        },
    ),
    "a revision of a local folder": Broken(
        {"data_config.dataset_revision": "leave it out"},
        hydra={
            "data_config.dataset_revision": "v1.0",
            "data_config.dataset_name": SAMPLE.removesuffix("/*.jsonl.gz"),
            "data_config.train_file": "*.jsonl.gz",
        },
    ),
    "a data set that is not a folder": Broken(
        {"data_config.dataset_name": "name a data set on the Hub (OWNER/NAME)"},
        hydra={"data_config.dataset_name": "./data/c4", "data_config.train_file": "*.jsonl.gz"},
    ),
    "no such file in a local folder": Broken(
        {"data_config.train_file": "begins in data_config.dataset_name="},
        hydra={
            "data_config.dataset_name": SAMPLE.removesuffix("/*.jsonl.gz"),
            "data_config.train_file": "none-*.jsonl.gz",
        },
    ),
    "a revision, but no data set": Broken(
        {"data_config.dataset_revision": "data_config.dataset_name"},
        hydra={"data_config.dataset_revision": "v1.0"},
    ),
    "a revision of its own": Broken(
        {"data_config.dataset_revision": "leave it out"},
        hydra={
            "data_config.train_file": ["hf://datasets/owner/name@v2/*.jsonl.gz", SAMPLE],
            "data_config.dataset_revision": "v1.0",
        },
    ),
    "a misspelt schedule": Broken(
        {"lr_scheduler_type": "lr_scheduler_type=cosine"}, hydra={"lr_scheduler_type": "cosin"}
    ),
    "an unknown precision": Broken(
        {"mixed_precision": "mixed_precision=fp16"},
        hydra={"mixed_precision": "fp8"},
        json={"bf16.enabled": "auto", "fp16.enabled": "auto"},
    ),
    "an unknown tracker": Broken({"trackers": "tensorboard"}, hydra={"trackers": ["tensorbord"]}),
    "no training data": Broken(
        {"data_config.train_file": "data_config.train_file=FOLDER"},
        hydra={"data_config.train_file": None},
    ),
    "no sequences in a micro-batch": Broken(
        {"data_config.per_device_train_batch_size": "=8"},
        hydra={"data_config.per_device_train_batch_size": 0},
        json={"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"},
    ),
    "a negative learning rate": Broken(
        {"learning_rate": "learning_rate=5e-05"},
        hydra={"learning_rate": -1e-4},
        json={"optimizer": DROP, "scheduler": DROP},
    ),
    "a learning rate that is not a number": Broken(
        {"learning_rate": "learning_rate=5e-05"},
        hydra={"learning_rate": float("nan")},
        json={"optimizer": DROP, "scheduler": DROP},
    ),
    "a task that is none": Broken({"task": "task=causal_lm"}, hydra={"task": "causal_lmm"}),
    "training data that is not there": Broken(
        {"data_config.train_file": "correct it"},
        hydra={"data_config.train_file": [SAMPLE, SAMPLE.replace("webdocs", "webdoc")]},
    ),
    "a held-out file that is not there": Broken(
        {"data_config.validation_file": "data_config.validation_file=null to train without"},
        hydra={"data_config.validation_file": "nowhere/held_out.jsonl.gz"},
    ),
    "a held-out file that is not there, and no evaluations": Broken(
        {"data_config.validation_file": "data_config.validation_file=null to train without"},
        hydra={"data_config.validation_file": "nowhere/held_out.jsonl.gz", "eval_steps": 0},
    ),
    "a pattern of held-out files": Broken(
        {"data_config.validation_file": f"data_config.validation_file={SHARDS[0]}"},
        hydra={"data_config.validation_file": SAMPLE, "eval_steps": 0},
    ),
    "a pattern without a held-out file": Broken(
        {"data_config.validation_file": "data_config.validation_file=FILE"},
        hydra={"data_config.validation_file": SAMPLE.replace("webdocs", "webdoc")},
    ),
    "data on S3": Broken(
        {"data_config.train_file": "mount oss://… as a folder, and name the path; data_config.rea"},
        hydra={"data_config.train_file": ["oss://bucket/web/*.jsonl.gz", SAMPLE]},
    ),
    "data on Azure, by an address with the account": Broken(
        {"data_config.train_file": "az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT_NAME set to"},
        hydra={"data_config.train_file": "abfss://web@corpora.dfs.core.windows.net/*.jsonl.gz"},
    ),
    "a held-out file on S3, with TensorFlow": Broken(
        {"data_config.validation_file": "data_config.validation_file=s3://b/test.jsonl.gz"},
        hydra={"data_config.reader": "tf", "data_config.validation_file": "s3a://b/test.jsonl.gz"},
    ),
    "data on the web, and a path as an address": Broken(
        {
            "data_config.sources.0.train_file": "copy the files here",
            "data_config.sources.1.train_file": "data_config.sources.1.train_file=/web/a.jsonl",
        },
        hydra={
            "data_config.train_file": None,
            "data_config.sources": [
                SourceConfig(name="web", train_file="https://example.org/a.jsonl.gz"),
                SourceConfig(name="local", train_file="file:///web/a.jsonl"),
            ],
        },
    ),
    "data on the Hub, with TensorFlow": Broken(
        {"data_config.train_file": "data_config.reader=native"},
        hydra={
            "data_config.reader": "tf",
            "data_config.train_file": "hf://datasets/owner/name/*.jsonl.gz",
        },
    ),
    "prepared data that is not there": Broken(
        {"data_config.prepared": "bsmeta.data.prepare"}, hydra={"data_config.prepared": "nowhere"}
    ),
    "a model's shape that is not there": Broken(
        {"model_config_file": "correct model_config_file"},
        hydra={"model_config_file": "examples/model/confg.json"},
    ),
    "a tokenizer that is not there": Broken(
        {"tokenizer_name": "correct tokenizer_name"}, hydra={"tokenizer_name": "./tokenizer"}
    ),
    "a checkpoint that is not there": Broken(
        {"resume_from_checkpoint_dir": "=latest"}, hydra={"resume_from_checkpoint_dir": "lastest"}
    ),
    "metadata of no such position": Broken(
        {"data_config.metadata_config.metadata_position": "metadata_position=prepend"},
        hydra={"data_config.metadata_config.metadata_position": "prepended"},
    ),
    "an extra step after the end": Broken(
        {"extra_steps_to_eval_save_at": "drop 1001"},
        hydra={"extra_steps_to_eval_save_at": [2, 1001]},
    ),
    "a comparison bit for bit of kernels that do not repeat": Broken(
        {"deterministic": "deterministic=true, or corruption_check_steps=0"},
        hydra={"corruption_check_steps": 100},
    ),
    "a seed that numpy cannot take": Broken({"seed": "seed=42"}, hydra={"seed": 2**32}),
    "an endless decay": Broken(
        {"weight_decay": "weight_decay=0"},
        hydra={"weight_decay": float("inf")},
        json={"optimizer": DROP},
    ),
    "a model on the Hub without an owner": Broken(
        {"push_to_hub": "push_to_hub=me/my-model"}, hydra={"push_to_hub": "my-model"}
    ),
    "a model on the Hub with a space": Broken(
        {"push_to_hub": "push_to_hub=me/my-model"}, hydra={"push_to_hub": "me/my model"}
    ),
    "recomputation that DeepSpeed would not do": Broken(
        {"activation_checkpointing": "gradient_checkpointing"},
        json={"activation_checkpointing": {"partition_activations": True}},
    ),
    "a tracker of DeepSpeed's own": Broken(
        {"wandb": "trackers"}, json={"wandb": {"enabled": True}}
    ),
    "a checkpoint in pieces on every machine": Broken(
        {"checkpoint.use_node_local_storage": "delete it"},
        json={"checkpoint": {"use_node_local_storage": True}},
    ),
    "offload with an optimizer that DeepSpeed refuses": Broken(
        {"zero_force_ds_cpu_optimizer": '"zero_force_ds_cpu_optimizer": false'},
        json={"zero_optimization.offload_optimizer": {"device": "cpu"}},
    ),
    "clipping exported": Broken(
        {"gradient_clipping": "or pass gradient_clipping=1.0"}, launch={"gradient_clipping": 1.0}
    ),
    "a compiler in accelerate's file": Broken(
        {"dynamo_backend": "torch_compile=true"}, launch={"compiler": "INDUCTOR"}
    ),
    "a misspelt key of accelerate's file": Broken(
        {"num_proceses": "correct the name"}, launch={"unknown": ("num_proceses",)}
    ),
    "tasks of SLURM without a launcher": Broken(
        {"WORLD_SIZE": "torchrun"},
        json={"train_batch_size": "auto"},
        launch={"num_processes": 1, "tasks_in_step": 4},
    ),
    "a rank outside of the world": Broken({"RANK": "one launcher"}, launch={"rank": 2}),
    "processes that cannot meet": Broken(
        {"MASTER_ADDR": "unset WORLD_SIZE"}, launch={"unset": ("MASTER_ADDR",)}
    ),
    "machines that cannot meet": Broken(
        {
            "num_processes": "experiments/several_machines.sh",
            "machine_rank": "machine_rank: 0 on the first",
            "main_process_ip": "main_process_ip: ADDRESS",
            "main_process_port": "main_process_port: 29500",
        },
        json={"train_batch_size": "auto"},
        launch={"num_processes": 4, "machines": 3, "machine_rank": 3, "main_process_port": 0},
    ),
    "five faults": Broken(
        {
            "task": "task=causal_lm",
            "learning_rate": "learning_rate=",
            "data_config.metadata_config.max_seq_len": "max_seq_len=1024",
            "mixed_precision": "leave mixed_precision out",
            "gradient_accumulation_steps": 'write "auto"',
        },
        hydra={
            "learning_rate": -1.0,
            "data_config.metadata_config.max_seq_len": 0,
            "task": "causal",
        },
        json={"gradient_accumulation_steps": 4, "optimizer": DROP, "scheduler": DROP},
        launch={"mixed_precision": "fp16"},
    ),
    "metadata and the JSON": Broken(
        {
            "data_config.metadata_config.metadata_probability": "metadata_probability=0.5",
            "gradient_clipping": "gradient_clipping",
        },
        hydra={"data_config.metadata_config.metadata_probability": 1.5},
        json={"gradient_clipping": 2.0},
    ),
    "what the Hub would reject on the model card": Broken(
        {
            "model_card.license": "model_card.license=[apache-2.0]",
            "model_card.datasets": "model_card.datasets=[OWNER/NAME]",
            "model_card.language": "model_card.language=[en]",
        },
        hydra={
            "model_card": ModelCardConfig(
                license=["Apache License 2.0"], datasets=["a/b/c"], language=["English"]
            )
        },
    ),
    "a negative interval": Broken({"save_steps": "save_steps=1"}, hydra={"save_steps": -1}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_refused_before_the_task_is_built(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = BROKEN[name]
    config, launch = make_config_and_launch(tmp_path, broken.hydra, broken.json, broken.launch)
    monkeypatch.setattr(checks, "read_launch", lambda *_: launch)
    unmade = dataclasses.replace(
        TASKS["causal_lm"], make=lambda _: pytest.fail("the task was made")
    )
    monkeypatch.setitem(BUILT_IN, "causal_lm", unmade)

    assert run_and_report(lambda: train.main(config)) == 2

    message = capsys.readouterr().err
    assert message.startswith("configuration error: ")
    problems = re.findall(r"^\d+\. (\S+|\(the file\)) in (.*)\n   Fix: (.*)$", message, re.M)
    assert [key for key, _, _ in problems] == list(broken.fixes)
    for (_, where, fix), part in zip(problems, broken.fixes.values(), strict=True):
        assert "found " in where
        assert "expected " in where
        assert part in fix


def test_agreeing_values_fill_the_deepspeed_configuration(tmp_path: Path) -> None:
    assert run_check(tmp_path) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2},
    }


def test_auto_is_replaced_by_the_values_of_hydra(tmp_path: Path) -> None:
    auto = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16.enabled": "auto",
        "fp16.enabled": "auto",
        "optimizer.params.lr": "auto",
        "optimizer.params.betas": "auto",
        "scheduler.params.total_num_steps": "auto",
        "zero_optimization.reduce_bucket_size": "auto",
    }
    filled = run_check(tmp_path, {"gradient_accumulation_steps": 3}, auto, {"num_processes": 4})
    assert filled == {
        "train_batch_size": 48,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }


def test_values_missing_from_the_json_are_filled_in(tmp_path: Path) -> None:
    left_out = {"train_batch_size": DROP, "fp16": DROP, "optimizer": DROP, "scheduler": DROP}
    filled = run_check(tmp_path, None, left_out)
    assert filled is not None
    assert (filled["train_batch_size"], filled["fp16"]) == (64, {"enabled": False})


def test_without_deepspeed_there_is_nothing_to_fill(tmp_path: Path) -> None:
    launch = {"distributed_type": "MULTI_GPU", "deepspeed_config_file": None}
    assert run_check(tmp_path, None, None, launch) is None


def test_one_message_names_both_keys_both_values_and_the_fix(tmp_path: Path) -> None:
    document = {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": DROP}
    with pytest.raises(ConfigurationError) as caught:
        run_check(tmp_path, None, document)
    file = tmp_path / "ds.json"
    assert str(caught.value) == (
        "2 problems in the configuration\n"
        f"1. train_micro_batch_size_per_gpu in {file}: found 16, expected "
        '"auto" or 4 (data_config.per_device_train_batch_size of Hydra).\n'
        f'   Fix: write "auto" for train_micro_batch_size_per_gpu in {file}, or pass '
        "data_config.per_device_train_batch_size=16\n"
        f"2. gradient_accumulation_steps in {file}: found no such key (DeepSpeed would silently "
        'take 1), expected "auto" or 8 (gradient_accumulation_steps of Hydra).\n'
        f'   Fix: write "auto" for gradient_accumulation_steps in {file}'
    )


def test_the_message_shows_the_global_batch_as_a_product(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_check(tmp_path, None, {"train_batch_size": 256})
    assert (
        "found 256, expected "
        '"auto" or 64 (4 (data_config.per_device_train_batch_size) x 8 '
        "(gradient_accumulation_steps) x 2 (processes) = 64)"
    ) in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"train_file": "hf://datasets/owner/name/*.jsonl.gz"},
        {"dataset_name": "owner/name", "train_file": None},
        {"dataset_name": "owner/name", "train_file": "en/*.jsonl.gz"},
        {"validation_file": "hf://datasets/owner/name/test.jsonl.gz"},
    ],
)
def test_a_revision_is_accepted_for_data_from_the_hub(tmp_path: Path, data: dict[str, Any]) -> None:
    run_check(tmp_path, {"data_config.dataset_revision": "v1.0", **prefix_data_keys(data)})


def prefix_data_keys(values: dict[str, Any]) -> dict[str, Any]:
    return {f"data_config.{name}": value for name, value in values.items()}

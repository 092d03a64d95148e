"""Broken configurations: which keys the one message must name, and which fix it must give.

Each goes through `train.py`'s own `main` to its exit code and its output; a model that were to be
made would fail the test. `test_refusals.py` does the same from the command line on.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bsmeta import train
from bsmeta.config import checks
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import check
from bsmeta.config.compose import exit_code
from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.launch import REPOSITORY, Launch
from bsmeta.tasks import TASKS

SAMPLE = str(REPOSITORY / "examples" / "webdocs" / "*.jsonl.gz")
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
        "params": {"lr": 2e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0,
            "warmup_max_lr": 2e-4,
            "warmup_num_steps": 100,
            "warmup_type": "linear",
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


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with the values of dotted keys set, or dropped."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        *blocks, name = key.split(".")
        node = result
        for block in blocks:
            node = node[block] if isinstance(node, dict) else getattr(node, block)
        if value is DROP:
            del node[name]
        elif isinstance(node, dict):
            node[name] = value
        else:
            setattr(node, name, value)
    return result


def run_check(
    tmp_path: Path,
    hydra: dict[str, Any] | None = None,
    document: dict[str, Any] | str | None = None,
    launch: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Checks the agreeing three with changes; the filled DeepSpeed configuration."""
    found = check(*made(tmp_path, hydra, document, launch), TASKS["causal_lm"])
    return found.deepspeed_config


def made(
    tmp_path: Path,
    hydra: dict[str, Any] | None,
    document: dict[str, Any] | str | None,
    launch: dict[str, Any] | None,
) -> tuple[CausalLMConfig, Launch]:
    """The configuration and the launch of the agreeing three with changes."""
    file = tmp_path / "ds.json"
    whole = isinstance(document, str)
    file.write_text(document if whole else json.dumps(changed(JSON, document or {})))
    arguments = {"deepspeed_config_file": file, **LAUNCH, **(launch or {})}
    values = {"out_dir": str(tmp_path / "run"), **changed(HYDRA, hydra or {})}
    return CausalLMConfig(**values), Launch(**arguments)


# (what is changed in Hydra, in the JSON, in the launch), key of each problem, part of its fix
BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any] | str, dict[str, Any], dict[str, str]]] = {
    "accumulation in the JSON": (
        {},
        {"gradient_accumulation_steps": 4},
        {},
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=4"},
    ),
    "accumulation in Hydra": (
        {"gradient_accumulation_steps": 2},
        {"train_batch_size": "auto"},
        {},
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=8"},
    ),
    "micro-batch in the JSON": (
        {},
        {"train_micro_batch_size_per_gpu": 16},
        {},
        {"train_micro_batch_size_per_gpu": "or pass data_config.per_device_train_batch_size=16"},
    ),
    "global batch for other processes": (
        {},
        {},
        {"num_processes": 4},
        {"train_batch_size": 'write "auto" for train_batch_size'},
    ),
    "accumulation missing": (
        {},
        {"gradient_accumulation_steps": DROP},
        {},
        {"gradient_accumulation_steps": 'write "auto" for gradient_accumulation_steps'},
    ),
    "clipping missing": (
        {},
        {"gradient_clipping": DROP},
        {},
        {"gradient_clipping": 'write "auto" for gradient_clipping'},
    ),
    "micro-batch missing": (
        {},
        {"train_micro_batch_size_per_gpu": DROP},
        {},
        {"train_micro_batch_size_per_gpu": 'write "auto"'},
    ),
    "accumulation misspelt": (
        {},
        {"gradient_accumulation_steps": DROP, "gradient_accumulation_step": 8},
        {},
        {"gradient_accumulation_step": "correct", "gradient_accumulation_steps": 'write "auto"'},
    ),
    "clipping in the JSON": (
        {},
        {"gradient_clipping": 1.0},
        {},
        {"gradient_clipping": "or pass gradient_clipping=1.0"},
    ),
    "a number as text": (
        {},
        {"gradient_accumulation_steps": "8"},
        {},
        {"gradient_accumulation_steps": 'write "auto"'},
    ),
    "a whole number as 8.0": (
        {},
        {"gradient_accumulation_steps": 8.0},
        {},
        {"gradient_accumulation_steps": 'write "auto"'},
    ),
    "true as the number 1": (
        {"gradient_accumulation_steps": 1},
        {"gradient_accumulation_steps": True, "train_batch_size": "auto"},
        {},
        {"gradient_accumulation_steps": 'write "auto"'},
    ),
    "bf16 off in the JSON": (
        {},
        {"bf16.enabled": False},
        {},
        {"bf16.enabled": "or pass mixed_precision=no"},
    ),
    "bf16 missing": ({}, {"bf16": DROP}, {}, {"bf16.enabled": 'write "auto"'}),
    "bf16 as text": ({}, {"bf16.enabled": "true"}, {}, {"bf16.enabled": 'write "auto"'}),
    "fp16 in the JSON, bf16 in Hydra": (
        {},
        {"fp16.enabled": True},
        {},
        {"fp16.enabled": "or pass mixed_precision=fp16"},
    ),
    "learning rate": (
        {},
        {"optimizer.params.lr": 1e-3},
        {},
        {"optimizer.params.lr": "or pass learning_rate=0.001"},
    ),
    "betas": ({}, {"optimizer.params.betas": [0.9, 0.999]}, {}, {"optimizer.params.betas": "auto"}),
    "eps missing": ({}, {"optimizer.params.eps": DROP}, {}, {"optimizer.params.eps": "auto"}),
    "weight decay": (
        {},
        {"optimizer.params.weight_decay": 0.01},
        {},
        {"optimizer.params.weight_decay": "or pass weight_decay=0.01"},
    ),
    "another optimizer": (
        {},
        {"optimizer.type": "OneBitAdam"},
        {},
        {"optimizer.type": "delete the optimizer block"},
    ),
    "Adam with coupled decay": (
        {},
        {"optimizer.params.adam_w_mode": False},
        {},
        {"optimizer.params.adam_w_mode": 'write "auto"'},
    ),
    "an unknown optimizer parameter": (
        {},
        {"optimizer.params.momentum": 0.9},
        {},
        {"optimizer.params.momentum": "delete it"},
    ),
    "warm-up": (
        {},
        {"scheduler.params.warmup_num_steps": 10},
        {},
        {"scheduler.params.warmup_num_steps": "or pass num_warmup_steps=10"},
    ),
    "total steps": (
        {},
        {"scheduler.params.total_num_steps": 2000},
        {},
        {"scheduler.params.total_num_steps": "or pass max_train_steps=2000"},
    ),
    "warm-up on a logarithm by default": (
        {},
        {"scheduler.params.warmup_type": DROP},
        {},
        {"scheduler.params.warmup_type": 'write "auto"'},
    ),
    "peak of the schedule": (
        {},
        {"scheduler.params.warmup_max_lr": 1e-3},
        {},
        {"scheduler.params.warmup_max_lr": "or pass learning_rate=0.001"},
    ),
    "another schedule": (
        {},
        {"scheduler.type": "WarmupCosineLR"},
        {},
        {"scheduler.type": "or pass lr_scheduler_type=cosine"},
    ),
    "a cosine that does not end at 0": (
        {"lr_scheduler_type": "cosine"},
        {
            "scheduler": {
                "type": "WarmupCosineLR",
                "params": {
                    "total_num_steps": 1000,
                    "warmup_num_steps": 100,
                    "warmup_type": "linear",
                },
            }
        },
        {},
        {"scheduler.params.cos_min_ratio": 'write "auto"'},
    ),
    "a cosine that ends elsewhere": (
        {"lr_scheduler_type": "cosine", "min_learning_rate_ratio": 0.1},
        {
            "scheduler": {
                "type": "WarmupCosineLR",
                "params": {
                    "total_num_steps": 1000,
                    "warmup_num_steps": 100,
                    "warmup_type": "linear",
                    "cos_min_ratio": 0.2,
                },
            }
        },
        {},
        {"scheduler.params.cos_min_ratio": "or pass min_learning_rate_ratio=0.2"},
    ),
    "a line that ends above 0": (
        {"min_learning_rate_ratio": 0.1},
        {},
        {},
        {"scheduler.type": "delete the scheduler block"},
    ),
    "a last learning rate above the peak": (
        {"min_learning_rate_ratio": 1.5},
        {"scheduler": DROP},
        {},
        {"min_learning_rate_ratio": "min_learning_rate_ratio=0.0, for example"},
    ),
    "no zero_optimization": (
        {},
        {"zero_optimization": DROP},
        {},
        {"zero_optimization": '"zero_optimization": {"stage": 2}'},
    ),
    "no stage": (
        {},
        {"zero_optimization": {}},
        {},
        {"zero_optimization.stage": 'write "stage": 2'},
    ),
    "the stage as text": (
        {},
        {"zero_optimization.stage": "2"},
        {},
        {"zero_optimization.stage": 'write "stage": 2'},
    ),
    "ZeRO-3 that cannot be exported": (
        {},
        {"zero_optimization.stage": 3},
        {},
        {"zero_optimization.stage3_gather_16bit_weights_on_model_save": "true"},
    ),
    "a misspelt ZeRO key": (
        {},
        {"zero_optimization.overlap_com": True},
        {},
        {"zero_optimization.overlap_com": "correct the name"},
    ),
    "offload at stage 0": (
        {},
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}, **OWN_ADAM},
        {},
        {"zero_optimization.offload_optimizer": 'write "stage": 1'},
    ),
    "parameters offloaded at stage 2": (
        {},
        {"zero_optimization.offload_param": {"device": "cpu"}},
        {},
        {"zero_optimization.offload_param": 'write "stage": 3'},
    ),
    "offload to nowhere": (
        {},
        {"zero_optimization.offload_optimizer": {"device": "nvme"}, **OWN_ADAM},
        {},
        {"zero_optimization.offload_optimizer.nvme_path": "nvme_path"},
    ),
    "offload to an unknown device": (
        {},
        {"zero_optimization.offload_optimizer": {"device": "gpu"}},
        {},
        {"zero_optimization.offload_optimizer.device": "delete"},
    ),
    "offload without a GPU": (
        {},
        {"zero_optimization.offload_optimizer": {"device": "cpu"}, **OWN_ADAM},
        {"gpus": 0},
        {"zero_optimization.offload_optimizer": "deepspeed_configs/cpu.json"},
    ),
    "auto that nothing fills": (
        {},
        {"zero_optimization.allgather_bucket_size": "auto"},
        {},
        {"zero_optimization.allgather_bucket_size": "write the value"},
    ),
    "elasticity, which changes the batch": (
        {},
        {"elasticity": {"enabled": True}},
        {},
        {"elasticity": "delete it"},
    ),
    "a key twice": (
        {},
        json.dumps(JSON)[:-1] + ', "gradient_clipping": 0.5}',
        {},
        {"gradient_clipping": "delete one of them"},
    ),
    "no JSON": ({}, "{'stage': 2}", {}, {"(the file)": "fix it"}),
    "a list": ({}, "[]", {}, {"(the file)": "begin the file with {"}),
    "no such JSON": (
        {},
        {},
        {"deepspeed_config_file": Path("deepspeed_configs/zero9.json")},
        {"deepspeed_config.deepspeed_config_file": "zero2.json"},
    ),
    "DeepSpeed without a JSON": (
        {},
        {},
        {"deepspeed_config_file": None},
        {"deepspeed_config.deepspeed_config_file": "deepspeed_configs/zero2.json"},
    ),
    "accumulation in accelerate's file, too": (
        {},
        {},
        {"misplaced": ("gradient_accumulation_steps",), "gradient_accumulation_steps": 8},
        {"deepspeed_config.gradient_accumulation_steps": "delete gradient_accumulation_steps"},
    ),
    "accumulation exported": (
        {},
        {},
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": "or pass gradient_accumulation_steps=4"},
    ),
    "zero3_init without ZeRO-3": (
        {},
        {},
        {"zero3_init": True},
        {"deepspeed_config.zero3_init_flag": "zero3_init_flag: false"},
    ),
    "ZeRO options of accelerate launch beside a JSON": (
        {},
        {},
        {
            "zero_options": {
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
                "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
                "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false",
            }
        },
        {
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "leave out --zero_stage of accelerate launch",
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "unset ACCELERATE_DEEPSPEED_OFFLOAD_",
        },
    ),
    "a weights switch beside a JSON of stage 3": (
        {},
        {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}},
        {"zero_options": {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false"}},
        {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "leave out --zero3_save_16bit_model"},
    ),
    "one process where several were asked for": (
        {},
        {},
        {"alone": True},
        {"num_processes": "leave out --cpu and use_cpu"},
    ),
    "precision of the launch": (
        {},
        {},
        {"mixed_precision": "fp16"},
        {"mixed_precision": "or pass mixed_precision=fp16"},
    ),
    "no without quotes in YAML": (
        {},
        {},
        {"mixed_precision": False},
        {"mixed_precision": "leave mixed_precision out of launch.yaml"},
    ),
    "use_cpu turns DeepSpeed off": ({}, {}, {"use_cpu": True}, {"use_cpu": "leave use_cpu out"}),
    "MULTI_CPU": (
        {},
        {},
        {"distributed_type": "MULTI_CPU"},
        {"distributed_type": "experiments/accelerate/"},
    ),
    "FSDP": ({}, {}, {"distributed_type": "FSDP"}, {"distributed_type": "experiments/accelerate/"}),
    "several processes of NO": (
        {},
        {},
        {"distributed_type": "NO"},
        {"num_processes": "distributed_type: MULTI_GPU"},
    ),
    "more processes than GPUs": (
        {},
        {},
        {"gpus": 1, "local_processes": 2},
        {"num_processes": "--num_processes 1"},
    ),
    "a launch file for GPUs on a machine without": (
        {},
        {},
        {"gpus": 0, "wants_gpus": True},
        {"GPUs": "experiments/accelerate/cpu.yaml"},
    ),
    "a machine with too few processes": (
        {},
        {},
        {"expected_processes": 3},
        {"WORLD_SIZE": "BSMETA_WORLD_SIZE"},
    ),
    "fp16 on a CPU": (
        {"mixed_precision": "fp16"},
        {"bf16.enabled": False, "fp16.enabled": True},
        {"gpus": 0},
        {"mixed_precision": "mixed_precision=bf16"},
    ),
    "streams that processes do not divide": (
        {"data_config.num_streams": 63},
        {},
        {},
        {"data_config.num_streams": "data_config.num_streams=64"},
    ),
    "streams that workers do not divide": (
        {"data_config.num_workers": 3},
        {},
        {},
        {"data_config.num_streams": "data_config.num_streams=66"},
    ),
    "a launch file without check_only": (
        {"accelerate_config_file": "zero2.yaml"},
        {},
        {},
        {"accelerate_config_file": "accelerate launch --config_file zero2.yaml"},
    ),
    "a misspelt attention": (
        {"attn_implementation": "flash_attention"},
        {},
        {},
        {"attn_implementation": "attn_implementation=flash_attention_2"},
    ),
    "chunks of less than nothing": (
        {"loss_chunk_logits": -1},
        {},
        {},
        {"loss_chunk_logits": "loss_chunk_logits=67108864, for example"},
    ),
    "no layer recomputed": (
        {"gradient_checkpointing_every": 0},
        {},
        {},
        {"gradient_checkpointing_every": "gradient_checkpointing_every=1, for example"},
    ),
    "a misspelt packing": (
        {"data_config.packing": "bestfit"},
        {},
        {},
        {"data_config.packing": "data_config.packing=best_fit"},
    ),
    "a misspelt tokenizer backend": (
        {"data_config.tokenizer_backend": "tictoken"},
        {},
        {},
        {"data_config.tokenizer_backend": "data_config.tokenizer_backend=tiktoken"},
    ),
    "an unknown reader": (
        {"data_config.reader": "tensorflow"},
        {},
        {},
        {"data_config.reader": "data_config.reader=native"},
    ),
    "paths that no record can have": (
        {"data_config.columns": {"url": "a..b", "title": "meta", "quality": "meta.score"}},
        {},
        {},
        {
            "data_config.columns.url": "data_config.columns.url=column.field",
            "data_config.columns.title": "map only one of the two",
        },
    ),
    "a path that no document has": (
        {"data_config.columns": {"url": "uri"}},
        {},
        {},
        {"data_config.columns.url": "data_config.columns.url=url"},
    ),
    "sources beside train_file, of one name, without a weight": (
        {
            "data_config.sources": [
                SourceConfig(name="web", train_file=SAMPLE),
                SourceConfig(name="web", train_file=SAMPLE, weight=0.0),
                SourceConfig(name="a b"),
            ]
        },
        {},
        {},
        {
            "data_config.sources.1.weight": "data_config.sources.1.weight=1.0",
            "data_config.sources.1.name": "rename one web",
            "data_config.sources.2.name": "data_config.sources.2.name=web",
            "data_config.sources.2.train_file": "data_config.sources.2.train_file=FOLDER",
            "data_config.train_file": "data_config.train_file=null",
        },
    ),
    "weights of too many digits": (
        {
            "data_config.train_file": None,
            "data_config.sources": [
                SourceConfig(name="web", train_file=SAMPLE, weight=0.7123456789),
                SourceConfig(name="code", train_file=SAMPLE, weight=0.3),
            ],
        },
        {},
        {},
        {"data_config.sources": "weights 0.704, 0.296"},
    ),
    "a revision of a local folder": (
        {
            "data_config.dataset_revision": "v1.0",
            "data_config.dataset_name": SAMPLE.removesuffix("/*.jsonl.gz"),
            "data_config.train_file": "*.jsonl.gz",
        },
        {},
        {},
        {"data_config.dataset_revision": "leave it out"},
    ),
    "a data set that is no folder": (
        {"data_config.dataset_name": "./data/c4", "data_config.train_file": "*.jsonl.gz"},
        {},
        {},
        {"data_config.dataset_name": "name a data set on the Hub (OWNER/NAME)"},
    ),
    "no such file in a local folder": (
        {
            "data_config.dataset_name": SAMPLE.removesuffix("/*.jsonl.gz"),
            "data_config.train_file": "none-*.jsonl.gz",
        },
        {},
        {},
        {"data_config.train_file": "begins in data_config.dataset_name="},
    ),
    "a revision, but no data set": (
        {"data_config.dataset_revision": "v1.0"},
        {},
        {},
        {"data_config.dataset_revision": "data_config.dataset_name"},
    ),
    "a revision of its own": (
        {
            "data_config.train_file": ["hf://datasets/owner/name@v2/*.jsonl.gz", SAMPLE],
            "data_config.dataset_revision": "v1.0",
        },
        {},
        {},
        {"data_config.dataset_revision": "leave it out"},
    ),
    "a misspelt schedule": (
        {"lr_scheduler_type": "cosin"},
        {},
        {},
        {"lr_scheduler_type": "lr_scheduler_type=cosine"},
    ),
    "an unknown precision": (
        {"mixed_precision": "fp8"},
        {"bf16.enabled": "auto", "fp16.enabled": "auto"},
        {},
        {"mixed_precision": "mixed_precision=fp16"},
    ),
    "an unknown tracker": ({"trackers": ["tensorbord"]}, {}, {}, {"trackers": "tensorboard"}),
    "no training data": (
        {"data_config.train_file": None},
        {},
        {},
        {"data_config.train_file": "data_config.train_file=FOLDER"},
    ),
    "no sequences in a micro-batch": (
        {"data_config.per_device_train_batch_size": 0},
        {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"},
        {},
        {"data_config.per_device_train_batch_size": "=8"},
    ),
    "a negative learning rate": (
        {"learning_rate": -1e-4},
        {"optimizer": DROP, "scheduler": DROP},
        {},
        {"learning_rate": "learning_rate=5e-05"},
    ),
    "a learning rate that is not a number": (
        {"learning_rate": float("nan")},
        {"optimizer": DROP, "scheduler": DROP},
        {},
        {"learning_rate": "learning_rate=5e-05"},
    ),
    "a task that is none": ({"task": "causal_lmm"}, {}, {}, {"task": "task=causal_lm"}),
    "training data that is not there": (
        {"data_config.train_file": [SAMPLE, SAMPLE.replace("webdocs", "webdoc")]},
        {},
        {},
        {"data_config.train_file": "correct it"},
    ),
    "a held-out file that is not there": (
        {"data_config.validation_file": "nowhere/held_out.jsonl.gz"},
        {},
        {},
        {"data_config.validation_file": "eval_steps=0"},
    ),
    "prepared data that is not there": (
        {"data_config.prepared": "nowhere"},
        {},
        {},
        {"data_config.prepared": "bsmeta.data.prepare"},
    ),
    "a model's shape that is not there": (
        {"model_config_file": "examples/model/confg.json"},
        {},
        {},
        {"model_config_file": "correct model_config_file"},
    ),
    "a tokenizer that is not there": (
        {"tokenizer_name": "./tokenizer"},
        {},
        {},
        {"tokenizer_name": "correct tokenizer_name"},
    ),
    "a checkpoint that is not there": (
        {"resume_from_checkpoint_dir": "lastest"},
        {},
        {},
        {"resume_from_checkpoint_dir": "=latest"},
    ),
    "metadata of no such position": (
        {"data_config.metadata_config.metadata_position": "prepended"},
        {},
        {},
        {"data_config.metadata_config.metadata_position": "metadata_position=prepend"},
    ),
    "an extra step behind the end": (
        {"extra_steps_to_eval_save_at": [2, 1001]},
        {},
        {},
        {"extra_steps_to_eval_save_at": "drop 1001"},
    ),
    "a seed that numpy cannot take": ({"seed": 2**32}, {}, {}, {"seed": "seed=42"}),
    "an endless decay": (
        {"weight_decay": float("inf")},
        {"optimizer": DROP},
        {},
        {"weight_decay": "weight_decay=0"},
    ),
    "a model on the Hub without an owner": (
        {"push_to_hub": "my-model"},
        {},
        {},
        {"push_to_hub": "push_to_hub=me/my-model"},
    ),
    "a model on the Hub with a space": (
        {"push_to_hub": "me/my model"},
        {},
        {},
        {"push_to_hub": "push_to_hub=me/my-model"},
    ),
    "recomputation that DeepSpeed would not do": (
        {},
        {"activation_checkpointing": {"partition_activations": True}},
        {},
        {"activation_checkpointing": "gradient_checkpointing"},
    ),
    "a tracker of DeepSpeed's own": (
        {},
        {"wandb": {"enabled": True}},
        {},
        {"wandb": "trackers"},
    ),
    "a checkpoint in pieces on every machine": (
        {},
        {"checkpoint": {"use_node_local_storage": True}},
        {},
        {"checkpoint.use_node_local_storage": "delete it"},
    ),
    "offload with an optimizer that DeepSpeed refuses": (
        {},
        {"zero_optimization.offload_optimizer": {"device": "cpu"}},
        {},
        {"zero_force_ds_cpu_optimizer": '"zero_force_ds_cpu_optimizer": false'},
    ),
    "clipping exported": (
        {},
        {},
        {"gradient_clipping": 1.0},
        {"gradient_clipping": "or pass gradient_clipping=1.0"},
    ),
    "a compiler in accelerate's file": (
        {},
        {},
        {"compiler": "INDUCTOR"},
        {"dynamo_backend": "torch_compile=true"},
    ),
    "a misspelt key of accelerate's file": (
        {},
        {},
        {"unknown": ("num_proceses",)},
        {"num_proceses": "correct the name"},
    ),
    "tasks of SLURM without a launcher": (
        {},
        {"train_batch_size": "auto"},
        {"num_processes": 1, "alone_in_step": 4},
        {"WORLD_SIZE": "torchrun"},
    ),
    "a rank outside of the world": ({}, {}, {"rank": 2}, {"RANK": "one launcher"}),
    "processes that cannot meet": (
        {},
        {},
        {"unset": ("MASTER_ADDR",)},
        {"MASTER_ADDR": "unset WORLD_SIZE"},
    ),
    "machines that cannot meet": (
        {},
        {"train_batch_size": "auto"},
        {"num_processes": 4, "machines": 3, "machine_rank": 3, "main_process_port": 0},
        {
            "num_processes": "experiments/several_machines.sh",
            "machine_rank": "machine_rank: 0 on the first",
            "main_process_ip": "main_process_ip: ADDRESS",
            "main_process_port": "main_process_port: 29500",
        },
    ),
    "five faults": (
        {"learning_rate": -1.0, "data_config.metadata_config.max_seq_len": 0, "task": "causal"},
        {"gradient_accumulation_steps": 4, "optimizer": DROP, "scheduler": DROP},
        {"mixed_precision": "fp16"},
        {
            "task": "task=causal_lm",
            "learning_rate": "learning_rate=",
            "data_config.metadata_config.max_seq_len": "max_seq_len=1024",
            "mixed_precision": "leave mixed_precision out",
            "gradient_accumulation_steps": 'write "auto"',
        },
    ),
    "metadata and the JSON": (
        {"data_config.metadata_config.metadata_probability": 1.5},
        {"gradient_clipping": 2.0},
        {},
        {
            "data_config.metadata_config.metadata_probability": "metadata_probability=0.5",
            "gradient_clipping": "gradient_clipping",
        },
    ),
    "a negative interval": ({"save_steps": -1}, {}, {}, {"save_steps": "save_steps=1"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_configuration_is_refused(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hydra, document, changes, expected = BROKEN[name]
    config, launch = made(tmp_path, hydra, document, changes)
    monkeypatch.setattr(checks, "read_launch", lambda *_: launch)
    unmade = dataclasses.replace(
        TASKS["causal_lm"], make=lambda _: pytest.fail("the task was made")
    )
    monkeypatch.setitem(TASKS, "causal_lm", unmade)

    assert exit_code(lambda: train.main(config)) == 2

    message = capsys.readouterr().err
    assert message.startswith("configuration error: ")
    problems = re.findall(r"^\d+\. (\S+|\(the file\)) in (.*)\n   Fix: (.*)$", message, re.M)
    assert [key for key, _, _ in problems] == list(expected)
    for (_, where, fix), part in zip(problems, expected.values(), strict=True):
        assert "found " in where
        assert "expected " in where
        assert part in fix


def test_what_agrees_is_filled_in(tmp_path: Path) -> None:
    assert run_check(tmp_path) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2},
    }


def test_auto_takes_the_values_of_hydra(tmp_path: Path) -> None:
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


def test_values_that_the_json_may_leave_out_are_written_into_it(tmp_path: Path) -> None:
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


def test_the_global_batch_is_shown_as_a_sum(tmp_path: Path) -> None:
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
def test_a_revision_of_what_is_read_from_the_hub(tmp_path: Path, data: dict[str, Any]) -> None:
    run_check(tmp_path, {"data_config.dataset_revision": "v1.0", **of_data(data)})


def of_data(values: dict[str, Any]) -> dict[str, Any]:
    return {f"data_config.{name}": value for name, value in values.items()}

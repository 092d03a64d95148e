"""The estimate: what is counted, against what a model and its optimizer really take."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import compose
from bsmeta.config.optimizers import OPTIMIZERS
from bsmeta.models.layers import recompute
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.training.estimate import amount, duration
from bsmeta.training.memory import (
    Counts,
    Stage,
    activations,
    count,
    measure_state,
    optimizer_bytes,
    state,
)
from bsmeta.training.optimizers import build_optimizer
from bsmeta.training.task import Shape
from tests.conftest import REPOSITORY, run_warm

SIZES = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            **SIZES, n_embd=64, n_layer=4, n_head=4, n_positions=256, attn_implementation="eager"
        )
    )


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def test_parameters_are_counted_without_weights() -> None:
    task = CausalLanguageModel(compose(CausalLMConfig, "demo"))
    shape = task.shape().model
    assert {one.device.type for one in shape.parameters()} == {"meta"}
    counted = count(shape)
    assert (counted.total, counted.trainable, counted.embeddings) == (1_328_256, 1_328_256, 524_288)
    assert count(task.build_model()) == counted


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_weights_gradients_and_optimizer_are_those_of_a_real_step(make: Any, name: str) -> None:
    model = make()
    optimizer = build_optimizer(model, CausalLMConfig(optimizer_type=name))
    model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    size = optimizer_bytes(model, OPTIMIZERS[name])
    assert measure_state(model, optimizer) == state(count(model), size, None, 1, half=False)


def test_each_stage_divides_one_thing_more() -> None:
    counts = Counts(total=1000, trainable=1000, embeddings=0)
    half = [state(counts, 8000, stage, 4, half=True) for stage in (0, 1, 2, 3)]
    assert [(one.weights, one.gradients, one.optimizer) for one in half] == [
        (2000, 2000, 12_000),
        (2000, 2000, 3000),
        (2000, 500, 3000),
        (500, 500, 3000),
    ]
    single = [state(counts, 8000, stage, 4, half=False) for stage in (0, 1)]
    assert [one.optimizer for one in single] == [8000, 3000]  # ZeRO adds its own float32 weights
    sharded = state(counts, 8000, "FSDP2", 4, half=True)
    assert (sharded.weights, sharded.gradients, sharded.optimizer) == (1000, 1000, 2000)
    plain = state(counts, 8028, None, 4, half=True)  # bf16 without DeepSpeed: weights stay float32
    assert (plain.weights, plain.gradients, plain.optimizer) == (4000, 4000, 8028)


def left_for_backward(model: torch.nn.Module, batch: int, length: int) -> int:
    """Bytes that a forward pass leaves for the backward pass, but for weights and logits."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.ones(batch, length, dtype=torch.long), use_cache=False)
    return sum(kept.values())


@pytest.mark.parametrize(("make", "recomputes"), [(gpt2, False), (llama, False), (llama, True)])
def test_activations_are_about_those_of_a_real_forward_pass(make: Any, recomputes: bool) -> None:
    model = make().train()
    planned = Shape(model, rows=4, length=128, keeps_scores=make is gpt2, loss_chunk=2**26)
    counted = activations(planned, half=False)
    assert counted is not None
    expected = counted.layers
    if recomputes:
        recompute(model, 1)
        # what is made again is not there after the forward pass
        expected = counted.layers_recomputed - 4 * counted.numbers * 4 * 128
    assert 0.9 < left_for_backward(model, 4, 128) / expected < 1.1


def test_a_model_of_unknown_shape_has_no_activations() -> None:
    assert activations(Shape(torch.nn.Linear(2, 2), rows=1, length=1), half=False) is None


def test_sizes_and_times_as_a_person_reads_them() -> None:
    assert [amount(one) for one in (5, 2048, 3 * 2**20, 5 * 2**30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
    assert [duration(one) for one in (59.6, 3599, 7260, 200_000)] == [
        "1 min 0 s",
        "59 min 59 s",
        "2 h 1 min",
        "2 d 7 h",
    ]


# What is printed of this launch (weights, gradients, optimizer) by engine, with two processes.
PRINTED = {
    None: "* data parallel 5.1 MiB 5.1 MiB 10.1 MiB",
    2: "* ZeRO-2 5.1 MiB 2.5 MiB 7.6 MiB",
    3: "* ZeRO-3 2.5 MiB 2.5 MiB 7.6 MiB",
    "FSDP2": "* FSDP2 2.5 MiB 2.5 MiB 5.1 MiB",
}


@pytest.mark.parametrize(
    "stage",
    [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (None, 3, "FSDP2"))],
)
def test_a_probe_measures_and_leaves_nothing(
    stage: Stage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable]
    if stage is not None:
        name = "cpu_fsdp2.yaml" if stage == "FSDP2" else "cpu_zero2.yaml"
        file = REPOSITORY / "experiments" / "accelerate" / name
        command += ["-m", "accelerate.commands.launch", "--config_file", str(file)]
    if isinstance(stage, int):
        document = json.loads((REPOSITORY / "deepspeed_configs" / "cpu.json").read_text())
        document["zero_optimization"] = {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        json_file = tmp_path_factory.mktemp("deepspeed") / "ds.json"
        json_file.write_text(json.dumps(document))
        command += ["--deepspeed_config_file", str(json_file)]
    command += [str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo", "estimate=true"]
    command += ["estimate_steps=2", "data_config.per_device_train_batch_size=1", "out_dir=run"]
    ended = run_warm(command, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []
    said = " ".join(ended.stdout.split())
    assert "parameters 1,328,256, of which trainable 1,328,256, in embeddings 524,288" in said
    assert PRINTED[stage] in said
    assert "probe 1 steps, after 1 to warm up" in said
    # What this rank holds beside what was counted: ZeRO-2 keeps float32 weights and moments of half
    # of the parameters, ZeRO-3 half of the weights, too.
    *_, weights, _, optimizer = re.findall(r"[\d.]+ MiB", PRINTED[stage])
    counted = f"weights {weights} (counted {weights}), optimizer {optimizer} (counted {optimizer})"
    assert counted in said
    assert re.search(r"time to finish 600 steps x [\d.]+ s = ", said)
    assert re.search(r"tokens/s [\d,]+ on all devices", said)

"""Counted weights, gradients and optimizer states, compared with a real step and with DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.schema import OPTIMIZERS
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.training.memory.states import (
    ParameterCounts,
    count_optimizer_bytes,
    count_parameters,
    count_state,
    measure_state,
)
from bsmeta.training.optimization import build_optimizer
from tests.training.memory.small_models import gpt2, llama


def test_parameters_are_counted_without_weights() -> None:
    task = CausalLanguageModel(compose_command_line(CausalLMConfig, "demo"))
    shape = task.shape().model
    assert {parameter.device.type for parameter in shape.parameters()} == {"meta"}
    counted = count_parameters(shape)
    assert (counted.total, counted.trainable, counted.embeddings) == (1_328_256, 1_328_256, 524_288)
    assert count_parameters(task.build_model()) == counted


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_weights_gradients_and_optimizer_equal_a_real_step(make: Any, name: str) -> None:
    model = make()
    optimizer = build_optimizer(model, CausalLMConfig(optimizer_type=name))
    model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    size = count_optimizer_bytes(model, OPTIMIZERS[name])
    assert measure_state(model, optimizer) == count_state(
        count_parameters(model), size, None, 1, half=False
    )


def test_each_stage_divides_one_more_part_of_the_state() -> None:
    counts = ParameterCounts(total=1000, trainable=1000, embeddings=0)
    half = [count_state(counts, 8000, stage, 4, half=True) for stage in (0, 1, 2, 3)]
    assert [(memory.weights, memory.gradients, memory.optimizer) for memory in half] == [
        (2000, 2000, 12_000),
        (2000, 2000, 3000),
        (2000, 500, 3000),
        (500, 500, 3000),
    ]
    single = [count_state(counts, 8000, stage, 4, half=False) for stage in (0, 1)]
    assert [memory.optimizer for memory in single] == [
        8000,
        3000,
    ]  # ZeRO adds its own float32 weights
    sharded = count_state(counts, 8000, "FSDP2", 4, half=True)
    assert (sharded.weights, sharded.gradients, sharded.optimizer) == (1000, 1000, 2000)
    plain = count_state(
        counts, 8028, None, 4, half=True
    )  # bf16 without DeepSpeed: weights stay float32
    assert (plain.weights, plain.gradients, plain.optimizer) == (4000, 4000, 8028)


@pytest.mark.parametrize("processes", [1, 8, 64])
def test_the_estimators_of_deepspeed_add_what_exists_only_during_a_step(processes: int) -> None:
    size, largest = 1_600_000_000, 200_000_000
    counts = ParameterCounts(total=size, trainable=size, embeddings=0)
    second, third = (count_state(counts, 8 * size, n, processes, half=True).total for n in (2, 3))
    _, theirs = estimate_zero2_model_states_mem_needs(size, processes, cpu_offload=False)
    assert theirs == second + 4 * size / processes  # float32 gradients
    _, theirs, gathered = estimate_zero3_model_states_mem_needs(
        size, largest, processes, cpu_offload=False, cpu_offload_params=False
    )
    assert theirs == third + 2 * size / processes + gathered
    assert gathered == 4 * largest

"""The benchmark of the loop: every loop that it compares, under both engines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bsmeta.config.cards import CARDS
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.schema import OPTIMIZERS
from bsmeta.models.layers import list_layers
from bsmeta.training.memory.activations import estimate_activations
from bsmeta.training.memory.cuda_rules import follow_cuda_rules
from bsmeta.training.memory.device_fit import RESERVED_BYTES
from bsmeta.training.memory.states import count_optimizer_bytes, count_parameters, count_state
from bsmeta.training.task import Shape
from tests.conftest import REPOSITORY

BENCHMARK = REPOSITORY / "experiments/benchmarks/loop.py"
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_each_loop_is_measured(launch: Launch) -> None:
    small = (
        "data_config.per_device_train_batch_size=1",
        "data_config.metadata_config.max_seq_len=64",
    )
    done = launch(BENCHMARK, "preset=cpu-tiny", "rounds=1", "steps=2", *small)
    assert "  save  " not in done.stdout + done.stderr
    result = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert (result["preset"], result["rounds"], result["steps"]) == ("cpu-tiny", 1, 2)
    for engine in ("torch", "zero2"):
        one = result[engine]
        assert list(one) == ["bare", "ours", "trainer", "ratios"]
        for loop in ("bare", "ours", "trainer"):
            assert one[loop]["tokens_per_s"] > 0
            assert one[loop]["tokens_per_cpu_s"] > 0
            assert 0 < one[loop]["data_wait_share"] < 1
        ours, bare = one["ours"]["tokens_per_s"], one["bare"]["tokens_per_s"]
        assert one["ratios"]["ours / bare (wall)"] == pytest.approx(ours / bare, rel=1e-3)


@pytest.mark.slow
def test_chosen_loops_are_measured_with_recomputation(launch: Launch) -> None:
    keys = ("arms=trainer,bare", "engines=torch", "rounds=1", "steps=2")
    small = (
        "data_config.per_device_train_batch_size=1",
        "data_config.metadata_config.max_seq_len=64",
        "gradient_checkpointing=true",
    )
    done = launch(BENCHMARK, "preset=cpu-tiny", *keys, *small)
    result = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert result["arms"] == ["trainer", "bare"]
    assert list(result["torch"]) == ["trainer", "bare", "ratios"]
    assert result["torch"]["ratios"] == {}  # of ours to the others


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "llama-1b"])
def test_a_preset_fits_a_gpu_of_80_gb(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the states of all loops, and gradients and activations of the running loop."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    import loop

    preset = loop.PRESETS[name]
    shape = AutoConfig.for_model(**preset.shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    model.tie_weights()
    sizes = {"rows": preset.rows, "length": preset.length, "outputs": shape.vocab_size}
    chunk = CausalLMConfig().loss_chunk_logits

    def needed(chunk: int) -> float:
        planned = Shape(model, model.base_model, list_layers(model), **sizes, loss_chunk=chunk)
        with follow_cuda_rules():
            return estimate_activations(planned, half=True, copies=True).total(recomputing=False)

    held = count_state(
        count_parameters(model),
        count_optimizer_bytes(model, OPTIMIZERS["adamw"]),
        None,
        1,
        half=True,
    )
    kept = len(preset.arms) * (held.weights + held.optimizer) + held.gradients
    # Transformers' Trainer computes all logits at once.
    largest = max(needed(0 if arm == "trainer" else chunk) for arm in preset.arms)
    assert kept + largest <= CARDS["H100"].memory - len(preset.arms) * RESERVED_BYTES


def test_an_unknown_loop_is_refused(launch: Launch) -> None:
    done = launch(BENCHMARK, "arms=ours,lightning", check=False)
    assert done.returncode == 1
    assert "arms=ours,lightning: expected some of bare,ours,trainer" in done.stderr


def test_an_unknown_preset_is_refused(launch: Launch) -> None:
    done = launch(BENCHMARK, "preset=gpt3", check=False)
    assert done.returncode == 1
    assert "expected one of cpu-tiny, gpt2, gpt2-xl, llama-1b" in done.stderr

"""What makes a run fast: what cannot run here, and keys without use."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.loop import find_loop_problems
from bsmeta.config.launch import Launch
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.checks import find_speed_problems


def list_problems(gpus: int = 8, stage: int | None = None, **values: Any) -> dict[str, str]:
    document = None if stage is None else {"zero_optimization": {"stage": stage}}
    launch = Launch(source="test", num_processes=1, gpus=gpus)
    config = CausalLMConfig(**values)
    found = [
        *find_speed_problems(config, launch, document),
        *find_loop_problems(config, launch, document, TASKS["causal_lm"]),
    ]
    return {problem.key: problem.fix for problem in found}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that flash-attn and Liger are installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_options_that_fit_the_launch_are_accepted(installed: None) -> None:
    assert list_problems(0) == {}
    assert list_problems(0, 3, gradient_checkpointing=True, gradient_checkpointing_every=2) == {}
    assert list_problems(0, 2, torch_compile=True, attn_implementation="sdpa") == {}
    assert list_problems(attn_implementation="flex_attention", liger_kernel=True) == {}
    assert list_problems(attn_implementation="flash_attention_2", mixed_precision="bf16") == {}
    assert list_problems(0, 2, torch_compile=True, attn_implementation="varlen") == {}
    assert list_problems(profile=True, profile_steps=[3, 3]) == {}


def test_options_for_gpus_are_refused_without_one(installed: None) -> None:
    sdpa = {"attn_implementation": "attn_implementation=sdpa"}
    assert list_problems(0, attn_implementation="flex_attention") == sdpa
    assert list_problems(0, attn_implementation="flash_attention_2", mixed_precision="bf16") == sdpa
    assert list_problems(0, liger_kernel=True) == {"liger_kernel": "liger_kernel=false"}


def test_kernels_that_are_not_deterministic_are_refused_in_a_deterministic_run(
    installed: None,
) -> None:
    assert list_problems(liger_kernel=True, deterministic=True) == {
        "liger_kernel": "liger_kernel=false, or deterministic=false"
    }
    assert list_problems(deterministic=True, attn_implementation="flex_attention") == {}
    flash = {"attn_implementation": "flash_attention_2", "mixed_precision": "bf16"}
    assert list_problems(deterministic=True, **flash) == {}


def test_flash_attention_needs_bf16_and_no_compilation(installed: None) -> None:
    flash = {"attn_implementation": "flash_attention_2"}
    assert "mixed_precision=bf16" in list_problems(**flash)["attn_implementation"]
    compiled = list_problems(**flash, mixed_precision="bf16", torch_compile=True)
    assert compiled["attn_implementation"] == "torch_compile=false, or attn_implementation=varlen"


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    flash = list_problems(attn_implementation="flash_attention_2", mixed_precision="bf16")
    assert "pip install flash-attn, or" in flash["attn_implementation"]
    assert "pip install liger-kernel" in list_problems(liger_kernel=True)["liger_kernel"]


def test_compiled_layers_need_unsharded_weights() -> None:
    assert list_problems(8, 3, torch_compile=True) == {
        "torch_compile": "torch_compile=false, or ZeRO-2"
    }


def test_a_key_without_effect_is_refused() -> None:
    assert list_problems(gradient_checkpointing_every=2) == {
        "gradient_checkpointing_every": "gradient_checkpointing=true"
    }


@pytest.mark.parametrize("steps", [[], [5], [7, 6], [1, 2, 3]])
def test_the_steps_of_a_profile_are_a_range(steps: list[int]) -> None:
    assert list_problems(profile_steps=steps) == {"profile_steps": "profile_steps=[10,12]"}

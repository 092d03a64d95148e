"""Checks the speed options against the launch, the engine and the installed libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.problems import HYDRA, Problem, show
from bsmeta.config.checks.shared import look_up
from bsmeta.config.launch import Launch

FLASH, FLEX = "flash_attention_2", "flex_attention"


def speed_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields options that cannot run here, and keys without effect.

    Args:
        config: The run.
        launch: How it is started.
        document: The DeepSpeed JSON, if one is used and could be read.
    """
    yield from _attention(config, launch)
    if config.liger_kernel:
        yield from _only_on_gpus("liger_kernel", True, launch, "liger_kernel=false")
        if importlib.util.find_spec("liger_kernel") is None:
            fix = "pip install liger-kernel, or liger_kernel=false"
            yield Problem("liger_kernel", HYDRA, show(True), "an installed library", fix)
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.torch_compile and stage == 3:
        expected = "false under ZeRO-3, which gathers weights between the compiled operations"
        fix = "torch_compile=false, or ZeRO-2"
        yield Problem("torch_compile", HYDRA, show(True), expected, fix)
    every = config.gradient_checkpointing_every
    if every > 1 and not config.gradient_checkpointing:
        key = "gradient_checkpointing_every"
        expected = "1, because gradient_checkpointing=false recomputes nothing"
        yield Problem(key, HYDRA, show(every), expected, "gradient_checkpointing=true")


def _attention(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    key, found = "attn_implementation", config.attn_implementation
    if found in (FLASH, FLEX):
        yield from _only_on_gpus(key, found, launch, f"{key}=sdpa")
    if found != FLASH:
        return
    if config.mixed_precision == "no":
        expected = "another one in float32: flash attention computes in bf16 or fp16"
        yield Problem(key, HYDRA, show(found), expected, f"mixed_precision=bf16, or {key}=sdpa")
    if config.torch_compile:
        expected = "another one with torch_compile: documents' borders have no fixed shape"
        yield Problem(key, HYDRA, show(found), expected, f"torch_compile=false, or {key}=sdpa")
    if importlib.util.find_spec("flash_attn") is None:
        fix = f"pip install flash-attn, or {key}=sdpa"
        yield Problem(key, HYDRA, show(found), "an installed library (flash_attn)", fix)


def _only_on_gpus(key: str, found: object, launch: Launch, fix: str) -> Iterator[Problem]:
    if launch.gpus == 0:
        yield Problem(key, HYDRA, show(found), "another value: there is no GPU to train on", fix)

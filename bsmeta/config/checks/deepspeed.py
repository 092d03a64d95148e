"""Checks the DeepSpeed JSON against Hydra, and fills in every "auto".

The defaults of missing keys are those of DeepSpeed 0.19.8. The trainer builds the optimizer and the
schedule itself: blocks for them must agree with Hydra, and are then removed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from bsmeta.config.batch import BatchPlan
from bsmeta.config.checks.optimizer import optimizer_problems
from bsmeta.config.checks.problems import Problem
from bsmeta.config.checks.shared import AUTO, Shared, compare, look_up, override_of
from bsmeta.config.checks.zero import GATHER, STAGE, auto_left, zero_problems
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig


def deepspeed_problems(
    document: Mapping[str, Any], config: RunConfig, launch: Launch
) -> Iterator[Problem]:
    """Yields every place where the JSON disagrees with Hydra or the launch, or lacks a key."""
    file = str(launch.deepspeed_config_file)
    values = shared_values(config, launch)
    for shared in values:
        yield from compare(document, shared, file)
    yield from optimizer_problems(document, config, file)
    yield from zero_problems(document, launch, file)
    # The optimizer and scheduler blocks are compared above, and removed before filling in.
    rest = {key: value for key, value in document.items() if key not in ("optimizer", "scheduler")}
    yield from auto_left(rest, {shared.key for shared in values}, file)


def shared_values(config: RunConfig, launch: Launch) -> list[Shared]:
    """The keys of the JSON that Hydra owns, with their values in this launch."""
    plan = BatchPlan.of(config, launch.num_processes)
    micro_batch = plan.key or "rows of a micro-batch, which vary"
    return [
        Shared(
            key="train_micro_batch_size_per_gpu",
            owner=f"{micro_batch} of Hydra" if plan.key else micro_batch,
            value=plan.micro_batch,
            default="train_batch_size / accumulation / processes",
            override=override_of(plan.key) if plan.key else None,
        ),
        Shared(
            key="gradient_accumulation_steps",
            owner="gradient_accumulation_steps of Hydra",
            value=plan.accumulation,
            default="1",
            override=override_of("gradient_accumulation_steps"),
        ),
        Shared(
            key="train_batch_size",
            owner=f"{plan.micro_batch} ({micro_batch}) x {plan.accumulation} "
            f"(gradient_accumulation_steps) x {plan.processes} (processes) = {plan.global_batch}",
            value=plan.global_batch,
        ),
        Shared(
            key="gradient_clipping",
            owner="gradient_clipping of Hydra",
            value=float(config.gradient_clipping),
            default="1.0",
            override=override_of("gradient_clipping"),
        ),
        *(_precision(name, config) for name in ("bf16", "fp16")),
    ]


def _precision(name: str, config: RunConfig) -> Shared:
    on = config.mixed_precision == name
    return Shared(
        key=f"{name}.enabled",
        owner=f"mixed_precision={config.mixed_precision} of Hydra",
        value=on,
        default="false" if on else None,
        override=lambda found: f"mixed_precision={name if found else 'no'}",
    )


def fill(document: Mapping[str, Any], config: RunConfig, launch: Launch) -> dict[str, Any]:
    """The JSON as passed to DeepSpeed: Hydra's values filled in, optimizer and scheduler removed.

    Only the bucket sizes that depend on the model's hidden size may still be `"auto"`.
    """
    filled = copy.deepcopy(dict(document))
    filled.pop("optimizer", None)
    filled.pop("scheduler", None)
    for shared in shared_values(config, launch):
        block, _, name = shared.key.rpartition(".")
        (filled.setdefault(block, {}) if block else filled)[name] = shared.value
    if look_up(filled, GATHER) == AUTO:
        block, _, name = GATHER.rpartition(".")
        filled[block][name] = look_up(filled, STAGE) == 3
    return filled

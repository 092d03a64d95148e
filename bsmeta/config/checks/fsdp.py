"""Checks an FSDP2 launch: `fsdp_config` of the launch file against Hydra and the trainer.

The launch file owns `fsdp_version` and `fsdp_reshard_after_forward`. Hydra owns precision,
recomputation and everything else that a field of `fsdp_config` could also say; such a field must
have the one value that agrees. The fields and their defaults are those of Accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bsmeta.config.launch import FSDP_FIELDS, Launch
from bsmeta.config.optimizers import ADAMW, OPTIMIZERS, UNDER_FSDP2
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import HYDRA, Problem, show

_RECOMPUTED = "gradient_checkpointing of Hydra decides what is recomputed"
# The fields with one valid value in this trainer: that value, and why.
_FIXED = {
    "fsdp_version": ("2", "FSDP1 is not supported"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "the trainer shards layer by layer"),
    "fsdp_cpu_ram_efficient_loading": (
        "false",
        "every rank loads and checks the weights (accelerate's default is true)",
    ),
    "fsdp_state_dict_type": ("SHARDED_STATE_DICT", "each rank saves its own shard"),
    "fsdp_offload_params": ("false", "offload is not supported under FSDP2"),
    "fsdp_activation_checkpointing": ("false", _RECOMPUTED),
    "fsdp_activation_checkpointing_offload": ("false", _RECOMPUTED),
}


@dataclass(frozen=True, kw_only=True)
class FullyShard:
    """What a launch file decides about FSDP2.

    Attributes:
        reshard_after_forward: Whether a layer's weights are freed after the forward pass and
            gathered again for the backward pass.
    """

    reshard_after_forward: bool = True


def fsdp_problems(config: RunConfig, launch: Launch, entry: TaskEntry) -> Iterator[Problem]:
    """Yields every field of `fsdp_config` and key of Hydra that does not work under FSDP2."""
    if launch.fsdp is None:
        return
    if not entry.fully_shards:
        expected = f"a launch without FSDP: task={config.task} does not train under FSDP2"
        fix = "another file of experiments/accelerate/, such as ddp.yaml"
        yield Problem("distributed_type", launch.source, "FSDP", expected, fix)
    yield from _fields(launch.fsdp, launch.source)
    if config.mixed_precision == "fp16":
        expected = '"bf16" or "no": fp16 is not supported under FSDP2'
        fix = "mixed_precision=bf16, or a launch file without FSDP"
        yield Problem("mixed_precision", HYDRA, show("fp16"), expected, fix)
    optimizer = OPTIMIZERS.get(config.optimizer_type)
    if optimizer is not None and not optimizer.takes_shards:
        expected = f"one of {UNDER_FSDP2} under FSDP2, which shards the parameters by rows"
        fix = f"optimizer_type={ADAMW}, or a launch file without FSDP"
        yield Problem("optimizer_type", HYDRA, show(config.optimizer_type), expected, fix)


def fully_shard_of(launch: Launch) -> FullyShard | None:
    """The settings of an FSDP2 launch that has passed the checks; None for any other."""
    if launch.fsdp is None:
        return None
    return FullyShard(reshard_after_forward=launch.fsdp["fsdp_reshard_after_forward"] == "true")


def _fields(fields: Mapping[str, str], source: str) -> Iterator[Problem]:
    for name, (variable, default) in FSDP_FIELDS.items():
        found = fields[name]
        if name == "fsdp_reshard_after_forward":
            is_valid, expected = found in ("true", "false"), "true or false"
            fix = f"{name}: true below fsdp_config"
        elif name in _FIXED:
            value, reason = _FIXED[name]
            is_valid = found in (value.lower(), "")  # "": the trainer's own value
            expected, fix = f"{value}: {reason}", f"{name}: {value} below fsdp_config"
        else:
            is_valid, expected = found == default, "no such key: FSDP2 or the trainer ignores it"
            fix = f"delete it below fsdp_config, or unset {variable}"
        if not is_valid:
            yield Problem(f"fsdp_config.{name}", source, found, expected, fix)

"""Checks the blocks of the DeepSpeed JSON: optimizer and scheduler, and `zero_optimization`.

The trainer builds optimizer and schedule from Hydra's values, so the first two are not needed, and
say no more than Hydra where they are present (for other trainers). `zero_optimization` is the one
block that Hydra does not own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bsmeta.config.launch import ZERO_VARIABLES, Launch
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.core.problems import (
    AUTO,
    MISSING,
    Problem,
    Shared,
    compare,
    look_up,
    nearest,
    show,
)

# Blocks for what the trainer builds itself: they must agree with Hydra, and are then removed.
REMOVED = ("optimizer", "scheduler")
OPTIMIZERS = ("AdamW", "Adam")
# lr_scheduler_type of Hydra -> scheduler.type of DeepSpeed.
SCHEDULERS = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR"}


def removed_problems(
    document: Mapping[str, Any], config: RunConfig, owned: Mapping[str, Shared], file: str
) -> Iterator[Problem]:
    """Yields what the blocks of optimizer and scheduler say that Hydra does not.

    Args:
        owned: The keys that a key of Hydra has; all others must be `"auto"`.
    """
    if "optimizer" in document:
        kind = look_up(document, "optimizer.type")
        if kind not in OPTIMIZERS:
            expected = f"AdamW, the trainer's optimizer{nearest(kind, OPTIMIZERS)}"
            fix = 'write "type": "AdamW", or delete the optimizer block'
            yield Problem("optimizer.type", file, show(kind), expected, fix)
    if "scheduler" in document:
        yield from _scheduler_problems(look_up(document, "scheduler.type"), config, file)
    for block in REMOVED:
        parameters = look_up(document, f"{block}.params")
        for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
            key = f"{block}.params.{name}"
            if key in owned:
                yield from compare(document, owned[key], file)
            elif value != AUTO:
                expected = '"auto": the trainer builds it from the values of Hydra'
                yield Problem(key, file, show(value), expected, 'write "auto", or delete it')


def _scheduler_problems(kind: Any, config: RunConfig, file: str) -> Iterator[Problem]:
    if config.lr_scheduler_type == WSD:
        expected = f"no scheduler block: DeepSpeed has no lr_scheduler_type={WSD} of Hydra"
        yield Problem("scheduler.type", file, show(kind), expected, "delete the scheduler block")
        return
    wanted = SCHEDULERS.get(config.lr_scheduler_type)
    if wanted is None or kind == wanted:  # None: reported by the checks of Hydra's values
        return
    expected = f"{wanted} (lr_scheduler_type={config.lr_scheduler_type} of Hydra)"
    fix = f'write "type": "{wanted}", or delete the scheduler block'
    for hydra, name in SCHEDULERS.items():
        if name == kind:
            fix += f", or pass lr_scheduler_type={hydra}"
    yield Problem("scheduler.type", file, show(kind), expected + nearest(kind, [wanted]), fix)


# "auto" here is filled in from the model's hidden size once the model is loaded.
HIDDEN_SIZE_KEYS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
STAGE = "zero_optimization.stage"
FORCE = "zero_force_ds_cpu_optimizer"
GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"


def zero_problems(document: Mapping[str, Any], launch: Launch, file: str) -> Iterator[Problem]:
    """Yields problems with the ZeRO stage, and with what it saves and offloads."""
    if not isinstance(document.get("zero_optimization"), Mapping):
        found = show(look_up(document, "zero_optimization"))
        fix = 'write "zero_optimization": {"stage": 2}'
        yield Problem("zero_optimization", file, found, 'an object with at least "stage"', fix)
        return
    stage = look_up(document, STAGE)
    if type(stage) is not int or not 0 <= stage <= 3:
        default = " (DeepSpeed would silently take 0)" if stage is MISSING else ""
        expected = f"0, 1, 2 or 3{default}"
        yield Problem(STAGE, file, show(stage), expected, 'write "stage": 2, for example')
        return
    if stage == 3 and look_up(document, GATHER) not in (True, AUTO):
        expected = "true: without it, a ZeRO-3 model cannot be saved in from_pretrained form"
        fix = f'write "{GATHER.rpartition(".")[2]}": true or "auto"'
        yield Problem(GATHER, file, show(look_up(document, GATHER)), expected, fix)
    if stage != 3 and launch.zero3_init:
        expected = f"false, because {file} has stage {stage}"
        fix = "zero3_init_flag: false, or a DeepSpeed JSON of stage 3"
        key = "deepspeed_config.zero3_init_flag"
        yield Problem(key=key, file=launch.source, found="true", expected=expected, fix=fix)
    yield from _ignored_options(document, stage, launch, file)
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        yield from _offload(document, f"zero_optimization.{name}", least, stage, launch, file)


def _ignored_options(
    document: Mapping[str, Any], stage: int, launch: Launch, file: str
) -> Iterator[Problem]:
    """Yields options of `accelerate launch` that differ from the JSON, which takes precedence."""
    for variable, text in launch.zero_options.items():
        key = f"zero_optimization.{ZERO_VARIABLES[variable]}"
        if key == GATHER and stage != 3:
            continue  # without effect, whatever its value
        in_json = look_up(document, key)
        if key == GATHER and in_json == AUTO:
            in_json = True
        default = "none" if in_json in (MISSING, None) else in_json
        if text.lower() != str(default).lower():
            option = f"--{variable.removeprefix('ACCELERATE_DEEPSPEED_').lower()}"
            expected = f"nothing, or {default} as in {file}, beside which accelerate ignores it"
            fix = f"leave out {option} of accelerate launch (or unset {variable}), or write {key}"
            yield Problem(variable, launch.source, show(text), expected, fix)


def _offload(
    document: Mapping[str, Any], key: str, least: int, stage: int, launch: Launch, file: str
) -> Iterator[Problem]:
    block = look_up(document, key)
    if block is MISSING or block is None:
        return
    device = look_up(document, f"{key}.device")
    if device not in ("none", "cpu", "nvme"):
        expected = '"none", "cpu" or "nvme"'
        yield Problem(f"{key}.device", file, show(device), expected, f"correct it, or delete {key}")
        return
    if device == "none":
        return
    if stage < least:
        expected = f"no offload, which needs stage {least} or more (the stage is {stage})"
        yield Problem(key, file, show(block), expected, f'delete it, or write "stage": {least}')
    if launch.gpus == 0:
        expected = "no offload: there is no GPU to move anything off"
        yield Problem(
            key, file, show(block), expected, "delete it, or use deepspeed_configs/cpu.json"
        )
    if key.endswith("offload_optimizer") and look_up(document, FORCE) is not False:
        expected = "false: AdamW is the trainer's, and DeepSpeed would end the run to have its own"
        found = show(look_up(document, FORCE))
        yield Problem(FORCE, file, found, expected, f'write "{FORCE}": false')
    if device == "nvme" and not isinstance(look_up(document, f"{key}.nvme_path"), str):
        found = look_up(document, f"{key}.nvme_path")
        fix = 'write "nvme_path": "/a/local/disk"'
        yield Problem(f"{key}.nvme_path", file, show(found), "a folder on an NVMe disk", fix)


def auto_left(document: Mapping[str, Any], known: set[str], file: str) -> Iterator[Problem]:
    """Yields every `"auto"` for which there is no value to fill in."""
    for key in _autos(document, ""):
        if key not in known and key not in (*HIDDEN_SIZE_KEYS, GATHER):
            expected = 'a value; nothing says what "auto" would be here'
            yield Problem(key, file, show(AUTO), expected, "write the value, or delete the key")


def _autos(node: Any, prefix: str) -> Iterator[str]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _autos(value, f"{prefix}.{name}" if prefix else name)
    elif node == AUTO:
        yield prefix

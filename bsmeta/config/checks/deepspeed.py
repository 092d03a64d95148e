"""Checks the DeepSpeed JSON, alone and against Hydra, and fills in every "auto".

The file must be readable, without duplicate keys or keys that DeepSpeed ignores; its blocks must
pass DeepSpeed's own models, which would otherwise refuse them only after the language model is
loaded. The defaults of missing keys are those of DeepSpeed 0.19.8. The trainer builds the optimizer
and the schedule itself: blocks for them must agree with Hydra, and are then removed.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bsmeta.config.checks.deepspeed_blocks import (
    GATHER,
    REMOVED,
    STAGE,
    auto_left,
    removed_problems,
    zero_problems,
)
from bsmeta.config.describe import keys
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.core.problems import (
    AUTO,
    MISSING,
    Problem,
    Shared,
    compare,
    look_up,
    nearest,
    override_of,
    show,
)

# The top-level keys of DeepSpeed 0.19.8, except those that would change the configured training
# (elasticity, amp, curriculum learning, …). DeepSpeed ignores unknown keys there.
TOP_LEVEL = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "bf16", "fp16", "zero_optimization", "optimizer", "scheduler",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "communication_data_type",
    "data_types", "prescale_gradients", "gradient_predivide_factor", "aio", "checkpoint",
    "comms_logger", "dump_state", "flops_profiler", "memory_breakdown", "steps_per_print",
    "wall_clock_breakdown",
}  # fmt: skip

# Blocks that a Hydra key replaces. DeepSpeed's recomputation needs calls that the models do not
# make, so its block would have no effect; its monitors would log in addition to the trackers.
ELSEWHERE = {
    "activation_checkpointing": "gradient_checkpointing",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "csv_monitor": "trackers",
}

# Keys of `checkpoint` that the trainer sets, or that would split a checkpoint across machines.
CHECKPOINT = ("load_universal", "use_node_local_storage")

# Keys of `zero_optimization` without which the trainer cannot do its work, or that replace it.
NOT_RUN = ("compute_grad_norm", "legacy_stage1", "zenflow")

WHOLE = "(the file)"


def read_json(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Reads a DeepSpeed JSON; returns its object and the problems of the file itself.

    A missing file is reported by the check of the launch.
    """
    if not path.is_file():
        return None, []
    file = str(path)
    twice: list[str] = []
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _object(pairs, twice)
        )
    except OSError as error:
        fix = "make it readable, or name another file"
        return None, [Problem(WHOLE, file, str(error.strerror), "a file that can be read", fix)]
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, [Problem(WHOLE, file, str(error), "JSON", "fix it there")]
    if not isinstance(document, dict):
        found = type(document).__name__
        return None, [Problem(WHOLE, file, found, "an object", "begin the file with {")]
    problems = [
        Problem(key, file, "two values", "one (the last wins silently)", "delete one of them")
        for key in twice
    ]
    return document, [*problems, *_unknown(document, file)]


def _object(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice += sorted({name for name in names if names.count(name) > 1})
    return dict(pairs)


def _unknown(document: dict[str, Any], file: str) -> Iterator[Problem]:
    for name, owner in ELSEWHERE.items():
        if name in document:
            fix = f"delete it, and pass {owner}=… instead"
            yield Problem(name, file, "a block", f"no such block: {owner} of Hydra says it", fix)
    for name in CHECKPOINT:
        if look_up(document, f"checkpoint.{name}") is True:
            expected = "no such key: the trainer keeps whole checkpoints, and converts them itself"
            yield Problem(f"checkpoint.{name}", file, show(True), expected, "delete it")
    for name in NOT_RUN:
        found = look_up(document, f"zero_optimization.{name}")
        if found is not MISSING:
            expected = "no such key: the trainer does not run DeepSpeed with it"
            yield Problem(f"zero_optimization.{name}", file, show(found), expected, "delete it")
    for name in document:
        if name not in TOP_LEVEL and name not in ELSEWHERE:
            expected = f"a key that this trainer runs DeepSpeed with{nearest(name, TOP_LEVEL)}"
            fix = "correct the name, or delete it"
            yield Problem(name, file, "an unknown key", expected, fix)


def deepspeed_problems(
    document: Mapping[str, Any], config: RunConfig, launch: Launch
) -> Iterator[Problem]:
    """Yields every place where the JSON disagrees with Hydra or the launch, or lacks a key."""
    file = str(launch.deepspeed_config_file)
    values = shared_values(config, launch)
    for shared in values:
        yield from compare(document, shared, file)
    owned = {shared.key: shared for shared in _equal(config)}
    yield from removed_problems(document, config, owned, file)
    yield from zero_problems(document, launch, file)
    # The optimizer and scheduler blocks are compared above, and removed before filling in.
    rest = {key: value for key, value in document.items() if key not in REMOVED}
    yield from auto_left(rest, {shared.key for shared in values}, file)


def shared_values(config: RunConfig, launch: Launch) -> list[Shared]:
    """The keys of the JSON that Hydra owns, with their values in this launch."""
    plan = BatchPlan.of(config, launch.num_processes)
    micro_batch = plan.key or "rows of a micro-batch, which vary"
    batch = [
        Shared(
            key="train_micro_batch_size_per_gpu",
            owner=f"{micro_batch} of Hydra" if plan.key else micro_batch,
            value=plan.micro_batch,
            default="train_batch_size / accumulation / processes",
            override=override_of(plan.key) if plan.key and not plan.is_total else None,
        ),
        Shared(
            key="train_batch_size",
            owner=f"{plan.micro_batch} ({micro_batch}) x {plan.accumulation} "
            f"(gradient_accumulation_steps) x {plan.processes} (processes) = {plan.global_batch}",
            value=plan.global_batch,
        ),
    ]
    precision = [_precision(name, config) for name in ("bf16", "fp16")]
    calculated = {shared.key for shared in (*batch, *precision)}
    equal = [shared for shared in _equal(config) if shared.key.partition(".")[0] not in REMOVED]
    return [*batch, *(shared for shared in equal if shared.key not in calculated), *precision]


def _equal(config: RunConfig) -> Iterator[Shared]:
    """Yields the keys of the JSON that a key of the schema names and that have its value."""
    for key in keys(type(config)):
        twin = key.deepspeed
        if twin is not None and ", " not in twin:
            yield Shared(
                key=twin,
                owner=f"{key.name} of Hydra",
                value=reduce(getattr, key.name.split("."), config),
                default=key.deepspeed_default,
                override=override_of(key.name),
            )


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
    for block in REMOVED:
        filled.pop(block, None)
    for shared in shared_values(config, launch):
        block, _, name = shared.key.rpartition(".")
        (filled.setdefault(block, {}) if block else filled)[name] = shared.value
    if look_up(filled, GATHER) == AUTO:
        block, _, name = GATHER.rpartition(".")
        filled[block][name] = look_up(filled, STAGE) == 3
    return filled


# Blocks that DeepSpeed reads without a pydantic model.
_PLAIN_BLOCKS = ("aio", "checkpoint", "data_types", "flops_profiler", "optimizer", "scheduler")
# Top-level values, which DeepSpeed does not validate; wrong ones fail later.
_FLAGS = (
    "dump_state", "memory_breakdown", "prescale_gradients", "wall_clock_breakdown",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)  # fmt: skip
_NUMBERS = ("gradient_predivide_factor", "steps_per_print")


def model_problems(document: Mapping[str, Any], known: set[str], file: str) -> Iterator[Problem]:
    """Yields the values that DeepSpeed would refuse.

    Args:
        known: Dotted keys for which a problem has already been found.
    """
    for key in _FLAGS:
        if key in document and document[key] != AUTO and not isinstance(document[key], bool):
            yield Problem(key, file, show(document[key]), "true or false", "correct the value")
    for key in _NUMBERS:
        value = document.get(key, AUTO)
        if value != AUTO and type(value) not in (int, float):
            yield Problem(key, file, show(value), "a number", "correct the value")
    models = _models()
    for block in (*models, *_PLAIN_BLOCKS):
        if block not in document or block in known:
            continue
        if not isinstance(document[block], Mapping):
            fix = f'write "{block}": {{…}}, or delete it'
            yield Problem(block, file, show(document[block]), "an object with keys", fix)
        elif block in models:
            yield from _block_problems(document[block], block, models[block], known, file)


def _models() -> dict[str, type[BaseModel]]:
    logging.disable(logging.WARNING)  # importing DeepSpeed logs the device that it finds
    try:
        from deepspeed.comm.config import CommsLoggerConfig
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    finally:
        logging.disable(logging.NOTSET)
    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
    }


def _block_problems(
    content: Mapping[str, Any], block: str, model: type[BaseModel], known: set[str], file: str
) -> Iterator[Problem]:
    old = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        if name in content and isinstance(extra, dict) and extra.get("deprecated"):
            old[name] = extra["new_param"]
            expected, fix = f"its new name, {old[name]}", f"write {old[name]} instead"
            yield Problem(f"{block}.{name}", file, "an old name", expected, fix)
    values = {
        name: value
        for name, value in _without_auto(content).items()
        if f"{block}.{name}" not in known and name not in old
    }
    try:
        model(**values)
    except ValidationError as error:
        for found in error.errors():
            key = ".".join([block, *map(str, found["loc"])])
            if key in known:
                continue
            if found["type"] == "extra_forbidden":
                expected = f"a key that DeepSpeed knows{_nearest_key(model, found['loc'])}"
                fix = "correct the name, or delete it"
                yield Problem(key, file, "an unknown key", expected, fix)
            else:
                expected = found["msg"].removeprefix("Input should be ")
                fix = "correct the value, or delete the key"
                yield Problem(key, file, show(found["input"]), expected, fix)


def _nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """The suggestion for an unknown key, which may be in a nested model."""
    fields = model.model_fields
    for name in path[:-1]:
        inner = next((f for n, f in fields.items() if name in (n, f.alias)), None)
        models = getattr(inner and inner.annotation, "__args__", (inner and inner.annotation,))
        nested = [m for m in models if isinstance(m, type) and issubclass(m, BaseModel)]
        if not nested:
            return ""
        fields = nested[0].model_fields
    return nearest(path[-1], [field.alias or name for name, field in fields.items()])


def _without_auto(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value != AUTO
    }

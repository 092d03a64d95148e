"""Checks the DeepSpeed JSON, alone and against Hydra, and fills in every "auto".

The file must be readable, without duplicate keys or keys that DeepSpeed ignores; its blocks must
pass DeepSpeed's own models, which would otherwise refuse them only after the language model is
loaded. The defaults of missing keys are those of DeepSpeed 0.19.8. The trainer builds the optimizer
and the schedule itself: blocks for them (for other trainers) must agree with Hydra, and are then
removed. `zero_optimization` is the one block that Hydra does not own.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bsmeta.config.launch import ZERO_VARIABLES, Launch
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import MISSING, Problem, look_up, nearest, same, same_type, show
from bsmeta.core.keys import about, leaves

AUTO = "auto"
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

# Blocks for what the trainer builds itself: they must agree with Hydra, and are then removed.
REMOVED = ("optimizer", "scheduler")

OPTIMIZERS = ("AdamW", "Adam")

# lr_scheduler_type of Hydra -> scheduler.type of DeepSpeed.
SCHEDULERS = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR"}

# Blocks that DeepSpeed reads without a pydantic model.
_PLAIN_BLOCKS = ("aio", "checkpoint", "data_types", "flops_profiler", "optimizer", "scheduler")

# Top-level values, which DeepSpeed does not validate; wrong ones fail later.
_FLAGS = (
    "dump_state", "memory_breakdown", "prescale_gradients", "wall_clock_breakdown",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)  # fmt: skip

_NUMBERS = ("gradient_predivide_factor", "steps_per_print")

# "auto" here is filled in from the model's hidden size once the model is loaded.
HIDDEN_SIZE_KEYS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)

STAGE = "zero_optimization.stage"

FORCE = "zero_force_ds_cpu_optimizer"

GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A key of the JSON whose value Hydra owns.

    Attributes:
        key: The key in the JSON, dotted.
        owner: The Hydra key (or the calculation) that determines the value, as shown in messages.
        value: The value according to Hydra.
        default: What DeepSpeed uses if the key is missing; None: a missing key is no problem.
        override: Returns the override that makes Hydra agree with a value of the JSON; None: there
            is none.
    """

    key: str
    owner: str
    value: Any
    default: str | None = None
    override: Callable[[Any], str] | None = None


def override_of(name: str) -> Callable[[Any], str]:
    """Returns a function that formats a value as `name=value` for the command line."""
    return lambda value: f"{name}={show(value)}"


def compare(document: Mapping[str, Any], shared: Shared, file: str) -> Iterator[Problem]:
    """Yields a problem unless the JSON has `"auto"` or Hydra's value, in Hydra's type."""
    found = look_up(document, shared.key)
    expected = f'"auto" or {show(shared.value)} ({shared.owner})'
    write = f'write "auto" for {shared.key} in {file}'
    if found is MISSING:
        if shared.default is not None:
            missing = f"no such key (DeepSpeed would silently take {shared.default})"
            yield Problem(shared.key, file, missing, expected, write)
        return
    if found == AUTO or same(found, shared.value):
        return
    if shared.override is not None and same_type(found, shared.value):
        write += f", or pass {shared.override(found)}"
    yield Problem(shared.key, file, show(found), expected, write)


def check_json(
    path: Path, config: RunConfig, launch: Launch
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Reads a DeepSpeed JSON; returns its object and all of its problems."""
    document, problems = read_json(path)
    if document is not None:
        problems += deepspeed_problems(document, config, launch)
        problems += model_problems(document, {problem.key for problem in problems}, str(path))
    return document, problems


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
            yield Problem(name, file, "a block", f"no such block: set {owner} in Hydra", fix)
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
    for name, section, field in leaves(config):
        twin = about(field).deepspeed
        if twin is not None and ", " not in twin:
            yield Shared(
                key=twin,
                owner=f"{name} of Hydra",
                value=getattr(section, field.name),
                default=about(field).deepspeed_default,
                override=override_of(name),
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

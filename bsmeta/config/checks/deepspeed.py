"""Checks the DeepSpeed JSON, alone and against Hydra, and fills in every "auto".

The file must be readable, without duplicate keys and without keys that DeepSpeed ignores. Its
blocks must pass DeepSpeed's own pydantic models, which would otherwise refuse them only after the
language model is loaded. The defaults of missing keys are those of DeepSpeed 0.19.8.

Hydra determines the values of every block except `zero_optimization`. The trainer builds the
optimizer and the schedule itself: their blocks, which other trainers read, must agree with Hydra,
and are then removed.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bsmeta.config.launch import ZERO_VARIABLES, Launch
from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import (
    MISSING,
    Problem,
    equals_exactly,
    format_value,
    has_same_type,
    look_up,
    suggest_nearest,
)
from bsmeta.core.keys import get_declaration, iterate_leaves
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import declare_secrets_in

AUTO = "auto"

# DeepSpeed validates only the first four blocks, with pydantic models. Wrong values elsewhere fail
# later.
_BLOCKS = (
    "zero_optimization", "bf16", "fp16", "comms_logger", "aio", "checkpoint", "data_types",
    "flops_profiler", "optimizer", "scheduler",
)  # fmt: skip
_FLAGS = (
    "dump_state", "memory_breakdown", "prescale_gradients", "wall_clock_breakdown",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)  # fmt: skip
_NUMBERS = ("gradient_predivide_factor", "steps_per_print")

# The top-level keys of DeepSpeed 0.19.8, except those that would change the configured training
# (elasticity, amp, curriculum learning, …). DeepSpeed ignores unknown keys there.
_TOP_LEVEL_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "communication_data_type", *_BLOCKS, *_FLAGS, *_NUMBERS,
)  # fmt: skip

# Blocks that a Hydra key replaces. DeepSpeed's recomputation needs calls that the models do not
# make, so its block would have no effect; its monitors would log in addition to the trackers.
_BLOCKS_SET_IN_HYDRA = {
    "activation_checkpointing": "gradient_checkpointing",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "csv_monitor": "trackers",
}

# Switches of DeepSpeed's own checkpoints, which the trainer does not use.
_CHECKPOINT_SWITCHES = ("checkpoint.load_universal", "checkpoint.use_node_local_storage")
# Keys with which DeepSpeed takes over work of the trainer, or withholds values that it needs, and
# why they are refused.
_NOT_RUN = "the trainer does not run DeepSpeed with it"
_UNSUPPORTED_KEYS = {
    "zero_optimization.compute_grad_norm": _NOT_RUN,
    "zero_optimization.legacy_stage1": _NOT_RUN,
    "zero_optimization.offload_optimizer.ratio": (
        "with it, weights on the GPU have a second optimizer, whose state a checkpoint would lack; "
        "without it, the whole optimizer is in main memory"
    ),
    "zero_optimization.offload_optimizer.super_offload": (
        "with it, the moments are in a process of DeepSpeed, where no checkpoint can read them; "
        'without it, "device": "cpu" has the optimizer in main memory'
    ),
    "zero_optimization.zenflow": _NOT_RUN,
}

_WHOLE_FILE = "(the file)"
_SPELLING_FIX = "correct the name, or delete it"

# Blocks of objects that the trainer builds itself.
_REMOVED_BLOCKS = ("optimizer", "scheduler")
_OPTIMIZERS = ("AdamW", "Adam")
# lr_scheduler_type of Hydra -> scheduler.type of DeepSpeed.
_SCHEDULERS = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR"}

_ZERO_BLOCK = "zero_optimization"
_STAGE_KEY = "zero_optimization.stage"
_FORCE_KEY = "zero_force_ds_cpu_optimizer"
_GATHER_NAME = "stage3_gather_16bit_weights_on_model_save"
_GATHER_KEY = f"zero_optimization.{_GATHER_NAME}"
# "auto" here is filled in from the model's hidden size once the model is loaded.
_HIDDEN_SIZE_KEYS = tuple(
    f"zero_optimization.{name}"
    for name in (
        "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _SharedKey:
    """A key of the JSON whose value Hydra determines.

    Attributes:
        key: The dotted key in the JSON.
        owner: The Hydra key or the calculation that determines the value, for messages.
        value: The value that Hydra determines.
        default: The value that DeepSpeed uses if the key is missing, for messages; None: the key
            may be missing.
        override: Formats the override that makes Hydra agree with a value of the JSON; None: there
            is no such override.
    """

    key: str
    owner: str
    value: Any
    default: str | None = None
    override: Callable[[Any], str] | None = None


def read_json(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Reads a DeepSpeed JSON.

    Returns:
        The object, and the problems of the file itself. The object is None if the file is not
        readable or is missing; the check of the launch reports a missing file.
    """
    if not path.is_file():
        return None, []
    file = str(path)
    duplicates: list[str] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        duplicates.extend(sorted(name for name, count in counts.items() if count > 1))
        return dict(pairs)

    try:
        document = parse_json(path.read_text(encoding="utf-8"), object_pairs_hook=make_object)
    except OSError as error:
        reason = str(error.strerror)
        fix = "make it readable, or name another file"
        return None, [Problem(_WHOLE_FILE, file, reason, "a file that can be read", fix)]
    except ValueError as error:
        return None, [Problem(_WHOLE_FILE, file, str(error), "JSON", "fix it there")]
    if not isinstance(document, dict):
        found = type(document).__name__
        return None, [Problem(_WHOLE_FILE, file, found, "an object", "begin the file with {")]

    declare_secrets_in(document)  # DeepSpeed prints the document
    return document, [
        Problem(key, file, "two values", "one (the last wins silently)", "delete one of them")
        for key in duplicates
    ]


class DeepSpeedJson:
    """A DeepSpeed JSON, and the configuration and the launch with which it must agree."""

    def __init__(self, document: Mapping[str, Any], config: RunConfig, launch: Launch) -> None:
        self._document = document
        self._config = config
        self._launch = launch
        self._file = str(launch.deepspeed_config_file)

    def find_problems(self, reported: set[str]) -> list[Problem]:
        """Returns the problems of the document.

        Args:
            reported: Dotted keys for which a problem has already been reported.
        """
        problems = [*self._find_unknown_keys(), *self.find_disagreements()]
        reported = reported.union(problem.key for problem in problems)
        return [*problems, *self._find_invalid_values(reported)]

    def fill_values(self) -> dict[str, Any]:
        """Returns the document that DeepSpeed reads.

        It has the values of Hydra, and no blocks for optimizer and scheduler. Only the bucket sizes
        that depend on the model's hidden size may still be `"auto"`.
        """
        filled = copy.deepcopy(dict(self._document))
        for block in _REMOVED_BLOCKS:
            filled.pop(block, None)

        for shared in self._list_shared_keys():
            block, _, name = shared.key.rpartition(".")
            section = filled.setdefault(block, {}) if block else filled
            section[name] = shared.value

        if look_up(filled, _GATHER_KEY) == AUTO:
            is_stage_3 = look_up(filled, _STAGE_KEY) == 3
            filled[_ZERO_BLOCK][_GATHER_NAME] = is_stage_3
        return filled

    def find_disagreements(self) -> Iterator[Problem]:
        """Yields a problem for each key that is missing, or disagrees with Hydra or the launch."""
        shared_keys = self._list_shared_keys()
        for shared in shared_keys:
            yield from self._compare_value(shared)
        yield from self._compare_removed_blocks()
        yield from self._find_zero_problems()

        can_be_auto = {shared.key for shared in shared_keys} | {*_HIDDEN_SIZE_KEYS, _GATHER_KEY}
        remaining = {
            key: value for key, value in self._document.items() if key not in _REMOVED_BLOCKS
        }
        for key in _find_auto_values(remaining, ""):
            if key not in can_be_auto:
                expected = 'a value; nothing says what "auto" would be here'
                yield self._describe_problem(key, expected, "write the value, or delete the key")

    def _read_value(self, key: str) -> Any:
        """Returns the value of a dotted key of the document; `MISSING` if it is absent."""
        return look_up(self._document, key)

    def _describe_problem(
        self, key: str, expected: str, fix: str, found: str | None = None
    ) -> Problem:
        """Returns the problem of a key of the document.

        Args:
            found: The value as text; None: the value of the key.
        """
        found = format_value(self._read_value(key)) if found is None else found
        return Problem(key, self._file, found, expected, fix)

    def _find_unknown_keys(self) -> Iterator[Problem]:
        """Yields a problem for each key that DeepSpeed ignores, or that the trainer refuses."""
        for name, owner in _BLOCKS_SET_IN_HYDRA.items():
            if name in self._document:
                fix = f"delete it, and pass {owner}=… instead"
                yield self._describe_problem(
                    name, f"no such block: set {owner} in Hydra", fix, "a block"
                )

        for key in _CHECKPOINT_SWITCHES:
            if self._read_value(key) is True:
                expected = "no such key: the trainer writes and reads checkpoints itself"
                yield self._describe_problem(key, expected, "delete it")
        for key, reason in _UNSUPPORTED_KEYS.items():
            if self._read_value(key) is not MISSING:
                yield self._describe_problem(key, f"no such key: {reason}", "delete it")

        for name in self._document:
            if name not in _TOP_LEVEL_KEYS and name not in _BLOCKS_SET_IN_HYDRA:
                suggestion = suggest_nearest(name, _TOP_LEVEL_KEYS)
                expected = f"a key that this trainer runs DeepSpeed with{suggestion}"
                yield self._describe_problem(name, expected, _SPELLING_FIX, "an unknown key")

    def _list_shared_keys(self) -> list[_SharedKey]:
        """Lists the keys whose values Hydra determines, with their values in this launch."""
        batch_keys = self._list_batch_keys()
        batch_names = {shared.key for shared in batch_keys}
        equal_keys = [
            shared
            for shared in self._list_equal_keys()
            if shared.key not in batch_names and shared.key.partition(".")[0] not in _REMOVED_BLOCKS
        ]
        precisions = [self._make_precision_key("bf16"), self._make_precision_key("fp16")]
        return [*batch_keys, *equal_keys, *precisions]

    def _list_batch_keys(self) -> list[_SharedKey]:
        """Lists the keys for the rows of a process and of a step, with their values."""
        plan = BatchPlan.of(self._config, self._launch.num_processes)
        micro_batch = plan.key or "rows of a micro-batch, which vary"
        override = None
        if plan.key and not plan.is_total:
            override = _make_override_formatter(plan.key)

        rows_per_process = _SharedKey(
            key="train_micro_batch_size_per_gpu",
            owner=f"{micro_batch} of Hydra" if plan.key else micro_batch,
            value=plan.micro_batch,
            default="train_batch_size / accumulation / processes",
            override=override,
        )
        rows_per_step = _SharedKey(
            key="train_batch_size",
            owner=f"{plan.micro_batch} ({micro_batch}) x {plan.accumulation} "
            f"(gradient_accumulation_steps) x {plan.processes} (processes) = {plan.global_batch}",
            value=plan.global_batch,
        )
        return [rows_per_process, rows_per_step]

    def _list_equal_keys(self) -> Iterator[_SharedKey]:
        """Yields the keys of the JSON that must equal a key of the schema, with their values."""
        for name, section, field in iterate_leaves(self._config):
            deepspeed_key = get_declaration(field).deepspeed
            if deepspeed_key is not None and ", " not in deepspeed_key:
                yield _SharedKey(
                    key=deepspeed_key,
                    owner=f"{name} of Hydra",
                    value=getattr(section, field.name),
                    default=get_declaration(field).deepspeed_default,
                    override=_make_override_formatter(name),
                )

    def _make_precision_key(self, name: str) -> _SharedKey:
        """Returns the key that enables `bf16` or `fp16`, with its value."""
        precision = self._config.mixed_precision
        return _SharedKey(
            key=f"{name}.enabled",
            owner=f"mixed_precision={precision} of Hydra",
            value=precision == name,
            default="false" if precision == name else None,
            override=lambda is_enabled: f"mixed_precision={name if is_enabled else 'no'}",
        )

    def _compare_value(self, shared: _SharedKey) -> Iterator[Problem]:
        """Yields a problem unless the JSON has `"auto"`, or Hydra's value in the same type."""
        value = self._read_value(shared.key)
        expected = f'"auto" or {format_value(shared.value)} ({shared.owner})'
        fix = f'write "auto" for {shared.key} in {self._file}'
        if value is MISSING:
            if shared.default is not None:
                missing = f"no such key (DeepSpeed would silently take {shared.default})"
                yield self._describe_problem(shared.key, expected, fix, missing)
        elif value != AUTO and not equals_exactly(value, shared.value):
            if shared.override is not None and has_same_type(value, shared.value):
                fix += f", or pass {shared.override(value)}"
            yield self._describe_problem(shared.key, expected, fix)

    def _compare_removed_blocks(self) -> Iterator[Problem]:
        """Yields a problem for each value of the removed blocks that differs from Hydra's."""
        optimizer = self._read_value("optimizer.type")
        if "optimizer" in self._document and optimizer not in _OPTIMIZERS:
            expected = f"AdamW, the trainer's optimizer{suggest_nearest(optimizer, _OPTIMIZERS)}"
            fix = 'write "type": "AdamW", or delete the optimizer block'
            yield self._describe_problem("optimizer.type", expected, fix)
        if "scheduler" in self._document:
            yield from self._find_scheduler_problems(self._read_value("scheduler.type"))

        shared_keys = {shared.key: shared for shared in self._list_equal_keys()}
        for block in _REMOVED_BLOCKS:
            parameters = self._read_value(f"{block}.params")
            if not isinstance(parameters, Mapping):
                continue
            for name, value in parameters.items():
                key = f"{block}.params.{name}"
                if key in shared_keys:
                    yield from self._compare_value(shared_keys[key])
                elif value != AUTO:
                    expected = '"auto": the trainer builds it from the values of Hydra'
                    yield self._describe_problem(key, expected, 'write "auto", or delete it')

    def _find_scheduler_problems(self, scheduler: Any) -> Iterator[Problem]:
        """Yields a problem if the scheduler is not equivalent to Hydra's `lr_scheduler_type`."""
        schedule = self._config.lr_scheduler_type
        equivalent = _SCHEDULERS.get(schedule)
        if schedule == WSD:
            expected = f"no scheduler block: DeepSpeed has no lr_scheduler_type={WSD} of Hydra"
            yield self._describe_problem("scheduler.type", expected, "delete the scheduler block")
        elif equivalent not in (None, scheduler):  # None: refused by the checks of Hydra's values
            suggestion = suggest_nearest(scheduler, [equivalent])
            expected = f"{equivalent} (lr_scheduler_type={schedule} of Hydra){suggestion}"
            fix = f'write "type": "{equivalent}", or delete the scheduler block'
            for other_schedule, name in _SCHEDULERS.items():
                if name == scheduler:
                    fix += f", or pass lr_scheduler_type={other_schedule}"
            yield self._describe_problem("scheduler.type", expected, fix)

    def _find_zero_problems(self) -> Iterator[Problem]:
        """Yields problems with the stage of ZeRO, the gathering of weights, and offloading."""
        stage = self._read_value(_STAGE_KEY)
        if not isinstance(self._read_value(_ZERO_BLOCK), Mapping):
            fix = 'write "zero_optimization": {"stage": 2}'
            yield self._describe_problem(_ZERO_BLOCK, 'an object with at least "stage"', fix)
            return
        if type(stage) is not int or not 0 <= stage <= 3:
            default = " (DeepSpeed would silently take 0)" if stage is MISSING else ""
            fix = 'write "stage": 2, for example'
            yield self._describe_problem(_STAGE_KEY, f"0, 1, 2 or 3{default}", fix)
            return

        if stage == 3 and self._read_value(_GATHER_KEY) not in (True, AUTO):
            expected = "true: without it, a ZeRO-3 model cannot be saved in from_pretrained form"
            fix = f'write "{_GATHER_NAME}": true or "auto"'
            yield self._describe_problem(_GATHER_KEY, expected, fix)
        if stage != 3 and self._launch.zero3_init:
            expected = f"false, because {self._file} has stage {stage}"
            fix = "zero3_init_flag: false, or a DeepSpeed JSON of stage 3"
            key = "deepspeed_config.zero3_init_flag"
            yield Problem(key, self._launch.source, "true", expected, fix)

        yield from self._find_ignored_options(stage)
        yield from self._find_offload_problems(f"{_ZERO_BLOCK}.offload_optimizer", 1, stage)
        yield from self._find_offload_problems(f"{_ZERO_BLOCK}.offload_param", 3, stage)

    def _find_ignored_options(self, stage: int) -> Iterator[Problem]:
        """Yields a problem for each option of `accelerate launch` that contradicts the JSON.

        Accelerate ignores these options if there is a JSON.

        Args:
            stage: The stage of the document.
        """
        for variable, text in self._launch.zero_options.items():
            key = f"{_ZERO_BLOCK}.{ZERO_VARIABLES[variable]}"
            if key == _GATHER_KEY and stage != 3:
                continue  # without effect, whatever its value
            value = self._read_value(key)
            if key == _GATHER_KEY and value == AUTO:
                value = True
            elif value in (MISSING, None):
                value = "none"

            if text.lower() != str(value).lower():
                option = f"--{variable.removeprefix('ACCELERATE_DEEPSPEED_').lower()}"
                expected = (
                    f"nothing, or {value} as in {self._file}, beside which accelerate ignores it"
                )
                fix = (
                    f"leave out {option} of accelerate launch (or unset {variable}), or write {key}"
                )
                yield Problem(variable, self._launch.source, format_value(text), expected, fix)

    def _find_offload_problems(self, key: str, lowest_stage: int, stage: int) -> Iterator[Problem]:
        """Yields problems with the block of an offload.

        Args:
            key: The dotted key of the block.
            lowest_stage: The first stage of ZeRO with this offload.
            stage: The stage of the document.
        """
        device = self._read_value(f"{key}.device")
        if self._read_value(key) in (MISSING, None) or device == "none":
            return
        if device != "cpu":
            expected = '"none" or "cpu"'
            fix = f'write "device": "cpu", or delete {key}'
            if device == "nvme":
                expected += (
                    ": a checkpoint is written from memory, and with nvme most of the state is in "
                    "files of DeepSpeed"
                )
                fix += "; with more processes, or lora.rank, each needs less memory"
            yield self._describe_problem(f"{key}.device", expected, fix)
            return

        if stage < lowest_stage:
            expected = (
                f"no offload, which needs stage {lowest_stage} or more (the stage is {stage})"
            )
            yield self._describe_problem(
                key, expected, f'delete it, or write "stage": {lowest_stage}'
            )
        if self._launch.gpus == 0:
            expected = "no offload: there is no GPU to move anything off"
            yield self._describe_problem(
                key, expected, "delete it, or use deepspeed_configs/cpu.json"
            )

        if key.endswith("offload_optimizer") and self._read_value(_FORCE_KEY) is not False:
            expected = (
                "false: AdamW is the trainer's, and DeepSpeed would end the run to have its own"
            )
            yield self._describe_problem(_FORCE_KEY, expected, f'write "{_FORCE_KEY}": false')

    def _find_invalid_values(self, reported: set[str]) -> Iterator[Problem]:
        """Yields a problem for each value that DeepSpeed would refuse, or that would fail later.

        Args:
            reported: Dotted keys for which a problem has already been reported.
        """
        yield from self._check_types(_FLAGS, (bool,), "true or false")
        yield from self._check_types(_NUMBERS, (int, float), "a number")

        models = _load_pydantic_models()
        for block in _BLOCKS:
            if block not in self._document or block in reported:
                continue
            if not isinstance(self._document[block], Mapping):
                fix = f'write "{block}": {{…}}, or delete it'
                yield self._describe_problem(block, "an object with keys", fix)
            elif block in models:
                yield from self._validate_block(models[block], block, reported)

    def _check_types(
        self, keys: Sequence[str], types: tuple[type, ...], expected: str
    ) -> Iterator[Problem]:
        """Yields a problem for each of some keys whose value has none of the types.

        Args:
            expected: The types, for messages.
        """
        for key in keys:
            value = self._read_value(key)
            if value not in (MISSING, AUTO) and type(value) not in types:
                yield self._describe_problem(key, expected, "correct the value")

    def _validate_block(
        self, model: type[BaseModel], block: str, reported: set[str]
    ) -> Iterator[Problem]:
        """Yields a problem for each key or value of a block that DeepSpeed's model refuses.

        Args:
            model: DeepSpeed's pydantic model of the block.
            reported: Dotted keys for which a problem has already been reported.
        """
        content = self._document[block]
        renamed_keys = _find_renamed_keys(model, content)
        for name, new_name in renamed_keys.items():
            yield self._describe_problem(
                f"{block}.{name}",
                f"its new name, {new_name}",
                f"write {new_name} instead",
                "an old name",
            )

        values = {
            name: value
            for name, value in _drop_auto_values(content).items()
            if f"{block}.{name}" not in reported and name not in renamed_keys
        }
        try:
            model(**values)
        except ValidationError as error:
            for details in error.errors():
                key = ".".join([block, *map(str, details["loc"])])
                if key not in reported:
                    yield self._describe_invalid_value(model, key, details)

    def _describe_invalid_value(
        self, model: type[BaseModel], key: str, details: Mapping[str, Any]
    ) -> Problem:
        """Returns the problem of a key or value that DeepSpeed's model refuses.

        Args:
            details: The error of pydantic.
        """
        if details["type"] == "extra_forbidden":
            suggestion = _suggest_nearest_key(model, details["loc"])
            expected = f"a key that DeepSpeed knows{suggestion}"
            return self._describe_problem(key, expected, _SPELLING_FIX, "an unknown key")

        expected = details["msg"].removeprefix("Input should be ")
        fix = "correct the value, or delete the key"
        return self._describe_problem(key, expected, fix, format_value(details["input"]))


def _make_override_formatter(name: str) -> Callable[[Any], str]:
    """Returns a function that formats the override of a key with a value."""
    return lambda value: f"{name}={format_value(value)}"


def _load_pydantic_models() -> dict[str, type[BaseModel]]:
    """Returns DeepSpeed's pydantic models of the blocks of its JSON, by block name."""
    logging.disable(logging.WARNING)  # importing DeepSpeed logs the device that it finds
    try:
        from deepspeed.comm.config import CommsLoggerConfig
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    finally:
        logging.disable(logging.NOTSET)
    return {
        _ZERO_BLOCK: DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
    }


def _find_renamed_keys(model: type[BaseModel], content: Mapping[str, Any]) -> dict[str, str]:
    """Returns the new names of the keys in a block that DeepSpeed has renamed, by old name."""
    new_names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        schema_extra = field.json_schema_extra
        if name not in content or not isinstance(schema_extra, dict):
            continue
        if schema_extra.get("deprecated"):
            new_names[name] = str(schema_extra["new_param"])
    return new_names


def _suggest_nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """Returns ` (did you mean X?)` for an unknown key; "" if no key of its model is similar.

    Args:
        model: The model of the block.
        path: The names of the key below the block, which may lead through nested models.
    """
    fields = model.model_fields
    for name in path[:-1]:
        nested_model = _find_nested_model(fields, name)
        if nested_model is None:
            return ""
        fields = nested_model.model_fields

    return suggest_nearest(path[-1], [field.alias or name for name, field in fields.items()])


def _find_nested_model(fields: Mapping[str, FieldInfo], name: str | int) -> type[BaseModel] | None:
    """Returns the model in the type of a field; None if there is none.

    Args:
        name: The name of the field, or its alias.
    """
    for field_name, field in fields.items():
        if name not in (field_name, field.alias):
            continue

        member_types = getattr(field.annotation, "__args__", (field.annotation,))  # of a union
        for member_type in member_types:
            if isinstance(member_type, type) and issubclass(member_type, BaseModel):
                return member_type
    return None


def _drop_auto_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of nested mappings without the values `"auto"`."""
    return {
        name: _drop_auto_values(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value != AUTO
    }


def _find_auto_values(node: Any, prefix: str) -> Iterator[str]:
    """Yields the dotted key of every `"auto"` in nested mappings.

    Args:
        prefix: The dotted key of the value itself.
    """
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _find_auto_values(value, f"{prefix}.{name}" if prefix else name)
    elif node == AUTO:
        yield prefix

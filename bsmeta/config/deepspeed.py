"""Checks the DeepSpeed JSON, alone and against Hydra, and fills in every "auto".

The file must be readable, without duplicate keys or keys that DeepSpeed ignores; its blocks must
pass DeepSpeed's own models, which would otherwise refuse them only after the language model is
loaded. The defaults of missing keys are those of DeepSpeed 0.19.8. The trainer builds the optimizer
and the schedule itself: blocks for them (for other trainers) must agree with Hydra, and are then
removed. `zero_optimization` is the one block that Hydra does not own.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
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
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import hide_values

AUTO = "auto"

# DeepSpeed reads only the first four blocks with a pydantic model of its own, and does not validate
# the values beside the blocks; wrong ones fail later.
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
_TOP_LEVEL = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "communication_data_type", *_BLOCKS, *_FLAGS, *_NUMBERS,
)  # fmt: skip

# Blocks that a Hydra key replaces. DeepSpeed's recomputation needs calls that the models do not
# make, so its block would have no effect; its monitors would log in addition to the trackers.
_ELSEWHERE = {
    "activation_checkpointing": "gradient_checkpointing",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "csv_monitor": "trackers",
}

# Switches that the trainer sets, or that would split a checkpoint across machines.
_CHECKPOINT = ("checkpoint.load_universal", "checkpoint.use_node_local_storage")
# Keys without which the trainer cannot do its work, or that replace it.
_NOT_RUN = tuple(
    f"zero_optimization.{name}" for name in ("compute_grad_norm", "legacy_stage1", "zenflow")
)

_WHOLE = "(the file)"
_MISSPELLED = "correct the name, or delete it"
# Blocks for what the trainer builds itself: they must agree with Hydra, and are then removed.
_REMOVED = ("optimizer", "scheduler")
_OPTIMIZERS = ("AdamW", "Adam")
# lr_scheduler_type of Hydra -> scheduler.type of DeepSpeed.
_SCHEDULERS = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR"}

_ZERO = "zero_optimization"
_STAGE = "zero_optimization.stage"
_FORCE = "zero_force_ds_cpu_optimizer"
_GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
# "auto" here is filled in from the model's hidden size once the model is loaded.
_HIDDEN_SIZE_KEYS = tuple(
    f"zero_optimization.{name}"
    for name in (
        "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Shared:
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


def read_json(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Reads a DeepSpeed JSON; returns its object and the problems of the file itself.

    A missing file is reported by the check of the launch.
    """
    if not path.is_file():
        return None, []
    file = str(path)
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        twice.extend(sorted(name for name, count in counts.items() if count > 1))
        return dict(pairs)

    try:
        document = parse_json(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except OSError as error:
        fix = "make it readable, or name another file"
        return None, [Problem(_WHOLE, file, str(error.strerror), "a file that can be read", fix)]
    except ValueError as error:
        return None, [Problem(_WHOLE, file, str(error), "JSON", "fix it there")]
    if not isinstance(document, dict):
        found = type(document).__name__
        return None, [Problem(_WHOLE, file, found, "an object", "begin the file with {")]
    hide_values(document)  # DeepSpeed prints it
    return document, [
        Problem(key, file, "two values", "one (the last wins silently)", "delete one of them")
        for key in twice
    ]


class DeepSpeedJson:
    """A DeepSpeed JSON beside the configuration and the launch that it must agree with."""

    def __init__(self, document: Mapping[str, Any], config: RunConfig, launch: Launch) -> None:
        self._document = document
        self._config = config
        self._launch = launch
        self._file = str(launch.deepspeed_config_file)

    def problems(self, known: set[str]) -> list[Problem]:
        """All that is wrong in it.

        Args:
            known: Dotted keys for which a problem has already been found.
        """
        found = [*self._unknown(), *self.disagreements()]
        return [*found, *self._refused_by_models({problem.key for problem in found} | known)]

    def filled(self) -> dict[str, Any]:
        """The JSON as passed to DeepSpeed: Hydra's values filled in, optimizer, scheduler removed.

        Only the bucket sizes that depend on the model's hidden size may still be `"auto"`.
        """
        filled = copy.deepcopy(dict(self._document))
        for block in _REMOVED:
            filled.pop(block, None)
        for shared in self._shared():
            block, _, name = shared.key.rpartition(".")
            (filled.setdefault(block, {}) if block else filled)[name] = shared.value
        if look_up(filled, _GATHER) == AUTO:
            filled[_ZERO][_GATHER.rpartition(".")[2]] = look_up(filled, _STAGE) == 3
        return filled

    def disagreements(self) -> Iterator[Problem]:
        """Yields every place where it disagrees with Hydra or the launch, or lacks a key."""
        shared = self._shared()
        for owned in shared:
            yield from self._compare(owned)
        yield from self._removed()
        yield from self._zero()
        known = {owned.key for owned in shared} | {*_HIDDEN_SIZE_KEYS, _GATHER}
        rest = {key: value for key, value in self._document.items() if key not in _REMOVED}
        for key in _autos(rest, ""):
            if key not in known:
                expected = 'a value; nothing says what "auto" would be here'
                yield self._problem(key, expected, "write the value, or delete the key")

    def _at(self, key: str) -> Any:
        return look_up(self._document, key)

    def _problem(self, key: str, expected: str, fix: str, found: str | None = None) -> Problem:
        found = show(self._at(key)) if found is None else found
        return Problem(key, self._file, found, expected, fix)

    def _unknown(self) -> Iterator[Problem]:
        for name, owner in _ELSEWHERE.items():
            if name in self._document:
                fix = f"delete it, and pass {owner}=… instead"
                yield self._problem(name, f"no such block: set {owner} in Hydra", fix, "a block")
        for key in (*_CHECKPOINT, *_NOT_RUN):
            reason = "keeps whole checkpoints, and converts them itself"
            if key in _NOT_RUN:
                reason = "does not run DeepSpeed with it"
            if self._at(key) is True or (key in _NOT_RUN and self._at(key) is not MISSING):
                yield self._problem(key, f"no such key: the trainer {reason}", "delete it")
        for name in self._document:
            if name not in _TOP_LEVEL and name not in _ELSEWHERE:
                expected = f"a key that this trainer runs DeepSpeed with{nearest(name, _TOP_LEVEL)}"
                yield self._problem(name, expected, _MISSPELLED, "an unknown key")

    def _shared(self) -> list[_Shared]:
        """The keys that Hydra owns, with their values in this launch."""
        plan = BatchPlan.of(self._config, self._launch.num_processes)
        micro_batch = plan.key or "rows of a micro-batch, which vary"
        calculated = [
            _Shared(
                key="train_micro_batch_size_per_gpu",
                owner=f"{micro_batch} of Hydra" if plan.key else micro_batch,
                value=plan.micro_batch,
                default="train_batch_size / accumulation / processes",
                override=_override_of(plan.key) if plan.key and not plan.is_total else None,
            ),
            _Shared(
                key="train_batch_size",
                owner=f"{plan.micro_batch} ({micro_batch}) x {plan.accumulation} "
                f"(gradient_accumulation_steps) x {plan.processes} (processes) = "
                f"{plan.global_batch}",
                value=plan.global_batch,
            ),
        ]
        equal = [
            shared
            for shared in self._twins()
            if shared.key != calculated[0].key and shared.key.partition(".")[0] not in _REMOVED
        ]
        return [*calculated, *equal, self._precision("bf16"), self._precision("fp16")]

    def _twins(self) -> Iterator[_Shared]:
        """Yields the keys that a key of the schema names and that have its value."""
        for name, section, field in leaves(self._config):
            twin = about(field).deepspeed
            if twin is not None and ", " not in twin:
                yield _Shared(
                    key=twin,
                    owner=f"{name} of Hydra",
                    value=getattr(section, field.name),
                    default=about(field).deepspeed_default,
                    override=_override_of(name),
                )

    def _precision(self, name: str) -> _Shared:
        stated = self._config.mixed_precision
        return _Shared(
            key=f"{name}.enabled",
            owner=f"mixed_precision={stated} of Hydra",
            value=stated == name,
            default="false" if stated == name else None,
            override=lambda found: f"mixed_precision={name if found else 'no'}",
        )

    def _compare(self, shared: _Shared) -> Iterator[Problem]:
        """Yields a problem unless the JSON has `"auto"` or Hydra's value, in Hydra's type."""
        found = self._at(shared.key)
        expected = f'"auto" or {show(shared.value)} ({shared.owner})'
        write = f'write "auto" for {shared.key} in {self._file}'
        if found is MISSING:
            if shared.default is not None:
                missing = f"no such key (DeepSpeed would silently take {shared.default})"
                yield self._problem(shared.key, expected, write, missing)
        elif found != AUTO and not same(found, shared.value):
            if shared.override is not None and same_type(found, shared.value):
                write += f", or pass {shared.override(found)}"
            yield self._problem(shared.key, expected, write)

    def _removed(self) -> Iterator[Problem]:
        """Yields what the blocks of optimizer and scheduler say that Hydra does not."""
        kind = self._at("optimizer.type")
        if "optimizer" in self._document and kind not in _OPTIMIZERS:
            expected = f"AdamW, the trainer's optimizer{nearest(kind, _OPTIMIZERS)}"
            fix = 'write "type": "AdamW", or delete the optimizer block'
            yield self._problem("optimizer.type", expected, fix)
        if "scheduler" in self._document:
            yield from self._scheduler(self._at("scheduler.type"))
        owned = {shared.key: shared for shared in self._twins()}
        for block in _REMOVED:
            parameters = self._at(f"{block}.params")
            for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
                key = f"{block}.params.{name}"
                if key in owned:
                    yield from self._compare(owned[key])
                elif value != AUTO:
                    expected = '"auto": the trainer builds it from the values of Hydra'
                    yield self._problem(key, expected, 'write "auto", or delete it')

    def _scheduler(self, kind: Any) -> Iterator[Problem]:
        stated = self._config.lr_scheduler_type
        wanted = _SCHEDULERS.get(stated)
        if stated == WSD:
            expected = f"no scheduler block: DeepSpeed has no lr_scheduler_type={WSD} of Hydra"
            yield self._problem("scheduler.type", expected, "delete the scheduler block")
        elif wanted not in (None, kind):  # None: reported by the checks of Hydra's values
            near = nearest(kind, [wanted])
            expected = f"{wanted} (lr_scheduler_type={stated} of Hydra){near}"
            fix = f'write "type": "{wanted}", or delete the scheduler block'
            for hydra, name in _SCHEDULERS.items():
                if name == kind:
                    fix += f", or pass lr_scheduler_type={hydra}"
            yield self._problem("scheduler.type", expected, fix)

    def _zero(self) -> Iterator[Problem]:
        """Yields problems with the ZeRO stage, and with what it saves and offloads."""
        stage = self._at(_STAGE)
        if not isinstance(self._at(_ZERO), Mapping):
            fix = 'write "zero_optimization": {"stage": 2}'
            yield self._problem(_ZERO, 'an object with at least "stage"', fix)
            return
        if type(stage) is not int or not 0 <= stage <= 3:
            default = " (DeepSpeed would silently take 0)" if stage is MISSING else ""
            fix = 'write "stage": 2, for example'
            yield self._problem(_STAGE, f"0, 1, 2 or 3{default}", fix)
            return
        if stage == 3 and self._at(_GATHER) not in (True, AUTO):
            expected = "true: without it, a ZeRO-3 model cannot be saved in from_pretrained form"
            fix = f'write "{_GATHER.rpartition(".")[2]}": true or "auto"'
            yield self._problem(_GATHER, expected, fix)
        if stage != 3 and self._launch.zero3_init:
            expected = f"false, because {self._file} has stage {stage}"
            fix = "zero3_init_flag: false, or a DeepSpeed JSON of stage 3"
            key = "deepspeed_config.zero3_init_flag"
            yield Problem(key, self._launch.source, "true", expected, fix)
        yield from self._ignored_options(stage)
        for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
            yield from self._offload(f"{_ZERO}.{name}", least, stage)

    def _ignored_options(self, stage: int) -> Iterator[Problem]:
        """Yields options of `accelerate launch` that differ from the JSON, which has precedence."""
        for variable, text in self._launch.zero_options.items():
            key = f"{_ZERO}.{ZERO_VARIABLES[variable]}"
            if key == _GATHER and stage != 3:
                continue  # without effect, whatever its value
            stated = self._at(key)
            if key == _GATHER and stated == AUTO:
                stated = True
            stated = "none" if stated in (MISSING, None) else stated
            if text.lower() != str(stated).lower():
                option = f"--{variable.removeprefix('ACCELERATE_DEEPSPEED_').lower()}"
                expected = f"nothing, or {stated} as in {self._file}, beside which accelerate"
                fix = (
                    f"leave out {option} of accelerate launch (or unset {variable}), or write {key}"
                )
                found = show(text)
                yield Problem(variable, self._launch.source, found, f"{expected} ignores it", fix)

    def _offload(self, key: str, least: int, stage: int) -> Iterator[Problem]:
        device = self._at(f"{key}.device")
        if self._at(key) in (MISSING, None) or device == "none":
            return
        if device not in ("cpu", "nvme"):
            fix = f"correct it, or delete {key}"
            yield self._problem(f"{key}.device", '"none", "cpu" or "nvme"', fix)
            return
        if stage < least:
            expected = f"no offload, which needs stage {least} or more (the stage is {stage})"
            yield self._problem(key, expected, f'delete it, or write "stage": {least}')
        if self._launch.gpus == 0:
            expected = "no offload: there is no GPU to move anything off"
            yield self._problem(key, expected, "delete it, or use deepspeed_configs/cpu.json")
        if key.endswith("offload_optimizer") and self._at(_FORCE) is not False:
            expected = (
                "false: AdamW is the trainer's, and DeepSpeed would end the run to have its own"
            )
            yield self._problem(_FORCE, expected, f'write "{_FORCE}": false')
        if device == "nvme" and not isinstance(self._at(f"{key}.nvme_path"), str):
            fix = 'write "nvme_path": "/a/local/disk"'
            yield self._problem(f"{key}.nvme_path", "a folder on an NVMe disk", fix)

    def _refused_by_models(self, known: set[str]) -> Iterator[Problem]:
        """Yields the values that DeepSpeed would refuse, or fail with later."""
        for keys, kinds, expected in (
            (_FLAGS, (bool,), "true or false"),
            (_NUMBERS, (int, float), "a number"),
        ):
            for key in keys:
                if self._at(key) not in (MISSING, AUTO) and type(self._at(key)) not in kinds:
                    yield self._problem(key, expected, "correct the value")
        models = _models()
        for block in _BLOCKS:
            if block not in self._document or block in known:
                continue
            if not isinstance(self._document[block], Mapping):
                fix = f'write "{block}": {{…}}, or delete it'
                yield self._problem(block, "an object with keys", fix)
            elif block in models:
                yield from self._refused_by(models[block], block, known)

    def _refused_by(self, model: type[BaseModel], block: str, known: set[str]) -> Iterator[Problem]:
        content = self._document[block]
        old = set()
        for name, field in model.model_fields.items():
            extra = field.json_schema_extra
            if name in content and isinstance(extra, dict) and extra.get("deprecated"):
                old.add(name)
                new = extra["new_param"]
                fix = f"write {new} instead"
                yield self._problem(f"{block}.{name}", f"its new name, {new}", fix, "an old name")
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
                expected = found["msg"].removeprefix("Input should be ")
                fix, value = "correct the value, or delete the key", show(found["input"])
                if found["type"] == "extra_forbidden":
                    expected = f"a key that DeepSpeed knows{_nearest_key(model, found['loc'])}"
                    fix, value = _MISSPELLED, "an unknown key"
                yield self._problem(key, expected, fix, value)


def _override_of(name: str) -> Callable[[Any], str]:
    return lambda value: f"{name}={show(value)}"


def _models() -> dict[str, type[BaseModel]]:
    logging.disable(logging.WARNING)  # importing DeepSpeed logs the device that it finds
    try:
        from deepspeed.comm.config import CommsLoggerConfig
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    finally:
        logging.disable(logging.NOTSET)
    return {
        _ZERO: DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
    }


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


def _autos(node: Any, prefix: str) -> Iterator[str]:
    """Yields the dotted key of every `"auto"`."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _autos(value, f"{prefix}.{name}" if prefix else name)
    elif node == AUTO:
        yield prefix

"""Checks of the launch against Hydra: processes, devices, precision, and `fsdp_config`.

With the settings that are refused here, a launcher would fail with its own error, or silently start
a launch that differs from the configuration.

Under FSDP2 the launch file owns `fsdp_version` and `fsdp_reshard_after_forward`. Hydra owns
precision, recomputation and everything else that a field of `fsdp_config` could also set, so each
of these fields has only one valid value. The fields and their defaults are from Accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from bsmeta.config.launch import FILE_KEYS, FSDP_FIELDS, Launch
from bsmeta.config.schema import ADAMW, FSDP2_OPTIMIZERS, OPTIMIZERS, RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import HYDRA, Problem, equals_exactly, format_value, suggest_nearest
from bsmeta.core.files import ROOT

PRECISIONS = ("no", "bf16", "fp16")
LAUNCHERS = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")

_RECOMPUTED = "gradient_checkpointing of Hydra decides what is recomputed"

# The fields with one valid value in this trainer: that value, and why.
_REQUIRED_FSDP_VALUES = {
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


def find_launch_problems(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with how the processes are started."""
    yield from find_launcher_problems(launch)

    if config.accelerate_config_file is not None and not config.check_only:
        file = config.accelerate_config_file
        expected = "null, unless check_only=true: the launch is what started this process"
        fix = f"accelerate launch --config_file {file} …"
        yield Problem("accelerate_config_file", HYDRA, file, expected, fix)

    yield from _find_machine_problems(launch)
    yield from _find_batch_problems(config, launch)
    yield from _find_device_problems(config.mixed_precision, launch)

    for key in ("mixed_precision", "gradient_accumulation_steps", "gradient_clipping"):
        value_of_launch = getattr(launch, key)
        value_of_hydra = getattr(config, key)
        # An invalid precision is refused as such by `find_launcher_problems`.
        is_valid = key != "mixed_precision" or value_of_launch in PRECISIONS
        if (
            value_of_launch is not None
            and is_valid
            and not equals_exactly(value_of_launch, value_of_hydra)
        ):
            expected = f"nothing, or {format_value(value_of_hydra)} as {key} of Hydra says"
            fix = f"leave {key} out of {launch.source}, or pass {key}={value_of_launch}"
            yield Problem(key, launch.source, format_value(value_of_launch), expected, fix)


def _find_batch_problems(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields a problem if the processes cannot evenly divide the batch of a whole step."""
    if config.gradient_accumulation_steps < 1:  # out of bounds, and refused for that
        return
    plan = BatchPlan.of(config, launch.num_processes)
    if not plan.is_total:
        return

    assert plan.key is not None
    rows: Any = reduce(getattr, plan.key.split("."), config)
    parts = plan.accumulation * plan.processes
    if rows % parts:
        split = f"{plan.processes} (processes) x {plan.accumulation} (gradient_accumulation_steps)"
        expected = f"a multiple of {parts} = {split}, because {config.batch_scope_key}=total"
        next_multiple = (rows // parts + 1) * parts
        fix = f"{plan.key}={next_multiple}, or {config.batch_scope_key}=per_device"
        yield Problem(plan.key, HYDRA, format_value(rows), expected, fix)


def find_launcher_problems(launch: Launch) -> Iterator[Problem]:
    """Yields problems with a launch that do not depend on the configuration.

    With these, Accelerate fails with its own error, silently starts a single process, or trains
    differently than configured.
    """
    yield from _find_process_problems(launch)
    yield from _find_duplicated_settings(launch)

    for name in launch.unknown:
        valid_names = {*FILE_KEYS, *(f"fsdp_config.{field}" for field in FSDP_FIELDS)}
        expected = f"a key of a launch file{suggest_nearest(name, valid_names)}"
        fix = "correct the name, or delete it"
        yield Problem(name, launch.source, "an unknown key", expected, fix)
    for name in launch.unsupported:
        expected = "nothing: processes train data parallel, under DeepSpeed or under FSDP2"
        fix = "delete the key"
        if name == "parallelism_config":
            expected += ", without tensor, context or sequence parallelism"
            fix += "; for copies of a sharded model (HSDP), fsdp_shard_processes of Hydra"
        yield Problem(name, launch.source, "a value", expected, fix)

    if launch.deepspeed:
        yield from _find_deepspeed_problems(launch)


def _find_process_problems(launch: Launch) -> Iterator[Problem]:
    """Yields a problem for each setting that would start processes other than those configured."""
    if launch.distributed_type not in LAUNCHERS:
        suggestion = suggest_nearest(launch.distributed_type.upper(), LAUNCHERS)
        expected = f"one of {', '.join(LAUNCHERS)}, in capitals{suggestion}"
        if launch.distributed_type == "MULTI_CPU":
            expected += "; MULTI_CPU starts a single process without MPI"
        fix = "use a file of experiments/accelerate/ (MULTI_GPU also starts several on a CPU)"
        yield Problem("distributed_type", launch.source, launch.distributed_type, expected, fix)

    if launch.distributed_type == "NO" and launch.num_processes > 1:
        expected = "1, because distributed_type: NO starts a single process"
        fix = "distributed_type: MULTI_GPU (also on a CPU), DEEPSPEED or FSDP"
        yield Problem(
            "num_processes", launch.source, format_value(launch.num_processes), expected, fix
        )

    if launch.expected_processes not in (None, launch.num_processes):
        expected = f"{launch.expected_processes}, as BSMETA_WORLD_SIZE says"
        fix = "start every machine with its number of processes, or correct BSMETA_WORLD_SIZE"
        yield Problem(
            "WORLD_SIZE", launch.source, format_value(launch.num_processes), expected, fix
        )

    is_sharded = launch.deepspeed or launch.fsdp is not None
    if launch.use_cpu and (launch.num_processes > 1 or is_sharded):
        expected = "false: it turns DeepSpeed and FSDP off and starts a single process"
        fix = "leave use_cpu out, unset ACCELERATE_USE_CPU; a machine without GPU needs neither"
        yield Problem("use_cpu", launch.source, format_value(True), expected, fix)

    if launch.lacks_world_size:
        found = "one process of several (MASTER_ADDR and MASTER_PORT without WORLD_SIZE)"
        expected = (
            "all of them: with --cpu (use_cpu), or distributed_type NO, accelerate starts one"
        )
        fix = "leave out --cpu and use_cpu; experiments/accelerate/cpu.yaml starts several on a CPU"
        yield Problem("num_processes", launch.source, found, expected, fix)

    if launch.tasks_in_step is not None and launch.tasks_in_step > 1:
        tasks = launch.tasks_in_step
        expected = f"{tasks}, the tasks of this SLURM step: each would train on its own"
        fix = "start torchrun or accelerate launch in the step, as experiments/slurm/ does"
        yield Problem("WORLD_SIZE", launch.source, "no such variable", expected, fix)


def _find_duplicated_settings(launch: Launch) -> Iterator[Problem]:
    """Yields a problem for each setting that Hydra owns and the launch sets to another value."""
    if launch.compiler is not None:
        expected = "no: the model is compiled as torch_compile of Hydra says"
        fix = f"leave dynamo_backend out of {launch.source}, or pass torch_compile=true instead"
        yield Problem("dynamo_backend", launch.source, format_value(launch.compiler), expected, fix)

    if launch.mixed_precision not in (None, *PRECISIONS):
        expected = f"nothing, or one of {', '.join(map(format_value, PRECISIONS))} as Hydra says"
        if launch.mixed_precision is False:
            expected += " (YAML reads no without quotes as false)"
        fix = f"leave mixed_precision out of {launch.source}"
        yield Problem(
            "mixed_precision", launch.source, format_value(launch.mixed_precision), expected, fix
        )


def _find_machine_problems(launch: Launch) -> Iterator[Problem]:
    """Yields problems with which processes cannot find each other and wait until a timeout."""
    if launch.rank >= launch.num_processes:
        expected = f"0 to {launch.num_processes - 1}, because WORLD_SIZE is {launch.num_processes}"
        fix = "start all processes by one launcher, accelerate launch or torchrun"
        yield Problem("RANK", launch.source, format_value(launch.rank), expected, fix)

    if launch.num_processes == 1:
        reason = "FSDP2 trains in a process group"
        cause = "ACCELERATE_USE_FSDP"
    else:
        reason = f"WORLD_SIZE is {launch.num_processes}"
        cause = "WORLD_SIZE"
    for name in launch.unset:
        fix = f"start with accelerate launch or torchrun, which set it, or unset {cause}"
        expected = f"a value, because {reason}"
        yield Problem(name, launch.source, "no such variable", expected, fix)

    if launch.machines > 1:
        yield from _find_multi_machine_problems(launch)


def _find_multi_machine_problems(launch: Launch) -> Iterator[Problem]:
    """Yields a problem for each missing setting that several machines need to find each other."""
    machines = launch.machines
    if launch.num_processes % machines:
        per_machine = launch.num_processes // machines
        expected = (
            f"a multiple of {machines} (num_machines): accelerate starts {per_machine} on each"
        )
        fix = "give each machine the same number, or use experiments/several_machines.sh"
        yield Problem(
            "num_processes", launch.source, format_value(launch.num_processes), expected, fix
        )

    if launch.machine_rank not in range(machines):
        expected = f"0 to {machines - 1} (num_machines - 1), another one on each machine"
        fix = "machine_rank: 0 on the first machine, 1 on the next, …"
        yield Problem(
            "machine_rank", launch.source, format_value(launch.machine_rank), expected, fix
        )

    if not launch.main_process_ip:
        expected = "the address of machine 0, the same on all machines"
        fix = "main_process_ip: ADDRESS"
        yield Problem(
            "main_process_ip", launch.source, format_value(launch.main_process_ip), expected, fix
        )

    if not launch.main_process_port:
        expected = "one free port of machine 0, the same on all machines"
        found = format_value(launch.main_process_port)
        fix = "main_process_port: 29500"
        yield Problem("main_process_port", launch.source, found, expected, fix)


def _find_device_problems(mixed_precision: str, launch: Launch) -> Iterator[Problem]:
    """Yields problems with the number or the type of the GPUs that a launch needs."""
    if launch.gpus == 0 and mixed_precision == "fp16":
        expected = '"no" or "bf16": there is no GPU, and fp16 does not train on a CPU'
        fix = "mixed_precision=bf16 or mixed_precision=no"
        yield Problem("mixed_precision", HYDRA, format_value("fp16"), expected, fix)

    if launch.gpus == 0 and launch.wants_gpus:
        expected = "one GPU per process, as the launch file requests"
        fix = "see what nvidia-smi and CUDA_VISIBLE_DEVICES say; to train on the CPU, launch with "
        fix += "experiments/accelerate/cpu.yaml, cpu_zero2.yaml or cpu_fsdp2.yaml"
        yield Problem("GPUs", "this machine", "0", expected, fix)

    if launch.gpus and launch.local_processes and launch.local_processes > launch.gpus:
        expected = f"at most {launch.gpus}, the GPUs of this machine"
        fix = f"accelerate launch --num_processes {launch.gpus} …"
        yield Problem(
            "num_processes", launch.source, format_value(launch.local_processes), expected, fix
        )


def _find_deepspeed_problems(launch: Launch) -> Iterator[Problem]:
    """Yields problems with a missing DeepSpeed JSON, and with settings that belong in it."""
    key = "deepspeed_config.deepspeed_config_file"
    if launch.deepspeed_config_file is None:
        expected = "the DeepSpeed JSON; all DeepSpeed settings belong in one file"
        fix = "deepspeed_config_file: deepspeed_configs/zero2.json"
        yield Problem(key, launch.source, format_value(None), expected, fix)
    elif not launch.deepspeed_config_file.is_file():
        shipped = sorted(path.name for path in (ROOT / "deepspeed_configs").glob("*.json"))
        expected = (
            f"a file{suggest_nearest(launch.deepspeed_config_file.name, shipped)}, relative to the "
        )
        expected += "working folder or to the repository"
        fix = f"one of deepspeed_configs/{{{','.join(shipped)}}}, or a path of your own"
        yield Problem(key, launch.source, str(launch.deepspeed_config_file), expected, fix)

    for name in launch.misplaced:
        expected = "nothing: beside a DeepSpeed JSON, accelerate refuses it"
        fix = f"delete {name} there; Hydra owns the value, the JSON says it or auto"
        yield Problem(f"deepspeed_config.{name}", launch.source, "a value", expected, fix)


def find_fsdp_problems(config: RunConfig, launch: Launch, entry: TaskEntry) -> Iterator[Problem]:
    """Yields a problem for each field of `fsdp_config`, or key, that FSDP2 does not work with."""
    if launch.fsdp is None:
        return

    if not entry.fully_shards:
        expected = f"a launch without FSDP: task={config.task} does not train under FSDP2"
        fix = "another file of experiments/accelerate/, such as ddp.yaml"
        yield Problem("distributed_type", launch.source, "FSDP", expected, fix)

    yield from _find_fsdp_field_problems(launch.fsdp, launch.source)

    if config.mixed_precision == "fp16":
        expected = '"bf16" or "no": fp16 is not supported under FSDP2'
        fix = "mixed_precision=bf16, or a launch file without FSDP"
        yield Problem("mixed_precision", HYDRA, format_value("fp16"), expected, fix)

    optimizer = OPTIMIZERS.get(config.optimizer_type)
    if optimizer is not None and not optimizer.takes_shards:
        expected = f"one of {FSDP2_OPTIMIZERS} under FSDP2, which shards the parameters by rows"
        fix = f"optimizer_type={ADAMW}, or a launch file without FSDP"
        yield Problem("optimizer_type", HYDRA, format_value(config.optimizer_type), expected, fix)


def _find_fsdp_field_problems(fields: Mapping[str, str], source: str) -> Iterator[Problem]:
    """Yields a problem for each field of `fsdp_config` that does not have its only valid value."""
    for name, (variable, default) in FSDP_FIELDS.items():
        value = fields[name]
        if name == "fsdp_reshard_after_forward":
            is_valid = value in ("true", "false")
            expected = "true or false"
            fix = f"{name}: true below fsdp_config"
        elif name in _REQUIRED_FSDP_VALUES:
            fixed_value, reason = _REQUIRED_FSDP_VALUES[name]
            is_valid = value in (fixed_value.lower(), "")  # "": left to the trainer
            expected = f"{fixed_value}: {reason}"
            fix = f"{name}: {fixed_value} below fsdp_config"
        else:
            is_valid = value == default
            expected = "no such key: FSDP2 or the trainer ignores it"
            fix = f"delete it below fsdp_config, or unset {variable}"

        if not is_valid:
            yield Problem(f"fsdp_config.{name}", source, value, expected, fix)

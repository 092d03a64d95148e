"""Checks that the runs of all tasks share: values, the loop, the launch, and files that must exist.

Of the launch: processes, devices, precision, and what makes launchers start something else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from bsmeta.config.checks.deepspeed import STAGE
from bsmeta.config.launch import FILE_KEYS, FSDP_FIELDS, Launch
from bsmeta.config.optimizers import ADAMW, OPTIMIZERS, UNDER_DEEPSPEED
from bsmeta.config.schema import TRACKERS, WSD, PretrainedConfig, RunConfig
from bsmeta.config.steps import (
    BatchPlan,
    branch_step,
    decays_in_warm_up,
    how_to_export,
    lacks_model,
)
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import (
    HYDRA,
    Problem,
    bound_problems,
    closest,
    look_up,
    nearest,
    same,
    show,
)
from bsmeta.core.files import ROOT

# Model names that the Hub accepts (huggingface_hub.utils.validate_repo_id), with their owner.
HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

PRECISIONS = ("no", "bf16", "fp16")
LAUNCHERS = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")


def value_problems(config: RunConfig, overridden: Collection[str] = ()) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values.

    Args:
        overridden: The keys of the command line.
    """
    yield from bound_problems(config)
    if config.warmup_share is not None and "num_warmup_steps" in overridden:
        expected = f"no such override: warmup_share={config.warmup_share:g} takes its place"
        fix = f"warmup_share=null num_warmup_steps={config.num_warmup_steps}, or only warmup_share"
        yield _refused(config, "num_warmup_steps", expected, fix)
    for step in config.extra_steps_to_eval_save_at:
        if step > config.max_train_steps and config.num_train_epochs is None:
            expected = f"steps of the run, from 1 to {config.max_train_steps} (max_train_steps)"
            fix = f"drop {step} from extra_steps_to_eval_save_at"
            yield Problem("extra_steps_to_eval_save_at", HYDRA, show(step), expected, fix)
    if config.push_to_hub is not None and not HUB_NAME.fullmatch(config.push_to_hub):
        expected = "OWNER/NAME, of letters, digits, '-', '_' and '.'"
        yield _refused(config, "push_to_hub", expected, "push_to_hub=me/my-model, for example")
    yield from _trackers(config)
    yield from _decay(config)


def _decay(config: RunConfig) -> Iterator[Problem]:
    """Yields a decay that does not fit into the run, and branches that are no run of their own."""
    if config.num_train_epochs is None and decays_in_warm_up(config, config.max_train_steps):
        found = f"{WSD}, with warm-up and decay longer than {config.max_train_steps:,} steps"
        expected = "both within the run (max_train_steps)"
        fix = "lower num_warmup_steps (warmup_share) or num_decay_steps (decay_share)"
        yield Problem("lr_scheduler_type", HYDRA, found, expected, fix)
    if config.decay_from is None:
        return
    if branch_step(config) is None:
        expected = "a checkpoint folder, named checkpoint-{step}step"
        fix = "decay_from=runs/stable/checkpoint-1000step, for example"
        yield _refused(config, "decay_from", expected, fix)
    elif Path(config.out_dir).resolve() in Path(config.decay_from).resolve().parents:
        expected = "another folder than that of decay_from, whose run it would replace"
        yield _refused(config, "out_dir", expected, "out_dir=runs/decayed, for example")
    if config.lr_scheduler_type != WSD:
        expected = f"{WSD}, because decay_from is set"
        yield _refused(config, "lr_scheduler_type", expected, f"lr_scheduler_type={WSD}")
    if config.num_decay_steps is None:
        expected = "the number of steps to decay for, because decay_from is set"
        yield _refused(config, "num_decay_steps", expected, "num_decay_steps=1000, for example")
    if config.num_train_epochs is not None:
        expected = "null, because decay_from and num_decay_steps say how long the run is"
        yield _refused(config, "num_train_epochs", expected, "num_train_epochs=null")


def _trackers(config: RunConfig) -> Iterator[Problem]:
    for name in config.trackers:
        # TensorBoard's files are also written by tensorboardX, without its viewer.
        modules = (name, "tensorboardX") if name == "tensorboard" else (name,)
        if name in TRACKERS and not any(map(importlib.util.find_spec, modules)):
            fix = f"pip install {modules[-1]}, or leave it out of trackers"
            yield Problem("trackers", HYDRA, show(name), "an installed library", fix)


def _refused(config: RunConfig, key: str, expected: str, fix: str) -> Problem:
    return Problem(key, HYDRA, show(getattr(config, key)), expected, fix)


def loop_problems(
    config: RunConfig, launch: Launch, document: Mapping[str, Any] | None, entry: TaskEntry
) -> Iterator[Problem]:
    """Yields problems with the settings of the training loop."""
    stage = None if document is None else look_up(document, STAGE)
    if config.on_nonfinite == "skip" and stage == 0:
        expected = '"stop": without ZeRO, DeepSpeed has put a bad gradient into the weights already'
        fix = f'on_nonfinite=stop, or write "{STAGE.rpartition(".")[2]}": 1 or more in the JSON'
        yield Problem("on_nonfinite", HYDRA, show("skip"), expected, fix)
    optimizer = OPTIMIZERS.get(config.optimizer_type)
    if launch.deepspeed and optimizer is not None and not optimizer.by_element:
        expected = (
            f"{UNDER_DEEPSPEED} under DeepSpeed, which cuts the parameters into parts without a "
            "shape"
        )
        fix = f"optimizer_type={ADAMW}, or a launch file without DeepSpeed"
        yield _refused(config, "optimizer_type", expected, fix)
    if config.async_save and launch.deepspeed:
        expected = "false: DeepSpeed's ranks write their own parts of a checkpoint together"
        yield Problem("async_save", HYDRA, show(True), expected, "async_save=false")
    yield from _evaluation(config, config.metrics)
    yield from _exports(config, entry)
    yield from _epochs(config, entry)
    yield from _names(config)
    yield from _profile(config)


def _evaluation(config: RunConfig, metrics: tuple[str, ...] | None) -> Iterator[Problem]:
    """Yields a `keep_best_by` without evaluations, or with a metric that they do not have."""
    best = config.keep_best_by
    if best is None:
        for key in ("early_stopping_patience", "export_best"):
            if getattr(config, key):
                expected = "a metric by which checkpoints are better or worse"
                fix = f"keep_best_by=loss, for example, or leave {key} out"
                yield Problem("keep_best_by", HYDRA, f"null, but {key} is set", expected, fix)
        return
    evaluates = config.eval_steps or config.evals_per_epoch or config.extra_steps_to_eval_save_at
    if not evaluates:
        expected = "null, because eval_steps=0 evaluates nothing"
        fix = "keep_best_by=null, or eval_steps=1000, for example"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)
    elif metrics is not None and best not in metrics:
        expected = f"one of {', '.join(metrics)}{nearest(best, metrics)}"
        fix = f"keep_best_by={closest(best, metrics)}"
        yield Problem("keep_best_by", HYDRA, show(best), expected, fix)


def _exports(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields an `export_steps` that leaves out a `model/` that the run reads, or never applies."""
    every, saves = config.export_steps, config.save_steps
    if every is None or every < 0:  # out of bounds, and refused for that
        return
    if entry.finishes:
        expected = f"null: task={config.task} evaluates model/ of its last checkpoint"
        yield _refused(config, "export_steps", expected, "export_steps=null")
    elif config.export_best:
        expected = "null: with export_best=true, model/ of any checkpoint may be that of the run"
        fix = "export_steps=null, or export_best=false"
        yield _refused(config, "export_steps", expected, fix)
    elif config.saves_per_epoch is None and saves > 0 and every % saves:
        expected = f"0 (never), or a multiple of {saves} (save_steps)"
        fix = f"export_steps={-(-every // saves) * saves}"
        yield _refused(config, "export_steps", expected, fix)


def _epochs(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields the epoch keys that are set for a task without epochs."""
    instead = {
        "num_train_epochs": "max_train_steps",
        "evals_per_epoch": "eval_steps",
        "logs_per_epoch": "logging_steps",
        "saves_per_epoch": "save_steps",
    }
    for key, in_steps in instead.items():
        value = getattr(config, key)
        if value is not None and not entry.has_epochs:
            expected = f"null: task={config.task} has no epochs"
            fix = f"{key}=null, and {in_steps}"
            yield Problem(key, HYDRA, show(value), expected, fix)


def _profile(config: RunConfig) -> Iterator[Problem]:
    steps = config.profile_steps
    if len(steps) != 2 or steps[0] > steps[1]:
        expected = "two numbers: the first and the last step of the trace"
        yield Problem("profile_steps", HYDRA, show(list(steps)), expected, "profile_steps=[10,12]")
    elif config.profile and config.num_train_epochs is None and steps[1] > config.max_train_steps:
        expected = f"steps of the run, which makes {config.max_train_steps} (max_train_steps)"
        last = config.max_train_steps
        fix = f"profile_steps=[{max(1, last - 2)},{last}]"
        yield Problem("profile_steps", HYDRA, show(list(steps)), expected, fix)


def _names(config: RunConfig) -> Iterator[Problem]:
    if not _NAME.fullmatch(config.run_name):
        expected = "letters, digits, '.', '_' and '-', beginning with a letter or digit: no path"
        yield Problem("run_name", HYDRA, show(config.run_name), expected, "run_name=first, say")
    out_dir = config.out_dir
    if not out_dir.strip() or "=" in out_dir or not out_dir.isprintable():
        expected = "a path without '=' (an override that names a checkpoint would not parse)"
        yield Problem("out_dir", HYDRA, show(out_dir), expected, "out_dir=runs/first, for example")
        return
    folder = Path(out_dir).resolve()
    if folder in (Path("/"), Path.home(), Path.cwd().resolve()):
        expected = "a folder of its own for the run, which overwrite_out_dir=true may empty"
        yield Problem("out_dir", HYDRA, show(out_dir), expected, "out_dir=runs/first, for example")


def launch_problems(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with how the processes are started."""
    yield from launcher_problems(launch)
    if config.accelerate_config_file is not None and not config.check_only:
        yield Problem(
            key="accelerate_config_file",
            file=HYDRA,
            found=config.accelerate_config_file,
            expected="null, unless check_only=true: the launch is what started this process",
            fix=f"accelerate launch --config_file {config.accelerate_config_file} …",
        )
    yield from _machines(launch)
    yield from _divided_batch(config, launch)
    yield from _devices(config, launch)
    yield from _precision(config, launch)
    yield from _stated(config, launch, "gradient_accumulation_steps")
    yield from _stated(config, launch, "gradient_clipping")


def _divided_batch(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    """Yields a batch of a whole step that the processes cannot divide evenly."""
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
        fix = f"{plan.key}={-(-rows // parts) * parts}, or {config.batch_scope_key}=per_device"
        yield Problem(plan.key, HYDRA, show(rows), expected, fix)


def launcher_problems(launch: Launch) -> Iterator[Problem]:
    """Yields problems with a launch that do not depend on the configuration.

    With these, Accelerate fails with its own error, silently starts a single process, or trains
    differently than configured.
    """
    if launch.distributed_type not in LAUNCHERS:
        close = nearest(launch.distributed_type.upper(), LAUNCHERS)
        expected = f"one of {', '.join(LAUNCHERS)}, in capitals{close}"
        if launch.distributed_type == "MULTI_CPU":
            expected += "; MULTI_CPU starts a single process without MPI"
        fix = "use a file of experiments/accelerate/ (MULTI_GPU also starts several on a CPU)"
        yield Problem("distributed_type", launch.source, launch.distributed_type, expected, fix)
    if launch.distributed_type == "NO" and launch.num_processes > 1:
        expected = "1, because distributed_type: NO starts a single process"
        fix = "distributed_type: MULTI_GPU (also on a CPU), DEEPSPEED or FSDP"
        yield Problem("num_processes", launch.source, show(launch.num_processes), expected, fix)
    if launch.expected_processes not in (None, launch.num_processes):
        expected = f"{launch.expected_processes}, as BSMETA_WORLD_SIZE says"
        fix = "start every machine with its number of processes, or correct BSMETA_WORLD_SIZE"
        yield Problem("WORLD_SIZE", launch.source, show(launch.num_processes), expected, fix)
    is_sharded = launch.deepspeed or launch.fsdp is not None
    if launch.use_cpu and (launch.num_processes > 1 or is_sharded):
        expected = "false: it turns DeepSpeed and FSDP off and starts a single process"
        fix = "leave use_cpu out, unset ACCELERATE_USE_CPU; a machine without GPU needs neither"
        yield Problem("use_cpu", launch.source, show(True), expected, fix)
    if launch.alone:
        found = "one process of several (MASTER_ADDR and MASTER_PORT without WORLD_SIZE)"
        expected = (
            "all of them: with --cpu (use_cpu), or distributed_type NO, accelerate starts one"
        )
        fix = "leave out --cpu and use_cpu; experiments/accelerate/cpu.yaml starts several on a CPU"
        yield Problem("num_processes", launch.source, found, expected, fix)
    if launch.alone_in_step is not None and launch.alone_in_step > 1:
        tasks = launch.alone_in_step
        expected = f"{tasks}, the tasks of this SLURM step: each would train on its own"
        fix = "start torchrun or accelerate launch in the step, as experiments/slurm/ does"
        yield Problem("WORLD_SIZE", launch.source, "no such variable", expected, fix)
    if launch.compiler is not None:
        expected = "no: the model is compiled as torch_compile of Hydra says"
        fix = f"leave dynamo_backend out of {launch.source}, or pass torch_compile=true instead"
        yield Problem("dynamo_backend", launch.source, show(launch.compiler), expected, fix)
    if launch.mixed_precision not in (None, *PRECISIONS):
        expected = f"nothing, or one of {', '.join(map(show, PRECISIONS))} as Hydra says"
        if launch.mixed_precision is False:
            expected += " (YAML reads no without quotes as false)"
        fix = f"leave mixed_precision out of {launch.source}"
        yield Problem("mixed_precision", launch.source, show(launch.mixed_precision), expected, fix)
    for name in launch.unknown:
        known = {*FILE_KEYS, *(f"fsdp_config.{field}" for field in FSDP_FIELDS)}
        expected = f"a key of a launch file{nearest(name, known)}"
        fix = "correct the name, or delete it"
        yield Problem(name, launch.source, "an unknown key", expected, fix)
    for name in launch.unsupported:
        expected = "nothing: processes train data parallel, under DeepSpeed or under FSDP2"
        yield Problem(name, launch.source, "a value", expected, "delete the key")
    if launch.deepspeed:
        yield from _deepspeed(launch)


def _machines(launch: Launch) -> Iterator[Problem]:
    """Yields settings with which processes cannot find each other and wait until a timeout."""
    if launch.rank >= launch.num_processes:
        expected = f"0 to {launch.num_processes - 1}, because WORLD_SIZE is {launch.num_processes}"
        fix = "start all processes by one launcher, accelerate launch or torchrun"
        yield Problem("RANK", launch.source, show(launch.rank), expected, fix)
    for name in launch.unset:
        reason, cause = f"WORLD_SIZE is {launch.num_processes}", "WORLD_SIZE"
        if launch.num_processes == 1:
            reason, cause = "FSDP2 trains in a process group", "ACCELERATE_USE_FSDP"
        fix = f"start with accelerate launch or torchrun, which set it, or unset {cause}"
        expected = f"a value, because {reason}"
        yield Problem(name, launch.source, "no such variable", expected, fix)
    machines = launch.machines
    if machines == 1:
        return
    if launch.num_processes % machines:
        each = launch.num_processes // machines
        expected = f"a multiple of {machines} (num_machines): accelerate starts {each} on each"
        fix = "give each machine the same number, or use experiments/several_machines.sh"
        yield Problem("num_processes", launch.source, show(launch.num_processes), expected, fix)
    if launch.machine_rank not in range(machines):
        expected = f"0 to {machines - 1} (num_machines - 1), another one on each machine"
        fix = "machine_rank: 0 on the first machine, 1 on the next, …"
        yield Problem("machine_rank", launch.source, show(launch.machine_rank), expected, fix)
    if not launch.main_process_ip:
        expected = "the address of machine 0, the same on all machines"
        fix = "main_process_ip: ADDRESS"
        yield Problem("main_process_ip", launch.source, show(launch.main_process_ip), expected, fix)
    if not launch.main_process_port:
        expected = "one free port of machine 0, the same on all machines"
        found, fix = show(launch.main_process_port), "main_process_port: 29500"
        yield Problem("main_process_port", launch.source, found, expected, fix)


def _devices(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    if launch.gpus == 0 and config.mixed_precision == "fp16":
        yield Problem(
            key="mixed_precision",
            file=HYDRA,
            found='"fp16"',
            expected='"no" or "bf16": there is no GPU, and fp16 does not train on a CPU',
            fix="mixed_precision=bf16 or mixed_precision=no",
        )
    if launch.gpus == 0 and launch.wants_gpus:
        yield Problem(
            key="GPUs",
            file="this machine",
            found="0",
            expected="one GPU per process, as the launch file requests",
            fix="see what nvidia-smi and CUDA_VISIBLE_DEVICES say; to train on the CPU, launch "
            "with experiments/accelerate/cpu.yaml, cpu_zero2.yaml or cpu_fsdp2.yaml",
        )
    if launch.gpus and launch.local_processes and launch.local_processes > launch.gpus:
        expected = f"at most {launch.gpus}, the GPUs of this machine"
        fix = f"accelerate launch --num_processes {launch.gpus} …"
        yield Problem("num_processes", launch.source, show(launch.local_processes), expected, fix)


def _precision(config: RunConfig, launch: Launch) -> Iterator[Problem]:
    stated = launch.mixed_precision
    if stated in PRECISIONS and stated != config.mixed_precision:
        expected = f"nothing, or {show(config.mixed_precision)} as mixed_precision of Hydra says"
        fix = f"leave mixed_precision out of {launch.source}, or pass mixed_precision={stated}"
        yield Problem("mixed_precision", launch.source, show(stated), expected, fix)


def _stated(config: RunConfig, launch: Launch, key: str) -> Iterator[Problem]:
    """Yields a problem if the launch states another number than Hydra."""
    stated, wanted = getattr(launch, key), getattr(config, key)
    if stated is not None and not same(stated, wanted):
        expected = f"nothing, or {wanted} as {key} of Hydra says"
        fix = f"leave {key} out of {launch.source}, or pass {key}={stated}"
        yield Problem(key, launch.source, show(stated), expected, fix)


def _deepspeed(launch: Launch) -> Iterator[Problem]:
    key = "deepspeed_config.deepspeed_config_file"
    if launch.deepspeed_config_file is None:
        expected = "the DeepSpeed JSON; all DeepSpeed settings belong in one file"
        fix = "deepspeed_config_file: deepspeed_configs/zero2.json"
        yield Problem(key, launch.source, show(None), expected, fix)
    elif not launch.deepspeed_config_file.is_file():
        known = sorted(path.name for path in (ROOT / "deepspeed_configs").glob("*.json"))
        expected = f"a file{nearest(launch.deepspeed_config_file.name, known)}, relative to the "
        expected += "working folder or to the repository"
        fix = f"one of deepspeed_configs/{{{','.join(known)}}}, or a path of your own"
        yield Problem(key, launch.source, str(launch.deepspeed_config_file), expected, fix)
    for name in launch.misplaced:
        expected = "nothing: beside a DeepSpeed JSON, accelerate refuses it"
        fix = f"delete {name} there; Hydra owns the value, the JSON says it or auto"
        yield Problem(f"deepspeed_config.{name}", launch.source, "a value", expected, fix)


def folder_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with the run folder and the checkpoint to resume from."""
    if config.accelerate_config_file is None:  # else the launch may be on another machine
        yield from _out_dir(config.out_dir)
    resume = config.resume_from_checkpoint_dir
    if resume not in (None, "latest") and not Path(str(resume)).expanduser().is_dir():
        expected = "latest, or a checkpoint folder"
        fix = "resume_from_checkpoint_dir=latest"
        yield missing("resume_from_checkpoint_dir", resume, expected, fix)


def _out_dir(name: str) -> Iterator[Problem]:
    """Yields a problem if the run folder cannot be created or written; creates nothing."""
    path = Path(name).absolute()
    folder = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    what = "" if folder == path else f"below {folder}, which is "
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except OSError as error:  # a dangling or circular link
        found = f"{what}a link that leads nowhere ({error.strerror})"
    else:
        if is_folder and os.access(folder, os.W_OK | os.X_OK):
            return
        found = f"{what}{'a folder that you may not write' if is_folder else 'a file'}"
    yield Problem("out_dir", HYDRA, found, "a folder, or a new name", "out_dir=runs/first")


def uses_model_name(config: PretrainedConfig) -> bool:
    """Whether the weights or the tokenizer come from `model_name`."""
    return None in (config.model_config_file, config.tokenizer_name)


def model_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields missing local files; names that may be on the Hub (OWNER/NAME) are not checked."""
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        used = key != "model_name" or uses_model_name(config)
        if name is None or not used or not is_path(name) or os.path.exists(name):
            continue
        folder = Path(name).parent
        if Path(name).name == "model" and lacks_model(folder):
            yield missing(key, name, "a folder, or a name on the Hub", how_to_export(folder))
            continue
        expected = "the JSON of a transformers config" if key == "model_config_file" else "a folder"
        yield missing(key, name, f"{expected}, or a name on the Hub", f"correct {key}")


def is_path(name: str) -> bool:
    """Whether a name is a path rather than one on the Hub (OWNER/NAME)."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def missing(key: str, name: object, expected: str, fix: str) -> Problem:
    """The problem of a file that does not exist, with the most similar name in its folder."""
    folder = Path(str(name)).parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    close = nearest(Path(str(name)).name, names)
    return Problem(key, HYDRA, f"{show(name)}, which is not there{close}", expected, fix)

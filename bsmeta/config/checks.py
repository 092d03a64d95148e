"""Checks of a run before anything is loaded, shared by all tasks.

Hydra owns every value. The DeepSpeed JSON may say `"auto"` or repeat the value, and a key that
DeepSpeed would otherwise fill in silently must be present. The launch (the file or the environment
of `accelerate launch`) must agree as well.

`check_run` reports all problems at once. Without problems, it returns the launch, and the DeepSpeed
configuration with every value filled in.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bsmeta.config.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.launch import Launch, read_launch
from bsmeta.config.launch_checks import find_fsdp_problems, find_launch_problems
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.machine_checks import find_machine_problems
from bsmeta.config.metric_table import list_best_metrics
from bsmeta.config.schema import (
    ADAMW,
    DEEPSPEED_OPTIMIZERS,
    OPTIMIZERS,
    TRACKERS,
    WSD,
    ModelCardConfig,
    PretrainedConfig,
    RunConfig,
)
from bsmeta.config.steps import explain_export, lacks_model, read_branch_step
from bsmeta.config.task_entry import TaskEntry, find_entry
from bsmeta.core.errors import (
    HYDRA,
    ConfigurationError,
    Problem,
    find_closest,
    format_value,
    look_up,
    raise_problems,
    suggest_nearest,
)
from bsmeta.core.keys import find_bound_problems

# Names of models on the Hub, with their owner, by the rules of huggingface_hub's validate_repo_id.
HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

_CARD_FORMS = {
    "license": (r"[a-z0-9]+([.-][a-z0-9]+)*", "identifiers of the Hub", "apache-2.0"),
    "datasets": (r"[\w.-]+(/[\w.-]+)?", "names of data sets on the Hub", "OWNER/NAME"),
    "language": (r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", "codes of ISO 639", "en"),
}
"""For each list on the model card: a pattern of its entries, what they are, and an example."""

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """The launch and the DeepSpeed configuration of a run that has passed all checks.

    Attributes:
        deepspeed_config: Without `"auto"`, and without the optimizer and the scheduler, which the
            trainer builds itself; None without DeepSpeed.
    """

    launch: Launch
    deepspeed_config: dict[str, Any] | None


def check_run(
    config: RunConfig,
    environ: Mapping[str, str],
    tasks: Mapping[str, TaskEntry],
    composition: Composition = EMPTY_COMPOSITION,
) -> CheckedRun:
    """Checks that the configuration is consistent with itself, this launch and the DeepSpeed JSON.

    Args:
        composition: The configuration as it was written; its problems are reported, too.

    Raises:
        ConfigurationError: Listing every problem with its key, file, both values and the fix.
    """
    entry, task_problems = find_entry(config, tasks)
    composition = replace(composition, problems=(*composition.problems, *task_problems))
    try:
        launch = read_launch(environ, config.accelerate_config_file)
    except ConfigurationError as error:  # the rest can be reported without a launch
        others = _find_launch_free_problems(config, entry, composition)
        raise_problems([*composition.problems, str(error), *others])
        raise
    return check_launch(config, launch, entry, composition)


def check_launch(
    config: RunConfig,
    launch: Launch,
    entry: TaskEntry,
    composition: Composition = EMPTY_COMPOSITION,
) -> CheckedRun:
    """Runs the checks of `check_run` for a given launch."""
    problems = [*composition.problems, *_find_launch_free_problems(config, entry, composition)]
    problems += find_launch_problems(config, launch)
    problems += find_fsdp_problems(config, launch, entry)
    if not config.check_only:  # a checked run may start on another machine
        problems += find_machine_problems(_read_num_workers(config))

    document = deepspeed = None
    if launch.deepspeed and launch.deepspeed_config_file is not None:
        from bsmeta.config.deepspeed import DeepSpeedJson, read_json  # imports pydantic

        document, unreadable = read_json(launch.deepspeed_config_file)
        problems += unreadable
        if document is not None:
            deepspeed = DeepSpeedJson(document, config, launch)
            problems += deepspeed.find_problems({problem.key for problem in unreadable})

    problems += find_loop_problems(config, launch, document, entry)
    problems += entry.start_problems(config, launch, document)
    raise_problems(problems)

    filled = None if deepspeed is None else deepspeed.fill_values()
    return CheckedRun(launch=launch, deepspeed_config=filled)


def _read_num_workers(config: RunConfig) -> int:
    """Returns the loader processes of each rank; 0 for a task without the key."""
    data: Any = getattr(config, "data_config", None)
    workers: int = getattr(data, "num_workers", 0)
    return workers


def _find_launch_free_problems(
    config: RunConfig, entry: TaskEntry, composition: Composition
) -> Iterator[Problem]:
    """Yields the problems that do not depend on the launch."""
    yield from find_value_problems(config, composition)
    yield from entry.value_problems(config, composition)
    yield from find_folder_problems(config)


def find_value_problems(
    config: RunConfig, composition: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields problems with single values and with combinations of values."""
    yield from find_bound_problems(config)

    if config.warmup_share is not None and "num_warmup_steps" in composition.overridden:
        expected = f"no such override: warmup_share={config.warmup_share:g} takes its place"
        fix = f"warmup_share=null num_warmup_steps={config.num_warmup_steps}, or only warmup_share"
        yield _describe_refusal(config, "num_warmup_steps", expected, fix)

    if config.trust_checkpoint and "trust_checkpoint" not in composition.overridden:
        expected = "false, unless the command line says so: a file may be someone else's"
        fix = "leave it out of the file, and pass trust_checkpoint=true"
        yield _describe_refusal(config, "trust_checkpoint", expected, fix)

    for step in config.extra_steps_to_eval_save_at:
        if step > config.max_train_steps and config.num_train_epochs is None:
            expected = f"steps of the run, from 1 to {config.max_train_steps} (max_train_steps)"
            fix = f"drop {step} from extra_steps_to_eval_save_at"
            yield Problem("extra_steps_to_eval_save_at", HYDRA, format_value(step), expected, fix)

    if config.push_to_hub is not None and not HUB_NAME.fullmatch(config.push_to_hub):
        expected = "OWNER/NAME, of letters, digits, '-', '_' and '.'"
        yield _describe_refusal(
            config, "push_to_hub", expected, "push_to_hub=me/my-model, for example"
        )

    yield from _find_model_card_problems(config.model_card)
    yield from _find_tracker_problems(config.trackers)
    yield from _find_decay_problems(config)


def _find_decay_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with a decay that is too long, or with a branch in its own folder."""
    has_known_length = config.num_train_epochs is None
    if has_known_length and RatePlan.of(config, config.max_train_steps).decays_in_warm_up:
        found = f"{WSD}, with warm-up and decay longer than {config.max_train_steps:,} steps"
        expected = "both within the run (max_train_steps)"
        fix = "lower num_warmup_steps (warmup_share) or num_decay_steps (decay_share)"
        yield Problem("lr_scheduler_type", HYDRA, found, expected, fix)

    if config.decay_from is None:
        return

    if read_branch_step(config.decay_from) is None:
        expected = "a checkpoint folder, named checkpoint-{step}step"
        fix = "decay_from=runs/stable/checkpoint-1000step, for example"
        yield _describe_refusal(config, "decay_from", expected, fix)
    elif Path(config.out_dir).resolve() in Path(config.decay_from).resolve().parents:
        expected = "another folder than that of decay_from, whose run it would replace"
        yield _describe_refusal(config, "out_dir", expected, "out_dir=runs/decayed, for example")

    if config.lr_scheduler_type != WSD:
        expected = f"{WSD}, because decay_from is set"
        yield _describe_refusal(config, "lr_scheduler_type", expected, f"lr_scheduler_type={WSD}")
    if config.num_decay_steps is None:
        expected = "the number of steps to decay for, because decay_from is set"
        yield _describe_refusal(
            config, "num_decay_steps", expected, "num_decay_steps=1000, for example"
        )
    if config.num_train_epochs is not None:
        expected = "null, because decay_from and num_decay_steps say how long the run is"
        yield _describe_refusal(config, "num_train_epochs", expected, "num_train_epochs=null")


def _find_model_card_problems(model_card: ModelCardConfig) -> Iterator[Problem]:
    """Yields a problem for each value of the model card that the Hub would reject."""
    for name, (pattern, expected, example) in _CARD_FORMS.items():
        values = getattr(model_card, name)
        if not all(re.fullmatch(pattern, value) for value in values):
            key = f"model_card.{name}"
            yield Problem(
                key, HYDRA, format_value(values), expected, f"{key}=[{example}], for example"
            )


def _find_tracker_problems(trackers: Sequence[str]) -> Iterator[Problem]:
    """Yields a problem for each tracker whose library is not installed."""
    for name in trackers:
        # Without TensorBoard, tensorboardX also writes its files.
        modules = (name, "tensorboardX") if name == "tensorboard" else (name,)
        if name in TRACKERS and not any(map(importlib.util.find_spec, modules)):
            fix = f"pip install {modules[-1]}, or leave it out of trackers"
            yield Problem("trackers", HYDRA, format_value(name), "an installed library", fix)


def _describe_refusal(config: RunConfig, key: str, expected: str, fix: str) -> Problem:
    """Returns the problem of a key at the top level, with its value."""
    return Problem(key, HYDRA, format_value(getattr(config, key)), expected, fix)


def find_loop_problems(
    config: RunConfig, launch: Launch, document: Mapping[str, Any] | None, entry: TaskEntry
) -> Iterator[Problem]:
    """Yields problems with the settings of the training loop."""
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.on_nonfinite == "skip" and stage == 0:
        expected = '"stop": without ZeRO, DeepSpeed has put a bad gradient into the weights already'
        fix = 'on_nonfinite=stop, or write "stage": 1 or more in the JSON'
        yield Problem("on_nonfinite", HYDRA, format_value("skip"), expected, fix)

    optimizer = OPTIMIZERS.get(config.optimizer_type)
    if launch.deepspeed and optimizer is not None and not optimizer.by_element:
        expected = (
            f"{DEEPSPEED_OPTIMIZERS} under DeepSpeed, which cuts the parameters into parts without "
            "a shape"
        )
        fix = f"optimizer_type={ADAMW}, or a launch file without DeepSpeed"
        yield _describe_refusal(config, "optimizer_type", expected, fix)

    if config.async_save and launch.deepspeed:
        expected = "false: DeepSpeed's ranks write their own parts of a checkpoint together"
        yield Problem("async_save", HYDRA, format_value(True), expected, "async_save=false")

    yield from _find_evaluation_problems(config)
    yield from _find_export_problems(config, entry)
    yield from _find_epoch_problems(config, entry)
    yield from _find_name_problems(config)
    yield from _find_profile_problems(config)


def _find_evaluation_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with `keep_best_by`: no evaluations, or an unknown metric."""
    metric = config.keep_best_by
    if metric is None:
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
        yield _describe_refusal(config, "keep_best_by", expected, fix)
        return

    metrics = list_best_metrics(config)
    if metrics is not None and metric not in metrics:
        expected = f"one of {', '.join(metrics)}{suggest_nearest(metric, metrics)}"
        yield _describe_refusal(
            config, "keep_best_by", expected, f"keep_best_by={find_closest(metric, metrics)}"
        )


def _find_export_problems(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields problems with `export_steps`: without effect, or without a `model/` that is needed."""
    export_steps = config.export_steps
    save_steps = config.save_steps
    if export_steps is None or export_steps < 0:  # out of bounds, and refused for that
        return

    if entry.finishes:
        expected = f"null: task={config.task} evaluates model/ of its last checkpoint"
        yield _describe_refusal(config, "export_steps", expected, "export_steps=null")
    elif config.export_best:
        expected = "null: with export_best=true, model/ of any checkpoint may be that of the run"
        fix = "export_steps=null, or export_best=false"
        yield _describe_refusal(config, "export_steps", expected, fix)
    elif config.saves_per_epoch is None and save_steps > 0 and export_steps % save_steps:
        expected = f"0 (never), or a multiple of {save_steps} (save_steps)"
        fix = f"export_steps={(export_steps // save_steps + 1) * save_steps}"
        yield _describe_refusal(config, "export_steps", expected, fix)


def _find_epoch_problems(config: RunConfig, entry: TaskEntry) -> Iterator[Problem]:
    """Yields a problem for each epoch key that is set although the task has no epochs."""
    keys_in_steps = {
        "num_train_epochs": "max_train_steps",
        "evals_per_epoch": "eval_steps",
        "logs_per_epoch": "logging_steps",
        "saves_per_epoch": "save_steps",
    }
    for key, key_in_steps in keys_in_steps.items():
        if getattr(config, key) is not None and not entry.has_epochs:
            expected = f"null: task={config.task} has no epochs"
            yield _describe_refusal(config, key, expected, f"{key}=null, and {key_in_steps}")


def _find_profile_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with `profile_steps`: not a range, or outside of the run."""
    steps = config.profile_steps
    last_step = config.max_train_steps
    if len(steps) != 2 or steps[0] > steps[1]:
        expected = "two numbers: the first and the last step of the trace"
        yield _describe_refusal(config, "profile_steps", expected, "profile_steps=[10,12]")
    elif config.profile and config.num_train_epochs is None and steps[1] > last_step:
        expected = f"steps of the run, which makes {last_step} (max_train_steps)"
        fix = f"profile_steps=[{max(1, last_step - 2)},{last_step}]"
        yield _describe_refusal(config, "profile_steps", expected, fix)


def _find_name_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with a run name that is not a file name, and with the run folder."""
    if not _RUN_NAME.fullmatch(config.run_name):
        expected = "letters, digits, '.', '_' and '-', beginning with a letter or digit: no path"
        yield _describe_refusal(config, "run_name", expected, "run_name=first, say")

    out_dir = config.out_dir
    expected = ""
    if not out_dir.strip() or "=" in out_dir or not out_dir.isprintable():
        expected = "a path without '=' (an override that names a checkpoint would not parse)"
    elif Path(out_dir).resolve() in (Path("/"), Path.home(), Path.cwd().resolve()):
        expected = "a folder of its own for the run, which overwrite_out_dir=true may empty"
    if expected:
        yield _describe_refusal(config, "out_dir", expected, "out_dir=runs/first, for example")


def find_folder_problems(config: RunConfig) -> Iterator[Problem]:
    """Yields problems with the run folder and the checkpoint to resume from."""
    if config.accelerate_config_file is None:  # else the launch may be on another machine
        yield from _find_run_folder_problems(config.out_dir)

    resume = config.resume_from_checkpoint_dir
    if resume not in (None, "latest") and not Path(str(resume)).expanduser().is_dir():
        key = "resume_from_checkpoint_dir"
        yield describe_missing_file(key, resume, "latest, or a checkpoint folder", f"{key}=latest")


def _find_run_folder_problems(name: str) -> Iterator[Problem]:
    """Yields a problem if the run folder cannot be created or written; creates nothing."""
    path = Path(name).absolute()
    folder = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    location = "" if folder == path else f"below {folder}, which is "

    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except OSError as error:  # a dangling or circular link
        found = f"{location}a link that leads nowhere ({error.strerror})"
    else:
        if is_folder and os.access(folder, os.W_OK | os.X_OK):
            return
        found = f"{location}{'a folder that you may not write' if is_folder else 'a file'}"

    yield Problem("out_dir", HYDRA, found, "a folder, or a new name", "out_dir=runs/first")


def uses_model_name(config: PretrainedConfig) -> bool:
    """Whether the weights or the tokenizer come from `model_name`."""
    return None in (config.model_config_file, config.tokenizer_name)


def find_model_problems(config: PretrainedConfig) -> Iterator[Problem]:
    """Yields problems with missing local files; names on the Hub (OWNER/NAME) are not checked."""
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        is_used = key != "model_name" or uses_model_name(config)
        if name is None or not is_used or not is_path(name) or os.path.exists(name):
            continue

        folder = Path(name).parent
        if Path(name).name == "model" and lacks_model(folder):
            yield describe_missing_file(
                key, name, "a folder, or a name on the Hub", explain_export(folder)
            )
            continue

        expected = "the JSON of a transformers config" if key == "model_config_file" else "a folder"
        yield describe_missing_file(
            key, name, f"{expected}, or a name on the Hub", f"correct {key}"
        )


def is_on_machine(name: str) -> bool:
    """Whether a model or tokenizer is on this machine: a folder, or in the cache of the Hub."""
    from huggingface_hub import try_to_load_from_cache  # slow to import, and rarely needed

    if is_path(name) or os.path.isdir(name):
        return os.path.isdir(name)
    files = ("tokenizer.json", "tokenizer_config.json", "config.json")
    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    except ValueError:  # no name that the Hub accepts
        return False


def is_offline() -> bool:
    """Whether the environment forbids access to the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_path(name: str) -> bool:
    """Whether a name is a path rather than one on the Hub (OWNER/NAME)."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def describe_missing_file(key: str, name: object, expected: str, fix: str) -> Problem:
    """Returns the problem of a missing file, with the most similar name in its folder."""
    folder = Path(str(name)).parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    suggestion = suggest_nearest(Path(str(name)).name, names)
    return Problem(
        key, HYDRA, f"{format_value(name)}, which is not there{suggestion}", expected, fix
    )

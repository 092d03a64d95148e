"""Resuming: chooses the checkpoint, and checks that this launch can continue its run.

Any engine, with any number of processes, reads any checkpoint (`engines/state.py`).
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bsmeta.config.saved import parse_saved, read_saved
from bsmeta.config.saved_runs import format_yaml, load_resolved
from bsmeta.config.schema import OPTIMIZERS, RunConfig
from bsmeta.config.steps import CHECKPOINT_NAME, BatchPlan, lacks_model
from bsmeta.core.errors import (
    ConfigurationError,
    describe_differences,
    find_differences,
    raise_problems,
)
from bsmeta.training.checkpoints.branching import check_same_branch, find_branch_problems
from bsmeta.training.checkpoints.checkpoint import (
    CONFIG_FILE,
    TRAINER_STATE_FILE,
    Checkpoint,
    find_newest_intact,
    list_checkpoints,
    list_faults,
    name_damaged_file,
)
from bsmeta.training.engines.engine import name_engine
from bsmeta.training.ranks.distributed import Accelerator
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.run_folder.restarts import Restart

logger = logging.getLogger(__name__)

# Keys that affect how a process starts, not how the run trains.
_UNCOMPARED_KEYS = {
    "resume_from_checkpoint_dir",
    "overwrite_out_dir",
    "staging_dir",
    "staging_max_gb",
}


@dataclass(frozen=True)
class Resume:
    """The point that a run resumes from.

    Attributes:
        changed: Old and new value of each key whose value differs from the checkpoint. The run
            continues with the new ones.
        restart: The earlier starts of the run, and engine and processes then and now.
    """

    saved: Checkpoint
    changed: dict[str, list[Any]]
    restart: Restart

    def log_changes(self) -> None:
        """Logs the settings, and the engine, that differ from the checkpoint."""
        changed = dict(self.changed)
        saved_engine, engine = self.restart.engines
        if saved_engine != engine:
            changed["engine"] = [saved_engine, engine]
        if not changed:
            return

        lines = [f"  {key}: {old} -> {new}" for key, (old, new) in changed.items()]
        logger.warning(
            "settings changed since %s, used from here on:\n%s",
            self.saved.folder.name,
            "\n".join(lines),
        )


def may_resume(resume_from_checkpoint_dir: str | None, out_dir: Path) -> bool:
    """Whether a run may use an `out_dir` that holds an earlier run, without replacing it.

    It may if it resumes from a checkpoint in `out_dir`, or if it begins with the checkpoint of
    another run and `out_dir` has no checkpoints yet. A checkpoint that does not exist is refused
    later, before anything in the folder is replaced.
    """
    if resume_from_checkpoint_dir is None:
        return False
    if resume_from_checkpoint_dir == "latest":
        return True

    folder = Path(resume_from_checkpoint_dir)
    return _is_inside(folder, out_dir) or not folder.is_dir() or not list_checkpoints(out_dir)


def _is_inside(folder: Path, out_dir: Path) -> bool:
    """Whether a folder, or a link to it, is in the run folder."""
    return out_dir in (*folder.resolve().parents, folder.absolute().parent.resolve())


def find_resume_point(
    config: RunConfig, max_steps: int, accelerator: Accelerator, processes: Processes, out_dir: Path
) -> Resume | None:
    """Finds the checkpoint to resume from, and checks that it fits.

    All ranks call it, before the engine is created. Returns None for a new run.

    Raises:
        ConfigurationError: If this launch cannot continue the run, or every checkpoint is damaged.
    """
    saved = _find_checkpoint(config, processes, out_dir)
    if saved is None:
        return None

    check_task(saved, config.task)
    state = saved.read_state()
    plan = BatchPlan.of(config, processes.size)
    with name_damaged_file(saved.folder / TRAINER_STATE_FILE):
        check_batch(saved, state["global_batch"], plan)
    check_steps(saved, max_steps)
    if config.export_best:
        check_exports(out_dir, saved.step)

    changed = find_changed_settings(saved, config)
    check_optimizer(saved, changed)
    engines = (state["engine"], name_engine(accelerator))
    return Resume(saved, changed, Restart.read(out_dir, engines, state["world_size"], processes))


def _find_checkpoint(config: RunConfig, processes: Processes, out_dir: Path) -> Checkpoint | None:
    """Finds the checkpoint to resume from, or to branch off for a decay, if there is one."""
    saved = None
    if config.resume_from_checkpoint_dir is not None:
        saved = choose_checkpoint(config.resume_from_checkpoint_dir, out_dir, processes)
    if config.decay_from is None:
        return saved

    if saved is not None:  # the branch has saved already
        saved_config = load_resolved(saved.folder / CONFIG_FILE, type(config))
        check_same_branch(saved, saved_config.decay_from, config.decay_from)
        return saved

    branch_point = _open_named_checkpoint(Path(config.decay_from), processes, "decay_from")
    stable_config = load_resolved(branch_point.folder / CONFIG_FILE, type(config))
    raise_problems([*find_branch_problems(branch_point, stable_config, config.learning_rate)])
    return branch_point


def choose_checkpoint(request: str, out_dir: Path, processes: Processes) -> Checkpoint | None:
    """Chooses the checkpoint to resume from; every rank gets the same result.

    Args:
        request: `latest`, for the newest intact one in `out_dir`, or the folder of a checkpoint.

    Returns:
        The checkpoint; None for `latest` if the run has none yet.

    Raises:
        ConfigurationError: If the named folder is not a checkpoint or is damaged, or if every
            checkpoint of the run is damaged.
    """
    if request != "latest":
        return _open_named_checkpoint(Path(request), processes)

    newest, faults = find_newest_intact(out_dir, processes)
    if newest is None and faults:
        raise ConfigurationError(
            f"resume_from_checkpoint_dir={request}: every checkpoint is damaged in {out_dir}; "
            "nothing was overwritten. Restore one, or delete them all to start afresh:\n  "
            + "\n  ".join(faults)
        )
    return newest


def _open_named_checkpoint(
    folder: Path, processes: Processes, key: str = "resume_from_checkpoint_dir"
) -> Checkpoint:
    """Returns the checkpoint in a folder that `key` names; every rank gets the same result.

    Raises:
        ConfigurationError: If it is not a checkpoint, or damaged.
    """
    match = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    expected = "" if key == "decay_from" else "`latest` or "
    if not folder.is_dir() or match is None:
        raise ConfigurationError(
            f"{key}: {folder} is not a checkpoint folder; expected {expected}the path of a folder "
            "named checkpoint-{step}step"
        )

    saved = Checkpoint(folder, int(match[1]))
    faults = list_faults(saved, processes)
    if faults:
        raise ConfigurationError(
            f"{key}={folder}: it is damaged; restore it, or name another:\n  " + "\n  ".join(faults)
        )
    return saved


def find_rollback_point(out_dir: Path, step: int, processes: Processes) -> Checkpoint | None:
    """Finds the newest intact checkpoint up to a step.

    Every rank calls it and gets the same result.
    """
    newest, _ = find_newest_intact(out_dir, processes, lambda saved: saved.step <= step)
    return newest


def find_changed_settings(saved: Checkpoint, config: RunConfig) -> dict[str, list[Any]]:
    """Returns the keys that differ from the checkpoint's configuration, with both values."""
    saved_config = read_saved(saved.folder / CONFIG_FILE)
    current_config = parse_saved(format_yaml(config), "the configuration of this run")
    changed = {
        key: [old, new]
        for key, old, new in find_differences(saved_config, current_config)
        if key not in _UNCOMPARED_KEYS
    }

    if "out_dir" in changed:
        old_folder, new_folder = changed["out_dir"]
        if os.path.abspath(old_folder) == os.path.abspath(new_folder):  # one of them is relative
            del changed["out_dir"]
    return changed


def check_task(saved: Checkpoint, task: str) -> None:
    """Refuses a checkpoint of another task, before its launch and its model are compared."""
    saved_task = read_saved(saved.folder / CONFIG_FILE).get("task", task)
    if saved_task != task:
        raise ConfigurationError(
            f"{saved.folder} is a checkpoint of task={saved_task}, this run has "
            f"task={task}; expected a checkpoint of the same task, or another out_dir for "
            "this run"
        )


def check_batch(saved: Checkpoint, saved_batch: int | None, plan: BatchPlan) -> None:
    """Refuses a launch with another global batch than the checkpoint's."""
    if saved_batch != plan.rows_per_step:
        raise ConfigurationError(
            f"{saved.folder} was trained with {saved_batch} rows a step, this launch makes "
            f"{plan.rows_per_step}; keep {plan.key} x gradient_accumulation_steps x processes = "
            f"{saved_batch}, or let gradient_accumulation_processes scale the steps"
        )


def check_optimizer(saved: Checkpoint, changed: dict[str, list[Any]]) -> None:
    """Refuses a checkpoint with the state of another optimizer."""
    old, new = changed.get("optimizer_type", (None, None))
    if old in OPTIMIZERS:
        raise ConfigurationError(
            f"optimizer_type={new}: {saved.folder} has the state of {old}; expected "
            f"optimizer_type={old}, or a new run in another out_dir that begins with its weights "
            f"(model_name={saved.folder}/model)"
        )


def check_steps(saved: Checkpoint, max_steps: int) -> None:
    """Refuses a run whose last step is before the step that it resumes from."""
    if saved.step > max_steps:
        raise ConfigurationError(
            f"max_train_steps={max_steps}: {saved.folder} is of step {saved.step} already; "
            f"expected at least {saved.step}. Raise max_train_steps (or num_train_epochs), or name "
            "an earlier checkpoint (resume_from_checkpoint_dir=FOLDER)"
        )


def check_exports(out_dir: Path, step: int) -> None:
    """Refuses `export_best` if a checkpoint that may be the best one has no `model/`."""
    earlier_folders = [saved.folder for saved in list_checkpoints(out_dir) if saved.step <= step]
    names_without_model = [folder.name for folder in earlier_folders if lacks_model(folder)]
    if names_without_model:
        raise ConfigurationError(
            f"export_best=true: {', '.join(names_without_model)} in {out_dir} have no model/, "
            "which export_steps has left out; expected it in every checkpoint, because each may be "
            "the best. Resume with export_best=false, or begin a new run in another out_dir"
        )


def list_parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Returns the full shape of each parameter, even if ZeRO-3 has partitioned it."""
    return {
        name: list(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in model.named_parameters()
    }


def check_same_model(
    saved: Checkpoint, saved_shapes: dict[str, list[int]], shapes: dict[str, list[int]]
) -> None:
    """Refuses a checkpoint of a model with different shapes."""
    lines = list(describe_differences(saved_shapes, shapes, "in the checkpoint"))
    if lines:
        first_lines = "\n".join(lines[:3])
        raise ConfigurationError(
            f"{saved.folder} holds a model of another shape ({len(lines)} of "
            f"{len(shapes | saved_shapes)} parameters differ):\n{first_lines}\nExpected the "
            f"model_name, model_config_file and tokenizer_name of {saved.folder / 'config.yaml'}; "
            "pass these, or start a new run in another out_dir"
        )

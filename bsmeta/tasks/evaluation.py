"""Evaluates checkpoints of any task, in all processes of a launcher if there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.task_entry import check_program
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.loopback import listen_on_loopback
from bsmeta.core.progress import GROUP_TIMEOUT
from bsmeta.core.rank import read_rank
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import (
    Location,
    locate_initial_model,
    locate_model,
    read_task,
    refuse_unwritable_reports,
)
from bsmeta.training.ranks.processes import Processes, close_device_groups


def evaluate_checkpoints(config: EvaluateConfig) -> list[Path]:
    """Evaluates checkpoints on all processes; rank 0 writes and prints the reports.

    Returns:
        The folders of the reports that this process wrote; none except on rank 0.

    Raises:
        UserError: If a checkpoint, the data or the folder of the reports cannot be used, or the
            tasks differ.
    """
    locations = locate_models(config)
    task_by_checkpoint = {
        location.name: read_task(location, config.training_config) for location in locations
    }
    if len(set(task_by_checkpoint.values())) > 1:
        pairs = ", ".join(f"{name} ({task})" for name, task in task_by_checkpoint.items())
        raise ConfigurationError(f"checkpoint: expected checkpoints of one task; found {pairs}")

    task = task_by_checkpoint[locations[0].name]
    check_program("evaluate.py", task, TASKS)
    evaluate = TASKS[task].evaluate
    assert evaluate is not None, task

    if read_rank() == 0:  # which writes the reports
        for location in locations:
            refuse_unwritable_reports(config, location)

    transformers.utils.logging.disable_progress_bar()
    with _join_process_group() as processes:
        return evaluate(config, locations, processes)


def locate_models(config: EvaluateConfig) -> list[Location]:
    """Locates the models that `checkpoint` names; `untrained` adds the first one's initial model.

    Raises:
        UserError: If a model does not exist, or the value is not a name or a list of names.
    """
    names = config.checkpoint if isinstance(config.checkpoint, list) else [config.checkpoint]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"checkpoint={config.checkpoint}: expected a name or a list of them"
        )
    locations = [locate_model(name) for name in names]
    if config.untrained:
        locations.append(locate_initial_model(locations[0]))
    return locations


@contextmanager
def _join_process_group() -> Iterator[Processes]:
    """Joins the process group of a launcher (torchrun, `accelerate launch`), if there is one.

    The groups of the devices are closed at the end, except after an error.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)

    if world_size > 1:
        listen_on_loopback()
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=GROUP_TIMEOUT)

    yield Processes.of_group(device)
    close_device_groups()  # skipped after an error, when the other ranks would not join

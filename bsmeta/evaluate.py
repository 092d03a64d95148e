"""Evaluates trained models on held-out data, as their task defines it.

python bsmeta/evaluate.py checkpoint=runs/demo
accelerate launch --config_file experiments/accelerate/cpu.yaml bsmeta/evaluate.py
python bsmeta/evaluate.py checkpoint=[runs/a,runs/b] controls=[shuffled] --prompt
python bsmeta/evaluate.py checkpoint=runs/classification validation_file=other.csv
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import transformers

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.task_entry import check_program
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.loopback import listen_on_loopback
from bsmeta.core.progress import GROUP_TIMEOUT
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.evaluation.evaluate import locate_models
from bsmeta.tasks.checkpoints import read_task
from bsmeta.training.processes import Processes, close_device_groups

FLAGS = {"--prompt": "prompt=true", "--untrained": "untrained=true"}


def main(config: EvaluateConfig) -> None:
    """Evaluates the checkpoints on all processes; rank 0 writes and prints the report."""
    locations = locate_models(config)
    tasks = {location.name: read_task(location, config.training_config) for location in locations}
    if len({*tasks.values()}) > 1:
        listed = ", ".join(f"{name} ({task})" for name, task in tasks.items())
        raise ConfigurationError(f"checkpoint: expected checkpoints of one task; found {listed}")

    task = tasks[locations[0].name]
    check_program("evaluate.py", task, TASKS)
    evaluate = TASKS[task].evaluate
    assert evaluate is not None, task

    transformers.utils.logging.disable_progress_bar()
    with _process_group() as processes:
        evaluate(config, locations, processes)


@contextmanager
def _process_group() -> Iterator[Processes]:
    """Joins the process group of a launcher (torchrun, `accelerate launch`), if there is one."""
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


if __name__ == "__main__":
    sys.argv[1:] = [FLAGS.get(argument, argument) for argument in sys.argv[1:]]
    run_entry_point(main, EvaluateConfig, "evaluate")

"""Evaluates trained models on held-out data, in the way of the task that they were trained on.

python bsmeta/evaluate.py checkpoint=runs/demo
accelerate launch --config_file experiments/accelerate/cpu.yaml bsmeta/evaluate.py
python bsmeta/evaluate.py checkpoint=[runs/a,runs/b] controls=[shuffled] --prompt
python bsmeta/evaluate.py checkpoint=runs/classification validation_file=other.csv
"""

from __future__ import annotations

import os
import sys

from bsmeta.config.compose import run_entry_point
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.config.task_entry import check_program
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.evaluation.run import locations_of
from bsmeta.tasks.checkpoints import task_of
from bsmeta.training.ranks import start_ranks

FLAGS = {"--prompt": "prompt=true", "--untrained": "untrained=true"}


def main(config: EvaluateConfig) -> None:
    """Evaluates the checkpoints on all processes; rank 0 writes and prints the report."""
    locations = locations_of(config)
    tasks = {location.name: task_of(location, config.training_config) for location in locations}
    if len({*tasks.values()}) > 1:
        listed = ", ".join(f"{name} ({task})" for name, task in tasks.items())
        raise ConfigurationError(f"checkpoint: expected checkpoints of one task; found {listed}")
    task = tasks[locations[0].name]
    check_program("evaluate.py", task, TASKS)
    environment = os.environ  # set by torchrun and `accelerate launch`
    with start_ranks(
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
    ) as (ranks, device):
        evaluate = TASKS[task].evaluate
        assert evaluate is not None, task
        evaluate(config, locations, ranks, device)


if __name__ == "__main__":
    sys.argv[1:] = [FLAGS.get(argument, argument) for argument in sys.argv[1:]]
    run_entry_point(main, EvaluateConfig, "evaluate")

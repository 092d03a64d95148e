"""The same on many machines: datatrove's executors start tasks, each of which makes some shards.

Nothing else of datatrove is used; not its marks of completion either, which are numbers of tasks
and do not notice that an input has changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datatrove.executor import RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.pipeline import Stopped, find_shards, plan_shards, run
from bsmeta.annotate.registry import make_annotators
from bsmeta.annotate.shard import FOLDER
from bsmeta.annotate.sources import counted, identified
from bsmeta.config.compose import EXIT_PREEMPTED
from bsmeta.core.errors import ConfigurationError, DataError

_REQUEUE = {"signal": "USR1@90"}  # before the time limit; datatrove then requeues the task


class AnnotateStep(PipelineStep):
    """Makes the shards of every `world_size`-th input file.

    Args:
        config: The configuration.
        inputs: Paths of all input files and names of their shards.
    """

    name = "annotate"
    type = "bsmeta"

    def __init__(self, config: AnnotateConfig, inputs: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.config = config
        self.inputs = list(inputs)

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> None:
        """Makes the shards of this task; what is complete is left as it is."""
        files = identified(self.inputs[rank::world_size])
        annotators = make_annotators(self.config)
        shards = find_shards(self.config, annotators, Path(self.config.output or ""), files)
        plans = plan_shards(self.config, annotators, shards)
        try:
            problems = run(self.config, annotators, plans, lambda *_: None)
        except Stopped as stopped:
            print(f"stopped by {stopped}", file=sys.stderr)
            sys.exit(EXIT_PREEMPTED)
        if problems:
            raise DataError("\n".join(problems))


def submit(config: AnnotateConfig, inputs: Sequence[tuple[str, str]]) -> str:
    """Starts the tasks of `executor`: slurm queues them and returns, ray waits for them.

    Returns:
        What was started.

    Raises:
        ConfigurationError: If something for that is missing.
    """
    output = Path(config.output or "").absolute()
    config = replace(config, output=str(output))
    tasks = min(config.tasks or len(inputs), len(inputs))
    options = {
        "pipeline": [AnnotateStep(config, inputs)],
        "tasks": tasks,
        "cpus_per_task": config.workers or 1,
        "mem_per_cpu_gb": config.task_memory_gb,
        "logging_dir": str(output / FOLDER / config.executor),
        "skip_completed": False,
    }
    if config.executor == "ray":
        return _run_with_ray(options)
    if not config.slurm_partition:
        raise ConfigurationError("slurm_partition is not set; expected one that `sinfo` lists")
    executor = SlurmPipelineExecutor(
        **options,
        partition=config.slurm_partition,
        time=config.slurm_time,
        qos="",
        job_name=f"annotate-{output.name}",
        env_command=config.slurm_setup or f"export PATH={os.path.dirname(sys.executable)}:$PATH",
        sbatch_args=_REQUEUE,
        requeue_signals=("SIGUSR1",),
    )
    try:
        executor.run()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"executor=slurm: sbatch failed: {error}") from error
    return f"queued as job {executor.job_id}: {counted(tasks, 'task')}"


def _run_with_ray(options: dict[str, Any]) -> str:
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(
            "executor=ray: ray is not installed; pip install ray, or executor=local"
        ) from error
    ray.init(ignore_reinit_error=True)
    RayPipelineExecutor(**options).run()
    return f"done with ray: {counted(options['tasks'], 'task')}"

"""The command `annotate.py`: checks the configuration, makes the shards, and reports.

On many machines, datatrove's executors start tasks, each of which makes some shards. Nothing else
of datatrove is used; not its marks of completion either, which are numbers of tasks and do not
notice that an input has changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from datatrove.executor import RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from rich.console import Console

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.chunks import Counts
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.linked_crawl import make_index, needs_index, write_linked_sets
from bsmeta.annotate.pipeline import (
    Advance,
    Stopped,
    check_disk,
    find_shards,
    plan_shards,
    refuse_renamed,
    run,
    stopped_by_signals,
)
from bsmeta.annotate.registry import make_annotators
from bsmeta.annotate.report import make_report, print_report, write_report
from bsmeta.annotate.shard import FOLDER
from bsmeta.annotate.sources import InputFile, counted, identified, list_inputs, output_folder
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.process import EXIT_PREEMPTED
from bsmeta.core.progress import progress_bar

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


def main(config: AnnotateConfig) -> int:
    """Makes the shards that are missing or out of date, and the report; returns the exit code.

    Raises:
        ConfigurationError: If a setting is wrong, or the disk is full.
        DataError: If input files are missing or damaged; the others are done first.
    """
    inputs = list_inputs(config.input)
    output = output_folder(config.output)
    annotators = make_annotators(config)
    if config.disambiguation is not None and not needs_index(annotators):
        raise ConfigurationError(
            "disambiguation is made from links: add entity to annotators, with entity_source=links"
        )
    if config.replace and config.executor != "local":
        raise ConfigurationError(
            f"replace={config.replace}: executor={config.executor} does what is left whenever the "
            "command is repeated, and would recompute these columns each time; set executor=local, "
            "or delete the shards and leave out replace"
        )
    try:
        return _annotate(config, annotators, inputs, output)
    except Stopped as stopped:
        print(f"stopped by {stopped}; the same command continues where it was", file=sys.stderr)
        return EXIT_PREEMPTED


@stopped_by_signals()
def _annotate(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    inputs: Sequence[tuple[str, str]],
    output: Path,
) -> int:
    files = _read(inputs)
    total = sum(file.bytes for file in files)
    refuse_renamed(output, files)
    existing = find_shards(config, annotators, output, files)
    if needs_index(annotators):
        with _pages("reading titles", total) as advance:
            make_index(config, files, output, advance)
    plans = plan_shards(config, annotators, existing)
    if config.check_disk:
        check_disk(output, plans)
    left = [plan.file for plan in plans if not plan.is_complete]
    if left and config.executor != "local":
        return _start_tasks(config, left)
    with _pages("annotating", total) as advance:
        problems = run(config, annotators, plans, advance)
    if config.report:
        report = make_report(plans, [annotator.name for annotator in annotators])
        print_report(report, Console())
        written = write_report(report, config, plans, output)
        print(f"written to {', '.join(map(str, written))}")
    if problems:
        raise DataError("\n".join(problems))
    if config.disambiguation is not None:
        folder, shards = Path(config.disambiguation), [plan.files.shard for plan in plans]
        share = config.disambiguation_dev_share
        with _pages("writing sets", sum(map(os.path.getsize, shards))) as advance:
            summary = write_linked_sets(shards, output, folder, share, advance)
        print(summary)
    return 0


def _read(inputs: Sequence[tuple[str, str]]) -> list[InputFile]:
    files, done = [], 0
    total = sum(os.path.getsize(path) for path, _ in inputs)
    with _pages("reading input", total) as advance:
        for file in identified(inputs):
            files.append(file)
            done += file.bytes
            advance(done, Counts())
    return files


def _start_tasks(config: AnnotateConfig, files: Sequence[InputFile]) -> int:
    try:
        from bsmeta.annotate.command import submit
    except ImportError as error:
        raise ConfigurationError(
            f"executor={config.executor} needs datatrove: pip install -e .[cluster] ({error})"
        ) from error
    started = submit(config, [(file.path, file.name) for file in files])
    print(f"{started}; the same command, when they have ended, does what is left and reports")
    return 0


@contextmanager
def _pages(name: str, total: int) -> Iterator[Advance]:
    """A bar over the bytes of the input, with pages per second."""
    begin, pages = time.monotonic(), 0
    with progress_bar(name, total) as show:

        def advance(done: int, counts: Counts) -> None:
            nonlocal pages
            pages += counts.pages
            speed = pages / max(time.monotonic() - begin, 1e-3)
            show(done, f"{counted(pages, 'page')}, {speed:,.0f}/s" if pages else "")

        yield advance

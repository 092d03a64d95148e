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
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from bsmeta.annotate import plan, pool
from bsmeta.annotate.annotator import Annotation, Annotator
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.links import make_index, write_linked_sets
from bsmeta.annotate.report import make_report, print_report, write_report
from bsmeta.annotate.shard import FOLDER, Counts, Dropped, ShardWriter, existing_rows
from bsmeta.annotate.sources import InputFile, counted, identified, list_inputs
from bsmeta.annotate.spans import Entity
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.exit_codes import EXIT_PREEMPTED
from bsmeta.core.progress import progress_bar
from bsmeta.core.terminal import Console

_REQUEUE = {"signal": "USR1@90"}  # before the time limit; datatrove then requeues the task


def main(config: AnnotateConfig) -> int:
    """Makes the shards that are missing or out of date, and the report; returns the exit code.

    Raises:
        ConfigurationError: If a setting is wrong, or the disk is full.
        DataError: If input files are missing or damaged; the others are done first.
    """
    inputs = list_inputs(config.input)
    if not config.output:
        raise ConfigurationError("output is not set; expected the folder of the shards")
    output = Path(config.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"output={config.output} cannot be made: {error}") from error
    annotators = plan.make_annotators(config)
    if config.disambiguation is not None and not _needs_index(annotators):
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
    except pool.Stopped as stopped:
        print(f"stopped by {stopped}; the same command continues where it was", file=sys.stderr)
        return EXIT_PREEMPTED


def _needs_index(annotators: Sequence[Annotator]) -> bool:
    return any(isinstance(one, Entity) and one.reads_links for one in annotators)


@pool.stopped_by_signals()
def _annotate(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    inputs: Sequence[tuple[str, str]],
    output: Path,
) -> int:
    files: list[InputFile] = []
    total = 0
    with _pages("reading input", sum(os.path.getsize(path) for path, _ in inputs)) as advance:
        for file in identified(inputs):
            files.append(file)
            total += file.bytes
            advance(total, Counts())
    plan.refuse_renamed(output, files)
    plan.refuse_losses(config, annotators, files)
    if _needs_index(annotators):
        with _pages("reading titles", total) as advance:
            make_index(config, files, output, advance)
    plans = plan.plan_shards(config, annotators, files)
    if config.check_disk:
        plan.check_disk(output, plans)
    left = [(one.file.path, one.file.name) for one in plans if not one.is_complete]
    if left and config.executor != "local":
        started = submit(config, left)
        print(f"{started}; the same command, when they have ended, does what is left and reports")
        return 0
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
        folder, shards = Path(config.disambiguation), [one.files.shard for one in plans]
        share = config.disambiguation_dev_share
        with _pages("writing sets", sum(map(os.path.getsize, shards))) as advance:
            print(write_linked_sets(shards, output, folder, share, advance))
    return 0


@contextmanager
def _pages(name: str, total: int) -> Iterator[pool.Advance]:
    """A bar over the bytes of the input, with pages per second."""
    begin, pages = time.monotonic(), 0
    with progress_bar(name, total) as show:

        def advance(done: int, counts: Counts) -> None:
            nonlocal pages
            pages += counts.pages
            speed = pages / max(time.monotonic() - begin, 1e-3)
            show(done, f"{counted(pages, 'page')}, {speed:,.0f}/s" if pages else "")

        yield advance


def run(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    plans: Sequence[plan.ShardPlan],
    advance: pool.Advance,
) -> list[str]:
    """Makes the shards that are not complete.

    Returns:
        A message for each input file that is damaged; its shard is left incomplete.

    Raises:
        ConfigurationError: If a shard cannot be written, or the disk is full.
        Stopped: If a signal arrives; what is written is continued by the next run.
    """
    problems: list[str] = []
    writers: dict[int, ShardWriter] = {}
    work = Annotation(config, annotators, plan.columns_of_all(annotators))
    try:
        with pool.stopped_by_signals(), pool.Pool(config, work) as workers:
            for chunk, written in workers.map(_chunks(config, plans, writers)):
                if written is not None:
                    writers[chunk.shard].add(written)
                elif chunk.problem:
                    problems.append(chunk.problem)
                    writers.pop(chunk.shard).close()
                else:
                    writers.pop(chunk.shard).finish()
                advance(chunk.position, Counts() if written is None else written.counts)
    finally:
        for writer in writers.values():
            writer.close()
    return problems


def _chunks(
    config: AnnotateConfig, plans: Sequence[plan.ShardPlan], writers: dict[int, ShardWriter]
) -> Iterator[pool.Chunk]:
    """The chunks that are not yet written; adds a writer for each shard that begins."""
    done = 0
    for number, planned in enumerate(plans):
        begin, done = done, done + planned.file.bytes
        if planned.is_complete:
            continue
        writer = writers[number] = ShardWriter(planned.files, planned.header)
        if writer.is_complete:
            yield pool.Chunk(number, position=done)
            continue
        rows: Iterator[bytes | Dropped | None] = repeat(None)
        if planned.existing is not None:
            rows = islice(existing_rows(planned.files, planned.existing), writer.pages, None)
        names, keeps_html = frozenset(planned.header.names), planned.header.keeps_html
        first = pool.Chunk(number, names=names, keeps_html=keeps_html, position=begin)
        yield from pool.chunks_of_file(config, first, planned.file, writer.pages, rows)


def run_task(
    config: AnnotateConfig,
    inputs: Sequence[tuple[str, str]],
    data: Any = None,
    rank: int = 0,
    world_size: int = 1,
) -> None:
    """Makes the shards of every `world_size`-th input file, as a step of datatrove.

    `inputs` are paths of all input files and names of their shards. No step gives it `data`.
    """
    files = list(identified(inputs[rank::world_size]))
    annotators = plan.make_annotators(config)
    plan.refuse_losses(config, annotators, files)
    try:
        plans = plan.plan_shards(config, annotators, files)
        problems = run(config, annotators, plans, lambda *_: None)
    except pool.Stopped as stopped:
        print(f"stopped by {stopped}", file=sys.stderr)
        sys.exit(EXIT_PREEMPTED)
    if problems:
        raise DataError("\n".join(problems))


def submit(config: AnnotateConfig, inputs: Sequence[tuple[str, str]]) -> str:
    """Starts the tasks of `executor`: slurm queues them and returns, ray waits for them.

    Returns what was started; raises ConfigurationError if something for that is missing.
    """
    try:
        from datatrove.executor import RayPipelineExecutor, SlurmPipelineExecutor
    except ImportError as error:
        raise ConfigurationError(
            f"executor={config.executor} needs datatrove: pip install -e .[cluster] ({error})"
        ) from error
    output = Path(config.output or "").absolute()
    tasks = min(config.tasks or len(inputs), len(inputs))
    options: dict[str, Any] = {
        "pipeline": [partial(run_task, replace(config, output=str(output)), list(inputs))],
        "tasks": tasks,
        "cpus_per_task": config.workers or 1,
        "mem_per_cpu_gb": config.task_memory_gb,
        "logging_dir": str(output / FOLDER / config.executor),
        "skip_completed": False,
    }
    if config.executor == "ray":
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                "executor=ray: ray is not installed; pip install ray, or executor=local"
            ) from error
        ray.init(ignore_reinit_error=True)
        RayPipelineExecutor(**options).run()
        return f"done with ray: {counted(tasks, 'task')}"
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

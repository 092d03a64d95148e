"""Runs `bsmeta annotate`: checks the configuration, makes the shards, and reports.

On many machines, datatrove's executors start tasks, each of which makes some shards. Nothing else
of datatrove is used: its completion markers only record the rank of a task, and would stay valid
after an input has changed.
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
from bsmeta.annotate.decisions import Decisions, looks_for_duplicates
from bsmeta.annotate.duplicates.check import report_duplicates
from bsmeta.annotate.inputs.sources import InputFile, format_count, identify_files, list_inputs
from bsmeta.annotate.links import make_index, write_linked_sets
from bsmeta.annotate.report import make_report, print_report, write_report
from bsmeta.annotate.shard import FOLDER, Counts, Dropped, ShardWriter, read_existing_rows
from bsmeta.annotate.spans import Entity
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.exit_codes import EXIT_PREEMPTED
from bsmeta.core.files import refuse_unwritable_folder
from bsmeta.core.progress import show_progress_bar
from bsmeta.core.terminal import Console

_REQUEUE = {"signal": "USR1@90"}  # 90 s before the time limit; datatrove then requeues the task


def main(config: AnnotateConfig) -> int:
    """Makes the shards that are missing or out of date, and the report; returns the exit code.

    Raises:
        ConfigurationError: If a setting is wrong, or the disk is full.
        DataError: If input files are missing or damaged; raised after the others are done.
    """
    inputs = list_inputs(config.input)
    output = _create_output(config)
    annotators = plan.make_annotators(config)
    _check_combined_keys(config, annotators)
    try:
        return _annotate_inputs(config, annotators, inputs, output)
    except pool.Stopped as stopped:
        print(f"stopped by {stopped}; the same command continues where it was", file=sys.stderr)
        return EXIT_PREEMPTED


def _create_output(config: AnnotateConfig) -> Path:
    """Creates the folder of the shards.

    Raises:
        ConfigurationError: If `output` is missing, or cannot be created or written.
    """
    if not config.output:
        raise ConfigurationError("output is not set; expected the folder of the shards")
    output = Path(config.output)
    refuse_unwritable_folder(output, "output")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"output={config.output} cannot be made: {error}") from error
    return output


def _check_combined_keys(config: AnnotateConfig, annotators: Sequence[Annotator]) -> None:
    """Refuses keys that need another key to have an effect, or conflict with another key."""
    if config.disambiguation is not None and not _needs_index(annotators):
        raise ConfigurationError(
            "disambiguation is made from links: add entity to annotators, with entity_source=links"
        )
    if config.duplicates_only and not looks_for_duplicates(config):
        raise ConfigurationError(
            "duplicates_only=true looks for nothing: set duplicates=mark, name held-out files in "
            "held_out, or both"
        )
    if config.replace and config.executor != "local":
        raise ConfigurationError(
            f"replace={config.replace}: executor={config.executor} does what is left whenever the "
            "command is repeated, and would recompute these columns each time; set executor=local, "
            "or delete the shards and leave out replace"
        )


def _needs_index(annotators: Sequence[Annotator]) -> bool:
    """Whether an annotator needs the index of the titles of all pages, to resolve links."""
    return any(isinstance(annotator, Entity) and annotator.reads_links for annotator in annotators)


@pool.stop_at_signals()
def _annotate_inputs(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    inputs: Sequence[tuple[str, str]],
    output: Path,
) -> int:
    """Runs the passes over the input that the configuration needs; returns the exit code."""
    files = _identify_inputs(inputs)
    total_bytes = sum(file.bytes for file in files)
    if looks_for_duplicates(config):
        damaged = _find_duplicates(config, files, output)
        if config.duplicates_only:
            report_duplicates(files, output, damaged, Console())
            return 0

    plan.refuse_renamed_shards(output, files)
    plan.refuse_lost_columns(config, annotators, files)
    if _needs_index(annotators):
        with _show_page_progress("reading titles", total_bytes) as advance:
            make_index(config, files, output, advance)

    plans = plan.plan_shards(config, annotators, files)
    if config.check_disk:
        plan.check_disk(output, plans)
    incomplete = [(shard.file.path, shard.file.name) for shard in plans if not shard.is_complete]
    if incomplete and config.executor != "local":
        started = submit_tasks(config, incomplete)
        print(f"{started}; the same command, when they have ended, does what is left and reports")
        return 0

    with _show_page_progress("annotating", total_bytes) as advance:
        problems = annotate_shards(config, annotators, plans, advance)
    _write_results(config, annotators, plans, output, problems)
    return 0


def _find_duplicates(config: AnnotateConfig, files: Sequence[InputFile], output: Path) -> list[str]:
    """Finds duplicates, with a progress bar; returns a message for each damaged file."""
    # Imported here because its library loads more slowly than all others together.
    from bsmeta.annotate.duplicates.search import find_duplicates

    total_bytes = sum(file.bytes for file in files)
    with _show_page_progress("signing pages", total_bytes) as advance:
        return find_duplicates(config, files, output, advance)


def _write_results(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    plans: Sequence[plan.ShardPlan],
    output: Path,
    problems: Sequence[str],
) -> None:
    """Writes the report, and the training data of a disambiguator if no input is damaged.

    Args:
        problems: A message for each damaged input file.

    Raises:
        DataError: If input files are damaged; raised after the report is written.
    """
    if config.report:
        report = make_report(plans, [annotator.name for annotator in annotators])
        print_report(report, Console())
        paths = write_report(report, config, plans, output)
        print(f"written to {', '.join(str(path) for path in paths)}")
    if problems:
        raise DataError("\n".join(problems))
    if config.disambiguation is not None:
        _write_disambiguation_data(config, Path(config.disambiguation), plans, output)


def _identify_inputs(inputs: Sequence[tuple[str, str]]) -> list[InputFile]:
    """Hashes the input files, with a progress bar."""
    files: list[InputFile] = []
    done_bytes = 0
    total_bytes = sum(os.path.getsize(path) for path, _ in inputs)
    with _show_page_progress("reading input", total_bytes) as advance:
        for file in identify_files(inputs):
            files.append(file)
            done_bytes += file.bytes
            advance(done_bytes, Counts())
    return files


def _write_disambiguation_data(
    config: AnnotateConfig, folder: Path, plans: Sequence[plan.ShardPlan], output: Path
) -> None:
    """Writes the training data of a disambiguator, from the links in the shards."""
    shards = [shard_plan.files.shard for shard_plan in plans]
    total_bytes = sum(os.path.getsize(shard) for shard in shards)
    dev_share = config.disambiguation_dev_share
    with _show_page_progress("writing sets", total_bytes) as advance:
        print(write_linked_sets(shards, output, folder, dev_share, advance))


@contextmanager
def _show_page_progress(name: str, total_bytes: int) -> Iterator[pool.Advance]:
    """Shows a progress bar over the bytes of the input, with pages per second."""
    started = time.monotonic()
    pages = 0
    with show_progress_bar(name, total_bytes) as update_bar:

        def advance(done_bytes: int, counts: Counts) -> None:
            nonlocal pages
            pages += counts.pages
            speed = pages / max(time.monotonic() - started, 1e-3)
            description = f"{format_count(pages, 'page')}, {speed:,.0f}/s" if pages else ""
            update_bar(done_bytes, description)

        yield advance


def annotate_shards(
    config: AnnotateConfig,
    annotators: Sequence[Annotator],
    plans: Sequence[plan.ShardPlan],
    advance: pool.Advance,
) -> list[str]:
    """Makes the shards that are not complete.

    Returns:
        A message for each damaged input file; its shard is left incomplete.

    Raises:
        ConfigurationError: If a shard cannot be written, or the disk is full.
        Stopped: If a signal arrives; the next call continues the shards.
    """
    problems: list[str] = []
    writers: dict[int, ShardWriter] = {}
    work = Annotation(config, annotators, plan.list_all_columns(annotators))
    try:
        with pool.stop_at_signals(), pool.Pool(config, work) as workers:
            for chunk, written in workers.map(_read_chunks(config, plans, writers)):
                if written is not None:
                    writers[chunk.shard].add(written)
                elif chunk.problem:
                    problems.append(chunk.problem)
                    writers.pop(chunk.shard).close()
                else:
                    writers.pop(chunk.shard).finish(chunk.others)
                advance(chunk.position, Counts() if written is None else written.counts)
    finally:
        for writer in writers.values():
            writer.close()
    return problems


def _read_chunks(
    config: AnnotateConfig, plans: Sequence[plan.ShardPlan], writers: dict[int, ShardWriter]
) -> Iterator[pool.Chunk]:
    """Yields the chunks that are not yet written; adds the writer of each shard to `writers`."""
    end = 0
    for number, shard_plan in enumerate(plans):
        start = end
        end = start + shard_plan.file.bytes
        if shard_plan.is_complete:
            continue

        writer = writers[number] = ShardWriter(shard_plan.files, shard_plan.header)
        if writer.is_complete:
            yield pool.Chunk(number, position=end)  # without items: the shard is only finished
            continue

        header = shard_plan.header
        template = pool.Chunk(
            number,
            names=frozenset(header.names),
            keeps_html=header.keeps_html,
            position=start,
        )
        yield from _read_shard_chunks(config, shard_plan, template, writer.pages)


def _read_shard_chunks(
    config: AnnotateConfig, shard_plan: plan.ShardPlan, template: pool.Chunk, start: int
) -> Iterator[pool.Chunk]:
    """Yields the chunks of a shard, with their existing rows and duplicates.

    Args:
        template: A chunk with the values that all chunks of the shard share.
        start: Index of the first record.
    """
    rows: Iterator[bytes | Dropped | None] = repeat(None)
    if shard_plan.existing is not None:
        rows = islice(read_existing_rows(shard_plan.files, shard_plan.existing), start, None)

    decisions = Decisions.read(config, shard_plan.files.duplicates)
    for chunk in pool.read_chunks(config, template, shard_plan.file, start, rows):
        chunk.duplicates = decisions.select(start, len(chunk.items))
        start += len(chunk.items)
        yield chunk


def run_task(
    config: AnnotateConfig,
    inputs: Sequence[tuple[str, str]],
    data: Any = None,
    rank: int = 0,
    world_size: int = 1,
) -> None:
    """Makes the shards of every `world_size`-th input file, as a step of a datatrove pipeline.

    Exits with `EXIT_PREEMPTED` if a signal stops it.

    Args:
        inputs: Paths of all input files, and names of their shards.
        data: Required by datatrove; always None, because this is the first step.

    Raises:
        DataError: If input files are damaged; raised after the others are done.
    """
    files = list(identify_files(inputs[rank::world_size]))
    annotators = plan.make_annotators(config)
    plan.refuse_lost_columns(config, annotators, files)
    try:
        plans = plan.plan_shards(config, annotators, files)
        problems = annotate_shards(config, annotators, plans, lambda *_: None)
    except pool.Stopped as stopped:
        print(f"stopped by {stopped}", file=sys.stderr)
        sys.exit(EXIT_PREEMPTED)
    if problems:
        raise DataError("\n".join(problems))


def submit_tasks(config: AnnotateConfig, inputs: Sequence[tuple[str, str]]) -> str:
    """Starts the tasks of `executor`: slurm queues them and returns, ray waits for them.

    Returns:
        A message about the started tasks.

    Raises:
        ConfigurationError: If a package or a setting is missing, or sbatch fails.
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
        "skip_completed": False,  # by datatrove's markers; our shards know what is complete
    }

    if config.executor == "ray":
        _start_ray()
        RayPipelineExecutor(**options).run()
        return f"done with ray: {format_count(tasks, 'task')}"

    if not config.slurm_partition:
        raise ConfigurationError("slurm_partition is not set; expected one that `sinfo` lists")
    default_setup = f"export PATH={os.path.dirname(sys.executable)}:$PATH"
    executor = SlurmPipelineExecutor(
        **options,
        partition=config.slurm_partition,
        time=config.slurm_time,
        qos="",
        job_name=f"annotate-{output.name}",
        env_command=config.slurm_setup or default_setup,
        sbatch_args=_REQUEUE,
        requeue_signals=("SIGUSR1",),
    )
    try:
        executor.run()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"executor=slurm: sbatch failed: {error}") from error
    return f"queued as job {executor.job_id}: {format_count(tasks, 'task')}"


def _start_ray() -> None:
    """Connects to a Ray cluster, or starts one on this machine.

    Raises:
        ConfigurationError: If Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(
            "executor=ray: ray is not installed; pip install ray, or executor=local"
        ) from error
    ray.init(ignore_reinit_error=True)

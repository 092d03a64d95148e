"""The command `annotate.py`: checks the configuration, makes the shards, and reports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
from bsmeta.annotate.sources import InputFile, counted, identified, list_inputs, output_folder
from bsmeta.config.compose import EXIT_PREEMPTED
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.progress import progress_bar


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
        from bsmeta.annotate.executors import submit
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

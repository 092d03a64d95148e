"""A checkpoint is continued by any engine, on any number of processes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import command, run_warm
from tests.faults.conftest import documents, events, list_metrics

SCRIPT = Path(__file__).with_name("engine_changes.py")
ENGINES = {"": "torch", "2": "deepspeed ZeRO-2", "3": "deepspeed ZeRO-3", "fsdp2": "FSDP2"}
SIZES = (1, 2, 4)
STEPS, SAVED_STEP = 8, 4
KEYS = (
    "trackers=[]",
    f"max_train_steps={STEPS}",
    f"save_steps={SAVED_STEP}",
    "eval_steps=0",
    "num_warmup_steps=2",
    "learning_rate=0.03",
    "log_documents=true",
    "keep_last_checkpoints=0",
    "data_config.per_device_train_batch_size=2",
)


@dataclass(frozen=True, order=True)
class Launch:
    """An engine (see `toy_task.train`) on a number of processes."""

    processes: int
    engine: str

    def __str__(self) -> str:
        return f"{self.engine or 'torch'}-{self.processes}"


EVERY_LAUNCH = [Launch(*pair) for pair in itertools.product(SIZES, ENGINES)]


def run_all(folder: Path, runs: Iterable[tuple[Launch, dict[str, Any]]]) -> None:
    """Starts the processes once for each number of them, and makes all its runs there."""
    for processes, group in itertools.groupby(
        sorted(runs, key=lambda run: run[0]), key=lambda run: run[0].processes
    ):
        keys = [{"engine": launch.engine, **keys} for launch, keys in group]
        accumulation = f"gradient_accumulation_steps={4 // processes}"
        parts = command(
            SCRIPT, *KEYS, accumulation, f"out_dir={folder}", processes=processes, launcher=True
        )
        done = run_warm(parts, RUNS=json.dumps(keys))
        assert done.returncode == 0, done.stderr[-4000:]


def continue_by_others(
    folder: Path, pairs: list[tuple[Launch, Launch]]
) -> dict[tuple[Launch, Launch], float]:
    """Trains with each first launch, and continues its checkpoint of step 4 with the second.

    Returns:
        The largest difference between a loss and the one of the uninterrupted run, for each pair.
    """
    sources = {source: folder / str(source) for source, _ in pairs}
    run_all(folder, [(source, {"out_dir": str(path)}) for source, path in sources.items()])

    targets = {pair: folder / f"{pair[0]}-to-{pair[1]}" for pair in pairs}
    for (source, _), path in targets.items():
        name = f"checkpoint-{SAVED_STEP}step"
        shutil.copytree(sources[source] / name, path / name)
    latest = {"resume_from_checkpoint_dir": "latest"}
    run_all(folder, [(pair[1], {"out_dir": str(path), **latest}) for pair, path in targets.items()])

    differences = {}
    for (source, target), path in targets.items():
        whole = sources[source]
        expected, continued = list_metrics(whole), list_metrics(path)
        assert sorted(continued) == [*range(SAVED_STEP + 1, STEPS + 1)]
        assert documents(path) == {step: documents(whole)[step] for step in continued}
        assert [event["engines"] for event in events(path, "resume")] == [
            [ENGINES[source.engine], ENGINES[target.engine]]
        ]
        differences[source, target] = max(
            abs(loss - expected[step][0]) for step, (loss, _) in continued.items()
        )
    return differences


@pytest.mark.long
def test_a_checkpoint_is_continued_by_another_engine_on_more_and_fewer_processes(
    tmp_path: Path,
) -> None:
    pairs = [
        (Launch(2, ""), Launch(1, "3")),
        (Launch(2, "2"), Launch(1, "")),
        (Launch(2, "3"), Launch(2, "fsdp2")),
        (Launch(2, "fsdp2"), Launch(2, "2")),
        (Launch(1, "2"), Launch(2, "3")),
        (Launch(1, "fsdp2"), Launch(2, "")),
    ]
    assert max(continue_by_others(tmp_path, pairs).values()) < 1e-6


@pytest.mark.slow
def test_every_engine_continues_a_checkpoint_of_every_engine(tmp_path: Path) -> None:
    """With the same engine and number of processes, losses are equal to the last digit."""
    pairs = [*itertools.product(EVERY_LAUNCH, EVERY_LAUNCH)]
    differences = continue_by_others(tmp_path, pairs)
    print(format_table(differences))
    assert max(differences.values()) < 1e-6
    assert {differences[launch, launch] for launch in EVERY_LAUNCH} == {0.0}


def format_table(differences: dict[tuple[Launch, Launch], float]) -> str:
    """Formats a row for each first launch, a column for each second."""
    lines = ["| saved by | " + " | ".join(map(str, EVERY_LAUNCH)) + " |"]
    lines.append("|---|" + "---|" * len(EVERY_LAUNCH))
    for source in EVERY_LAUNCH:
        values = (f"{differences[source, target]:.0e}" for target in EVERY_LAUNCH)
        lines.append(f"| {source} | " + " | ".join(values) + " |")
    return "\n".join(lines)

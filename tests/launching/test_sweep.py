"""Sweeps: what is run, what a second start leaves alone, and the table."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching.helpers import EXPERIMENTS, SMALL, end, environment, list_pasted
from tests.waiting import STUCK_S, wait_until

SWEEP = [sys.executable, str(EXPERIMENTS / "hpsearch" / "sweep.py")]
RATES = "learning_rate=1e-3,4e-3"
LISTS = "data_config.metadata_config.metadata_list=[url],[title,url]"
NAMES = {
    ("0.001", "[url]"): "learning_rate-0.001_metadata_list-url-0818e1",
    ("0.001", "[title,url]"): "learning_rate-0.001_metadata_list-title-url-23b256",
    ("0.004", "[url]"): "learning_rate-0.004_metadata_list-url-d95901",
    ("0.004", "[title,url]"): "learning_rate-0.004_metadata_list-title-url-891a87",
}


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SWEEP, "sweep", "--config", "demo", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def finished(folder: Path, values: tuple[str, str], loss: float, bits: float) -> None:
    """Writes a run folder as a finished run leaves it."""
    run = folder / "sweep" / NAMES[values]
    run.mkdir(parents=True)
    events = [
        {"event": "step", "step": 1, "loss": loss + 1},
        {"event": "step", "step": 2, "loss": loss},
        {"event": "eval", "step": 1, "bits_per_byte_with": 9.0, "bits_per_byte_without": 9.0},
        {"event": "eval", "step": 2, "bits_per_byte_with": bits, "bits_per_byte_without": 3.5},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "status.json").write_text('{"state": "done", "step": 2, "exit_code": 0}\n')


def test_a_sweep_starts_a_run_for_each_combination(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--dry-run", RATES, "seed=7", LISTS)
    assert done.returncode == 0, done.stderr
    expected = [
        [
            "BSMETA_RESUME=",
            "BSMETA_CONFIG=demo",
            f"{EXPERIMENTS}/train.sh",
            "seed=7",
            f"learning_rate={rate}",
            f"data_config.metadata_config.metadata_list={names}",
            f"out_dir='{tmp_path}/sweep/{name}'",
            "resume_from_checkpoint_dir=latest",
        ]
        for (rate, names), name in NAMES.items()
    ]
    assert [shlex.split(line) for line in done.stdout.splitlines()] == expected
    assert not (tmp_path / "sweep").exists()


def test_the_printed_commands_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my sweeps; & more"
    folder.mkdir()
    separator = 'data_config.metadata_config.metadata_sep=" ; $x \'s"'
    done = sweep(folder, "--dry-run", "seed=7", RATES, separator)
    assert done.returncode == 0, done.stderr
    line, _ = done.stdout.splitlines()
    started = list_pasted(line, tmp_path)
    assert {"seed=7", "learning_rate=0.001", separator} <= {*started}
    assert [argument for argument in started if argument.startswith("out_dir=")] == [
        next(argument for argument in shlex.split(line) if argument.startswith("out_dir="))
    ]


@pytest.mark.long
def test_the_table_is_sorted_and_has_unfinished_runs_last(tmp_path: Path) -> None:
    finished(tmp_path, ("0.001", "[url]"), loss=3.0, bits=2.5)
    finished(tmp_path, ("0.004", "[url]"), loss=4.0, bits=2.25)
    finished(tmp_path, ("0.004", "[title,url]"), loss=2.0, bits=2.75)
    done = sweep(tmp_path, "--report", RATES, LISTS)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sweep" / "sweep.md").read_text().splitlines()[2:] == [
        "| learning_rate | metadata_list | state | step | with | without | loss |",
        "|---|---|---|---|---|---|---|",
        "| 0.004 | [url] | done | 2 | 2.2500 | 3.5000 | 4.5000 |",
        "| 0.001 | [url] | done | 2 | 2.5000 | 3.5000 | 3.5000 |",
        "| 0.004 | [title,url] | done | 2 | 2.7500 | 3.5000 | 2.5000 |",
        "| 0.001 | [title,url] | not started | 0 | – | – | – |",
    ]
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.index("2.2500") < done.stdout.index("2.5000") < done.stdout.index("2.7500")
    # the folder is that of this sweep now
    other = sweep(tmp_path, "--report", RATES, LISTS, "seed=7")
    assert other.returncode == 2
    assert "holds a sweep with overrides [], found ['seed=7']" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learning_rate=1e-3"], "nothing is swept"),
        (["learning_rat=1,2"], "did you mean learning_rate"),
        (["seed=1,two"], "seed in the command line: found two"),
        ([RATES, "learning_rate=1"], "learning_rate: given twice; expected once"),
        ([RATES, "out_dir=here"], "out_dir=here: the sweep sets out_dir itself"),
        (["seed=interval(1,2)"], "does not support sweep type"),
        (["seed=1,[2"], "seed=1,[2: mismatched input"),
    ],
)
def test_a_wrong_sweep_is_refused_before_its_first_run(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = sweep(tmp_path, *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_a_stopped_sweep_continues(tmp_path: Path) -> None:
    """A sweep stopped in its second run keeps the first, resumes the second, starts the third."""
    overrides = [*SMALL, "max_train_steps=40", "learning_rate=1e-3,2e-3,4e-3"]
    command = [*SWEEP, "sweep", "--config", "demo", *overrides]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    runs = [
        tmp_path / "sweep" / f"learning_rate-{name}"
        for name in ("0.001-aadcab", "0.002-9f0701", "0.004-75d750")
    ]
    second = runs[1] / "metrics.jsonl"
    wait_until(lambda: second.exists() and '"step": 3,' in second.read_text(), process)
    process.send_signal(signal.SIGTERM)
    code, output = end(process)
    assert code == 75, output
    states = [json.loads((run / "status.json").read_text())["state"] for run in runs[:2]]
    assert states == ["done", "preempted"]
    assert not runs[2].exists()

    first = os.stat(runs[0] / "metrics.jsonl")
    code, output = end(
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    assert code == 0, output
    assert "[1/3] learning_rate=0.001: done before" in output
    assert os.stat(runs[0] / "metrics.jsonl").st_mtime_ns == first.st_mtime_ns
    events = [json.loads(line) for line in second.read_text().splitlines()]
    assert "resume" in {event["event"] for event in events}
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 41))
    assert (tmp_path / "sweep" / "sweep.md").read_text().count("| done | 40 |") == 3

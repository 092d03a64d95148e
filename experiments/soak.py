#!/usr/bin/env python
"""Soak test: a run that is killed repeatedly must give the same result as an undisturbed run.

    python experiments/soak.py steps=200 kills=20 launch=cpu_zero2.yaml folder=/tmp/soak

The demo is trained once undisturbed, and once with `kills` SIGKILLs to all processes, resumed after
each: half of them at a random moment, possibly during startup, the other half during a save. Two
checkpoints are kept. Prints one JSON line: whether final weights, losses and learning rates are
bitwise equal, whether each step had the same documents, how many kills left a save unfinished, and
the seconds that both runs took. Exit code 0 if all are equal and every kill hit the run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

EXIT_USER_ERROR = 2
REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULTS = {"steps": "200", "kills": "20", "launch": "cpu.yaml", "folder": "runs/soak", "seed": "0"}


def job(out_dir: Path, steps: int, launch: str) -> list[str]:
    """The command line of the run, which resumes from a checkpoint if there is one."""
    return [
        *(sys.executable, "-P", "-m", "accelerate.commands.launch", "--config_file"),
        str(REPOSITORY / "experiments" / "accelerate" / launch),
        *(str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo"),
        f"out_dir={out_dir}",
        f"max_train_steps={steps}",
        "num_warmup_steps=10",
        "save_steps=5",
        "keep_last_checkpoints=2",
        "eval_steps=0",
        "trackers=[]",
        "log_documents=true",
        "data_config.metadata_config.max_seq_len=64",
        "resume_from_checkpoint_dir=latest",
    ]


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the run in a new session."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def workers(pid: int) -> list[int]:
    """All descendants of a launcher process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found, open_ends = [], [pid]
    while open_ends:
        parent = open_ends.pop()
        below = [child for child, of in pairs if of == parent]
        found += below
        open_ends += below
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def logged(out_dir: Path) -> int:
    """The last step that the run logged."""
    steps = [event["step"] for event in events(out_dir) if event["event"] == "step"]
    return max(steps, default=0)


def events(out_dir: Path) -> list[dict[str, Any]]:
    """The events in the complete lines of metrics.jsonl."""
    file = out_dir / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


@dataclass
class Hits:
    """Counts of the SIGKILLs that hit the run.

    Attributes:
        at_random: SIGKILLs at a random moment.
        in_saves: SIGKILLs while a checkpoint was being written.
        unfinished: SIGKILLs of either kind that left an unfinished checkpoint.
    """

    at_random: int = 0
    in_saves: int = 0
    unfinished: int = 0

    @property
    def all(self) -> int:
        return self.at_random + self.in_saves


def unfinished(out_dir: Path) -> set[str]:
    """The checkpoints that are being written, or were being written when the run was killed."""
    return {folder.name for folder in out_dir.glob("tmp-checkpoint-*")}


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait until a condition holds; False if the run ends before."""
    while not reached():
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def kill(
    process: subprocess.Popen[bytes], out_dir: Path, aim: int, in_save: bool, rng: random.Random
) -> bool:
    """Kill the run in the first save after step `aim`, or at a random moment after that step.

    One in five of the random moments is during the startup of the run.

    Returns:
        Whether the run reached that moment and was killed.
    """
    early = time.monotonic() + rng.uniform(1, 8) if rng.random() < 0.2 else float("inf")
    if in_save:
        early = float("inf")
        left = unfinished(out_dir)  # left by the previous kill, until this run removes it

        def reached() -> bool:
            writing = unfinished(out_dir)
            left.intersection_update(writing)
            return logged(out_dir) >= aim and bool(writing - left)
    else:

        def reached() -> bool:
            return logged(out_dir) >= aim or time.monotonic() > early

    if not wait_for(reached, process):
        return False
    time.sleep(rng.uniform(0, 0.1))
    # It may be so early that no ranks have started yet.
    if not wait_for(lambda: bool(workers(process.pid)), process):
        return False
    send([process.pid, *workers(process.pid)], signal.SIGKILL)
    return True


def gone(pids: list[int]) -> bool:
    """Whether all of the processes have ended or are zombies."""
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        try:
            if "State:\tZ" not in status.read_text():
                return False
        except (FileNotFoundError, ProcessLookupError):
            continue
    return True


def soak(out_dir: Path, steps: int, kills: int, launch: str, rng: random.Random) -> Hits:
    """Run to the end with `kills` SIGKILLs, each aimed within the remaining steps of the run."""
    hits = Hits()
    while True:
        process = start(job(out_dir, steps, launch), out_dir.with_suffix(".log"))
        left = kills - hits.all
        reached = logged(out_dir)
        aim = reached + rng.randint(1, max(1, 2 * (steps - reached) // (left + 1) - 1))
        in_save = hits.all % 2 == 1
        hit = left > 0 and kill(process, out_dir, aim, in_save, rng)
        pids = workers(process.pid)
        code = process.wait()
        while not gone(pids):
            time.sleep(0.05)
        if hit:
            hits.in_saves += in_save
            hits.at_random += not in_save
            hits.unfinished += bool(unfinished(out_dir))
        elif code != 0:
            sys.exit(f"the run failed by itself; see {out_dir.with_suffix('.log')}")
        if not hit and json.loads((out_dir / "status.json").read_text())["state"] == "done":
            return hits


def documents(out_dir: Path) -> dict[int, list[str]]:
    """The documents of each step over all ranks."""
    found: dict[int, list[str]] = {}
    for file in out_dir.glob("documents-rank*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            found.setdefault(line["step"], []).extend(line["documents"])
    return {step: sorted(names) for step, names in found.items()}


def losses(out_dir: Path) -> list[tuple[int, float, float]]:
    """Step, loss and learning rate of each step event."""
    steps = [event for event in events(out_dir) if event["event"] == "step"]
    return [(event["step"], event["loss"], event["learning_rate"]) for event in steps]


def same_weights(one: Path, other: Path) -> bool:
    """Whether the final models are bitwise equal."""
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def main() -> int:
    """Execute both runs, compare them, and print the metrics."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    unknown = [name for name, equals, _ in pairs if name not in DEFAULTS or not equals]
    if unknown:
        print(
            f"unknown: {', '.join(unknown)}; expected some of "
            f"{', '.join(f'{name}={value}' for name, value in DEFAULTS.items())}",
            file=sys.stderr,
        )
        return EXIT_USER_ERROR
    values = {**DEFAULTS, **{name: value for name, _, value in pairs}}
    folder = Path(values["folder"]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    steps, kills, launch = int(values["steps"]), int(values["kills"]), values["launch"]
    whole, killed = folder / "undisturbed", folder / "disturbed"
    began = time.monotonic()
    if start(job(whole, steps, launch), whole.with_suffix(".log")).wait() != 0:
        sys.exit(f"the undisturbed run failed; see {whole.with_suffix('.log')}")
    undisturbed_s = time.monotonic() - began
    hits = soak(killed, steps, kills, launch, random.Random(int(values["seed"])))
    names = [name for step in documents(whole).values() for name in step]
    checks = {
        "same_weights": same_weights(whole, killed),
        "same_losses": losses(whole) == losses(killed),
        "same_documents": documents(whole) == documents(killed),
    }
    figures = {"steps": steps, "kills": asdict(hits), "documents": len(names), **checks}
    figures["undisturbed_s"] = round(undisturbed_s, 1)
    figures["disturbed_s"] = round(time.monotonic() - began - undisturbed_s, 1)
    print(json.dumps(figures))
    return 0 if all(checks.values()) and hits.all >= kills else 1


if __name__ == "__main__":
    sys.exit(main())

"""Half an hour on one GPU: asks the device what reading and arithmetic cannot decide.

    python experiments/benchmarks/gpu_day.py out=/tmp/gpu_day
    python experiments/benchmarks/gpu_day.py dry_run=true

The items of `gpu_plan.py` run in order of value. Each result is a line of JSON in
`results.jsonl` of `out` as soon as it is known, and the outputs of its commands are in
`outputs/`; a later call with the same `out` runs only the items that have no result yet. Keys:

    out=runs/gpu_day   folder of the results
    minutes=28         starts no item that would end later than this
    only=R1,R4         these items alone, again if they have a result
    before=FOLDER      a checkout of an older version, to measure beside this one
    dry_run=true       needs no GPU: prints each command, and checks it: runs by check_only, scripts
                       by compiling them
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from common import own_arguments
from gpu_plan import PATIENCE, Command, Item, Plan
from gpu_values import Finished

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"out": "runs/gpu_day", "minutes": "28", "only": "", "before": "", "dry_run": "false"}
TAIL = 3000
"""Characters of an output that a result repeats if its item failed."""
POLL_S = 0.02
MACHINE = """
import json, accelerate, torch, transformers
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
versions = {each.__name__: each.__version__ for each in (torch, transformers, accelerate)}
print(json.dumps({"device": device, **versions}))
"""
CHECKPOINT = "resume_from_checkpoint_dir=/"
"""The key of a command that resumes from a checkpoint of the command before it."""


class ItemError(Exception):
    """A command of an item ended otherwise than expected."""


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """The last result of each item; the line that an interruption cut short does not count."""
    results: dict[str, dict[str, Any]] = {}
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        results[result["item"]] = result
    return results


def append_result(file: Path, result: dict[str, Any]) -> None:
    """Writes a result so that it survives whatever happens next."""
    torn = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a") as lines:
        lines.write("\n" * torn + json.dumps(result) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def run_command(command: Command, limit_s: float, output: Path) -> Finished:
    """Runs a command to its end, or to the signal that it is to get.

    Raises:
        ItemError: If it takes longer than the limit.
    """
    root = command.root or ROOT
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **command.environment}
    began = time.perf_counter()
    with output.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, *command.arguments],
            cwd=root,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, command, began + limit_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    ended = time.perf_counter() - began
    return Finished(process.returncode, ended, time.time(), output.read_text(), command.out_dir)


def _wait(process: subprocess.Popen[bytes], command: Command, deadline: float) -> None:
    is_due = command.signal_at is not None
    while process.poll() is None:
        if time.perf_counter() > deadline:
            raise ItemError("it took too long")
        if is_due and command.signal_at is not None and command.out_dir is not None:
            step, number = command.signal_at
            if f'"step": {step},' in _read(command.out_dir / "metrics.jsonl"):
                os.killpg(process.pid, number)
                is_due = False
        time.sleep(POLL_S)


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def run_item(item: Item, outputs: Path) -> dict[str, Any]:
    """Runs the commands of an item; returns its result, also if it fails."""
    began = time.perf_counter()
    finished: list[Finished] = []
    result: dict[str, Any] = {"item": item.name, "prediction": item.prediction}
    try:
        for number, command in enumerate(item.commands):
            output = outputs / f"{item.name}-{number + 1}.txt"
            done = run_command(command, item.seconds * PATIENCE, output)
            finished.append(done)
            expected = item.exit_codes[number] if item.exit_codes else 0
            if expected is not None and done.exit_code != expected:
                raise ItemError(f"exit code {done.exit_code} instead of {expected}")
        result["values"] = item.read(finished)
    except Exception as error:  # whatever an output lacks: the next item is worth as much
        result["error"] = f"{type(error).__name__}: {error}"
        files = sorted(outputs.glob(f"{item.name}-*.txt"), key=lambda file: file.stat().st_mtime)
        result["output_tail"] = _read(files[-1])[-TAIL:] if files else ""
    commands = [shlex.join(["python", *command.arguments]) for command in item.commands]
    seconds = round(time.perf_counter() - began, 1)
    return {**result, "seconds": seconds, "commands": commands, "machine": describe_machine()}


@cache
def describe_machine() -> dict[str, Any]:
    """The device, and the versions that decide what runs on it.

    By a process of its own: this one would keep memory of the device for as long as it runs.
    """
    command = [sys.executable, "-P", "-c", MACHINE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def choose_items(plan: Plan, done: Sequence[str], only: Sequence[str]) -> list[Item]:
    """The items to run: those of `only`, or all that have no result."""
    items = plan.items()
    unknown = set(only) - {item.name for item in items}
    if unknown:
        names = ", ".join(item.name for item in items)
        sys.exit(f"only={','.join(sorted(unknown))}: expected some of {names}")
    return [item for item in items if item.name in only or (not only and item.name not in done)]


def run_plan(keys: dict[str, str]) -> None:
    """Runs the items that have no result, until the time is over."""
    out, before = Path(keys["out"]).absolute(), keys["before"]
    outputs = out / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    only = [name for name in keys["only"].split(",") if name]
    end = time.monotonic() + 60 * float(keys["minutes"])
    tried: set[str] = set()
    while True:
        done = read_results(out / "results.jsonl")
        values = {name: result.get("values", {}) for name, result in done.items()}
        with tempfile.TemporaryDirectory(prefix="gpu_day-") as work:
            # A later item may depend on earlier results, so the plan is made again for each.
            plan = Plan(Path(work), values, Path(before).absolute() if before else None)
            left = [item for item in choose_items(plan, list(done), only) if item.name not in tried]
            if not left:
                return
            item = left[0]
            tried.add(item.name)
            if time.monotonic() + item.seconds > end:
                print(f"{item.name}: left for another call", flush=True)
                continue
            result = run_item(item, outputs)
        append_result(out / "results.jsonl", result)
        print(json.dumps({**result, "commands": len(result["commands"])}), flush=True)


def check_plan() -> int:
    """Prints and checks every command, without running it; returns the number of mistakes."""
    prepare_checks()
    problems: dict[tuple[str, ...], str | None] = {}
    with tempfile.TemporaryDirectory(prefix="gpu_day-") as work:
        items = Plan(Path(work), {}, ROOT).items()
        for item in items:
            for command in item.commands:
                line = shlex.join(["python", *command.arguments])
                # Runs that differ in their folders only are checked once.
                distinct = tuple(key for key in command.arguments if "out_dir=" not in key)
                if distinct not in problems:
                    problems[distinct] = check_command(command)
                print(f"{item.name}: {line}\n  {problems[distinct] or 'ok'}", flush=True)
    total = sum(item.seconds for item in items) / 60
    print(f"{len(items)} items, about {total:.0f} minutes")
    return sum(problem is not None for problem in problems.values())


def prepare_checks() -> None:
    """Imports and composes for the checks, which run in forks of this process."""
    import bsmeta.tasks.causal_lm.checks
    import bsmeta.train  # noqa: F401
    from bsmeta.config.causal_lm import CausalLMConfig
    from bsmeta.config.composing.compose import compose_command_line

    compose_command_line(CausalLMConfig, "demo", ["seed=1"])


def check_command(command: Command) -> str | None:
    """Composes and checks the configuration of a run, or compiles a script; returns the problem."""
    script = ROOT / command.arguments[0]
    if script.suffix == ".py":
        compile(script.read_text(), str(script), "exec")
    if command.training is None:
        keys = command.arguments[1:]
        return _check_run(script, [*keys, "check_only=true"]) if script.name == "loop.py" else None
    # Without a launch file, too: with one, GPUs are expected on the machine that runs it.
    file = ROOT / "experiments" / "accelerate" / (command.launch_file or "ddp.yaml")
    checked = [key for key in command.training if not key.startswith(CHECKPOINT)]
    return _check_run(
        ROOT / "bsmeta" / "train.py",
        [*checked, "check_only=true", f"accelerate_config_file={file}"],
    )


def _check_run(script: Path, arguments: list[str]) -> str | None:
    """Runs a script in a fork of this process, which has imported what takes the time."""
    with tempfile.TemporaryFile("w+") as output:
        check = multiprocessing.get_context("fork").Process(
            target=_run_script, args=(script, arguments, output.fileno())
        )
        check.start()
        check.join()
        output.seek(0)
        return output.read() or "failed" if check.exitcode else None


def _run_script(script: Path, arguments: list[str], output: int) -> None:
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    """Runs or checks the plan."""
    keys = own_arguments(KEYS)
    if len(sys.argv) > 1:
        sys.exit(f"{sys.argv[1]}: expected keys among {', '.join(KEYS)}")
    os.chdir(ROOT)
    if keys["dry_run"] == "true":
        sys.exit(1 if check_plan() else 0)
    # An interruption ends the command that runs, whose item then has no result yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run_plan(keys)


if __name__ == "__main__":
    main()

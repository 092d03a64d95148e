"""What the items of the day on a GPU found out, read from outputs and run folders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of an estimate's output, with single spaces
ESTIMATED = {
    "step_s": r"a step ([\d.]+) s,",
    "tokens_per_s": r"tokens/s ([\d,]+) on all devices",
    "mfu_percent": r"MFU ([\d.]+)%",
    "measured_gib": r"memory ([\d.]+) GiB at most",
    "counted_gib": r"this launch takes ([\d.]+) GiB with",
}


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        ended_at: The time of its end, in seconds since the epoch.
    """

    exit_code: int
    seconds: float
    ended_at: float
    output: str
    out_dir: Path | None


def read_events(finished: Finished, kind: str) -> list[dict[str, Any]]:
    """The events of a kind in `metrics.jsonl`."""
    assert finished.out_dir is not None
    file = finished.out_dir / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def read_json(commands: Sequence[Finished]) -> dict[str, Any]:
    """The JSON object at the end of the output."""
    output = commands[0].output
    start = 0 if output.startswith("{") else output.rfind("\n{") + 1
    found, _ = json.JSONDecoder().raw_decode(output[start:])
    return dict(found)


def read_run(commands: Sequence[Finished]) -> dict[str, Any]:
    """Loss and memory of the last step, and seconds from the last save to the exit."""
    step = read_events(commands[0], "step")[-1]
    assert commands[0].out_dir is not None
    saved = max(file.stat().st_mtime for file in commands[0].out_dir.glob("checkpoint-*/**/*"))
    return {
        "step": step["step"],
        "loss": step["loss"],
        "memory_gb": step["memory_gb"],
        "save_to_exit_s": round(commands[0].ended_at - saved, 2),
    }


def read_losses(finished: Finished) -> dict[int, float]:
    """The loss of each step."""
    return {event["step"]: event["loss"] for event in read_events(finished, "step")}


def compare_runs(commands: Sequence[Finished]) -> dict[str, Any]:
    """The losses of each further run beside those of the first, in the steps that both have."""
    first = read_losses(commands[0])
    compared = []
    for other in map(read_losses, commands[1:]):
        steps = sorted(first.keys() & other.keys())
        differ = [step for step in steps if first[step] != other[step]]
        compared.append(
            {
                "steps": len(steps),
                "first_difference": differ[0] if differ else None,
                "largest_difference": max(
                    (abs(first[step] - other[step]) for step in steps), default=None
                ),
            }
        )
    return {"runs": compared}


def read_estimate(commands: Sequence[Finished]) -> dict[str, Any]:
    """What an estimate measured, and whether memory ran out."""
    output = " ".join(commands[0].output.split())
    values: dict[str, Any] = {"out_of_memory": "out of memory" in output}
    for name, pattern in ESTIMATED.items():
        match = re.search(pattern, output)
        values[name] = None if match is None else float(match[1].replace(",", ""))
    return values


def fastest(done: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The two arms with the most tokens per second; before any was measured, the first two."""
    speeds = {name: done.get(name, {}).get("tokens_per_s") or 0.0 for name in names}
    return sorted(names, key=lambda name: -speeds[name])[:2]


def read_profile(commands: Sequence[Finished]) -> dict[str, Any]:
    """Milliseconds on the device by kernel, the 15 longest, over the profiled steps."""
    assert commands[0].out_dir is not None
    [trace] = (commands[0].out_dir / "profile").glob("*.json")
    totals: dict[str, float] = {}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            name = event["name"][:100]
            totals[name] = totals.get(name, 0.0) + event["dur"] / 1e3
    longest = sorted(totals.items(), key=lambda pair: -pair[1])[:15]
    return {
        "device_ms": round(sum(totals.values()), 2),
        "kernels_ms": {name: round(total, 2) for name, total in longest},
    }


def compare_waits(commands: Sequence[Finished]) -> dict[str, Any]:
    """Where the host waits for the device, and the places that wait again in later steps."""
    short, long = (_read_waits(command.output) for command in commands)
    growing = {place: count for place, count in long.items() if count > short.get(place, 0)}
    return {"waits": short, "growing": growing}


def _read_waits(output: str) -> dict[str, int]:
    lines = [line for line in output.splitlines() if line.startswith('{"waits": ')]
    return dict(json.loads(lines[-1])["waits"])


def count_recompilations(commands: Sequence[Finished]) -> dict[str, Any]:
    """Recompilations that torch reports, and the loss of the last step."""
    return {
        "recompilations": commands[0].output.count("Recompiling function"),
        "loss": read_events(commands[0], "step")[-1]["loss"],
    }


def read_saves(commands: Sequence[Finished]) -> dict[str, Any]:
    """Seconds of each save, and those that the loop waited for it."""
    return {
        command.out_dir.name: [
            {name: event[name] for name in ("seconds", "loop_seconds")}
            for event in read_events(command, "save")
        ]
        for command in commands
        if command.out_dir is not None
    }


def read_evaluations(commands: Sequence[Finished]) -> dict[str, Any]:
    """The events of the evaluations, without those of steps and saves."""
    return {
        command.out_dir.name: {
            "seconds": round(command.seconds, 1),
            "evaluations": read_events(command, "eval"),
        }
        for command in commands
        if command.out_dir is not None
    }


def read_interrupted(commands: Sequence[Finished]) -> dict[str, Any]:
    """How the parts of the run ended, and how many steps it logged."""
    steps = [event["step"] for event in read_events(commands[-1], "step")]
    return {
        "exit_codes": [command.exit_code for command in commands],
        "last_step": steps[-1],
        "distinct_steps": len(set(steps)),
    }

"""Reads the events and the starts that a run has logged in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bsmeta.core.parsing import parse_json

METRICS = "metrics.jsonl"
"""A line for each event of the run: steps, evaluations, saves, …"""
ENVIRONMENT = "environment.jsonl"
"""A line for each start of the run, with its machine and versions, and one for each end."""


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """Reads the events of a `metrics.jsonl`; skips lines that a killed process has truncated."""
    events = []
    with metrics.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            event = _parse_event(line)
            if event is not None:
                events.append(event)
    return events


def _parse_event(line: str) -> dict[str, Any] | None:
    """Parses a line of a log; None if it is truncated or not a JSON object."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def read_last_events(metrics: Path) -> dict[str, dict[str, Any]]:
    """Returns the last `step` event and the last `eval` event of a run; skips truncated lines."""
    last_lines: dict[str, str] = {}
    if metrics.is_file():
        with metrics.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                for kind in ("step", "eval"):
                    if line.startswith(f'{{"event": "{kind}"') and line.endswith("}\n"):
                        last_lines[kind] = line

    events = {kind: _parse_event(line) for kind, line in last_lines.items()}
    return {kind: event for kind, event in events.items() if event is not None}


def read_steps_and_evaluations(metrics: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Reads the steps with a loss, and the evaluations, of a `metrics.jsonl`."""
    events = read_events(metrics)
    steps = [event for event in events if event.get("event") == "step" and "loss" in event]
    evaluations = [event for event in events if event.get("event") == "eval"]
    return steps, evaluations


def read_environments(out_dir: Path) -> list[dict[str, Any]]:
    """Reads a record for each start of a run, oldest first.

    A record has the values of `describe_environment`, and `step`, `started` and `ended` (None if
    the process died). The list is empty for a run older than `ENVIRONMENT`.
    """
    starts: list[dict[str, Any]] = []
    if not (out_dir / ENVIRONMENT).exists():
        return starts

    for event in read_events(out_dir / ENVIRONMENT):
        values = {name: value for name, value in event.items() if name != "event"}
        if event.get("event") == "start":
            starts.append({**values, "ended": None})
        elif event.get("event") == "end" and starts:
            starts[-1]["ended"] = values.get("ended")
    return starts

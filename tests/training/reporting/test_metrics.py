"""Counters of a run, and the events in its log and at its trackers, none of which can end it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bsmeta.training.reporting.metrics import Progress, Tracker
from bsmeta.training.run_folder.folder import RunFolder


class Broken:
    """A tracker whose server is gone."""

    calls = 0

    def log(self, values: dict[str, Any], step: int | None) -> None:
        self.calls += 1
        raise ConnectionError("gone")

    def finish(self) -> None:
        self.calls += 1


class Recording:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, Any]]] = []

    def log(self, values: dict[str, Any], step: int | None) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        pass


def test_trackers_receive_finite_numbers_only(tmp_path: Path) -> None:
    kept = Recording()
    tracker = Tracker(RunFolder(tmp_path), is_main=True, step=0, total_steps=2, external=[kept])
    tracker.record_event("eval", 2, bits={"url": 1.5}, mfu=math.nan, split="validation")
    tracker.record_event("save", 2, seconds=1.0)
    assert kept.logged == [(2, {"eval/bits/url": 1.5})]


def test_a_tracker_that_fails_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    run = RunFolder(tmp_path)
    with Tracker(run, is_main=True, step=0, total_steps=2, external=[broken]) as tracker:
        tracker.record_event("eval", 1, loss=1.0)
        tracker.record_event("eval", 2, loss=0.5)
    assert broken.calls == 1
    assert "Broken gets no more metrics (ConnectionError: gone)" in caplog.text
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry["loss"] for entry in logged] == [1.0, 0.5]


def test_an_undefined_value_is_null_in_the_log(tmp_path: Path) -> None:
    """JSON has neither NaN nor infinity."""
    with Tracker(RunFolder(tmp_path), is_main=True, step=0, total_steps=2) as tracker:
        tracker.record_event("eval", 1, loss=float("nan"), parts={"a": float("inf"), "b": [1.5]})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"event": "eval", "step": 1, "loss": null, "parts": {"a": null, "b": [1.5]}}\n'
    )


def test_the_state_of_the_progress_is_a_copy_and_loads_into_another_run() -> None:
    progress = Progress(step=3, tokens=40, targets=30)
    progress.add_counts({"documents": 2.0})
    state = progress.state_dict()
    assert state == {
        "step": 3,
        "tokens": 40,
        "targets": 30,
        "counts": {"documents": 2.0},
        "unlogged": {"documents": 2.0},
        "totals": {"documents": 2.0},
    }
    progress.add_counts({"documents": 1.0})
    progress.step = 4
    progress.load_state_dict(state)
    assert progress == Progress(3, 40, 30, {"documents": 2.0}, {"documents": 2.0}, state["totals"])

    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.tokens`"
    ):
        progress.load_state_dict(state | {"tokens": "40"})
    assert progress.tokens == 40

"""Where the metrics of a run are logged: its file, trackers, and the screen.

A resumed run stays one run at its trackers (tensorboard, wandb, trackio): its name there is
generated once and stored in the run folder (`trackers.json`), the same wandb or trackio run is
continued, and tensorboard drops what was logged after the step that the run resumes from. No
secrets are passed: each library reads its own key (`WANDB_API_KEY`, `HF_TOKEN`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import secrets
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich import progress as rich_progress
from rich.console import Console

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, Problem, refuse
from bsmeta.core.files import redact, redact_values, write_json
from bsmeta.core.progress import PLAIN_INTERVAL_S
from bsmeta.training.run_folder import METRICS, RunFolder

RUNS = "trackers.json"
_METRICS_SHOWN = 4

logger = logging.getLogger(__name__)


class External(Protocol):
    """A tracker that Accelerate creates for a name in `trackers` (tensorboard, wandb, …)."""

    def log(self, values: dict[str, Any], step: int | None) -> None: ...

    def finish(self) -> None: ...


class Tracker:
    """Records events from the trainer; does nothing on ranks other than 0."""

    def __init__(
        self,
        run: RunFolder,
        *,
        main: bool,
        step: int,
        total_steps: int,
        external: Sequence[External] = (),
    ) -> None:
        self._external = list(external) if main else []
        self._metrics = run.open_log(METRICS) if main else None
        self._screen = Screen(total_steps, step) if main else None

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Records an event: a line of `metrics.jsonl`, and its numbers for the trackers."""
        if self._metrics is None or self._screen is None:
            return
        self._metrics.write({"event": kind, "step": step, **values})
        if self._external and kind in ("step", "eval"):
            prefix = "" if kind == "step" else "eval/"
            numbers = {
                prefix + name: value
                for name, value in _leaves(values)
                # what is not known, such as the utilization of a CPU, is NaN
                if isinstance(value, (int, float)) and not math.isnan(value)
            }
            self._call_each(lambda tracker: tracker.log(numbers, step))
        self._screen.show(kind, step, values)

    def close(self) -> None:
        if self._metrics is not None and self._screen is not None:
            self._screen.close()
            self._metrics.close()
        self._call_each(lambda tracker: tracker.finish())

    def _call_each(self, action: Callable[[External], None]) -> None:
        """Calls `action` on each tracker, and drops those that fail (full disk, lost server)."""
        for tracker in list(self._external):
            try:
                action(tracker)
            except Exception as error:
                self._external.remove(tracker)
                logger.warning(
                    "%s gets no more metrics (%s: %s); all of them are in %s",
                    type(tracker).__name__, type(error).__name__, redact(str(error)), METRICS,
                )  # fmt: skip

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Screen:
    """A progress bar on a terminal; elsewhere, plain lines: every ten seconds and per event."""

    def __init__(self, total: int, step: int) -> None:
        self._total = total
        self._bar: rich_progress.Progress | None = None
        self._last_line = 0.0
        if sys.stderr.isatty():
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("training"),
                rich_progress.BarColumn(),
                rich_progress.MofNCompleteColumn(),
                rich_progress.TimeRemainingColumn(),
                rich_progress.TextColumn("{task.description}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=total, completed=step)
            self._bar.start()

    def show(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if kind == "step":
            text = _step_text(values)
            if self._bar is not None:
                self._bar.update(self._task, completed=step, description=text)
            elif time.monotonic() - self._last_line > PLAIN_INTERVAL_S or step == self._total:
                self._last_line = time.monotonic()
                self._print(f"step {step}/{self._total}  {text}")
            return
        if kind in ("exposure", "totals"):  # too large for a line; they are in metrics.jsonl
            return
        shown = _leaves(values)
        if kind == "eval":  # the first few are enough; all are in metrics.jsonl
            shown = [item for item in shown if isinstance(item[1], float)][:_METRICS_SHOWN]
        numbers = "  ".join(f"{name} {_short(value)}" for name, value in shown)
        self._print(f"step {step}/{self._total}  {kind}  {numbers}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def keep_tensorflow_out() -> None:
    """Keeps tensorboard from importing TensorFlow if it is installed (0.5 GB, seconds)."""
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, types.ModuleType(name))


def _step_text(values: dict[str, Any]) -> str:
    return (
        f"loss {values['loss']:.4f}  lr {values['learning_rate']:.2e}  "
        f"{values['tokens_per_s']:,.0f} tokens/s  data wait {values['data_wait_s']:.3f} s"
    )


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _leaves(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flattens nested values, with names such as `parts/url`."""
    leaves: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{name}/")
        else:
            leaves.append((prefix + name, value))
    return leaves


def flat(config: RunConfig) -> dict[str, Any]:
    """The configuration in the form that trackers expect: one level, plain values."""
    return {
        name: value if isinstance(value, (int, float, str, bool)) else str(value)
        for name, value in _leaves(redact_values(dataclasses.asdict(config)))
    }


class Starter(Protocol):
    """The method of an Accelerator that starts trackers."""

    def init_trackers(
        self, project_name: str, config: dict[str, Any], init_kwargs: dict[str, Any]
    ) -> None: ...


def start_trackers(accelerator: Starter, config: RunConfig, folder: Path, step: int) -> None:
    """Starts every tracker of the configuration; called on rank 0.

    Args:
        accelerator: Created with `log_with=config.trackers`.
        config: The run; `run_name` is the project's name at the trackers.
        step: The step that the run resumes from, 0 at its beginning.

    Raises:
        ConfigurationError: If a tracker cannot start (no key, no network).
    """
    if not config.trackers:
        return
    keep_tensorflow_out()
    try:
        accelerator.init_trackers(
            config.run_name, config=flat(config), init_kwargs=arguments(folder, step)
        )
    except Exception as error:
        expected = "trackers that can start; wandb needs WANDB_API_KEY, or WANDB_MODE=offline"
        found = f"{', '.join(config.trackers)}: {type(error).__name__}: {error}"
        refuse([Problem("trackers", HYDRA, found, expected, "fix that, or leave it out")])


def arguments(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """The arguments for each library that make a resumed run continue the same run there."""
    name = run_name(folder)
    return {
        "tensorboard": {"purge_step": step + 1} if step else {},
        "wandb": {"id": name, "name": name, "resume": "allow", "dir": str(folder)},
        "trackio": {"name": name, "resume": "allow"},
    }


def run_name(folder: Path) -> str:
    """The run's name at wandb and trackio: the folder's with eight letters, generated only once.

    An empty file counts as missing: it was being written when the machine crashed.
    """
    file = folder / RUNS
    try:
        return str(json.loads(file.read_text())["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        name = f"{_plain(folder.name)}-{secrets.token_hex(4)}"
        write_json(file, {"run": name})
        return name


def _plain(name: str) -> str:
    """Replaces characters that a wandb id must not contain (`/\\#?%:`), and truncates it (128)."""
    return "".join(
        character if character.isalnum() or character in "-_." else "-" for character in name
    )[:100]

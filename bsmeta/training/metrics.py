"""Metrics of each step, and their destinations: file, trackers, screen.

Tokens are the model's inputs without padding, which is counted separately. With N parameters in
matrix products (`flops_per_token`), over the steps since the last line of the log:

    tokens_per_s = tokens of all ranks / seconds of these steps
    mfu = 6 x N x tokens_per_s / (devices x dense bf16 peak of one)

A resumed run stays one run at its trackers: its name there is generated once and stored in the run
folder (`trackers.json`), the run of this name or id is continued, and tensorboard drops all values
after the step that the run resumes from. aim and mlflow name their runs themselves: there, each
start is a run of its own with the same label. No secrets are passed: each library reads its own key
(`WANDB_API_KEY`, `HF_TOKEN`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import resource
import secrets
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
import xxhash
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Column

from bsmeta.config.cards import CARDS, find_card
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import Schedule
from bsmeta.core.errors import HYDRA, Problem, raise_problems
from bsmeta.core.files import write_json
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import PLAIN_INTERVAL_S
from bsmeta.core.secrets import redact, redact_values
from bsmeta.core.terminal import ProgressDisplay, TextColumn
from bsmeta.training.guards import NonFiniteGuard
from bsmeta.training.processes import Processes
from bsmeta.training.run_events import METRICS
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.run_logs import Log
from bsmeta.training.step_stats import DataStats, StepResult, StepStats

TRACKERS_FILE = "trackers.json"
"""File in the run folder with the name of the run at its trackers."""

_SWANLAB_ID_CHARS = 21  # lower-case letters and digits
_MAX_METRICS_SHOWN = 4
_MIN_BAR_COLUMNS = 6  # of the terminal

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Counters of a run; saved with every checkpoint.

    Attributes:
        tokens: Tokens fed to the model, without padding.
        targets: Tokens on which loss was computed.
        counts: Sums of `MicroBatch.counts` since the current phase of the data began.
        unlogged: Sums since the last line of the log.
        totals: Sums over the run.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    unlogged: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Returns a JSON-serializable copy."""
        return dataclasses.asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores all counters.

        Raises:
            msgspec.ValidationError: If a value has the wrong type.
        """
        saved = msgspec.convert(state, Progress)
        for name, value in vars(saved).items():
            setattr(self, name, value)

    def add_counts(self, counts: dict[str, float]) -> None:
        """Adds the counts of a step to the sums of the phase, the log and the run."""
        for sums in (self.counts, self.unlogged, self.totals):
            for name, value in counts.items():
                sums[name] = sums.get(name, 0.0) + value


class StepLog:
    """Reads completed steps and records them: progress, documents, metrics, non-finite steps."""

    def __init__(
        self,
        config: RunConfig,
        schedule: Schedule,
        run_folder: RunFolder,
        processes: Processes,
        tracker: Tracker,
        throughput: Throughput,
        nonfinite: NonFiniteGuard,
    ) -> None:
        self._schedule = schedule
        self._run_folder = run_folder
        self._tracker = tracker
        self._throughput = throughput
        self._nonfinite = nonfinite
        self._documents: Log | None = None
        if config.log_documents:
            self._documents = run_folder.open_log(f"documents-rank{processes.rank}.jsonl")

    def record(self, result: StepResult, data: DataStats, progress: Progress) -> StepStats:
        """Waits for the statistics of a step, records them, and advances `progress`.

        Raises:
            TrainingError: If loss or gradient is not finite, and the step may not be skipped.
        """
        stats = result.reduced.read(data.targets)
        if stats.is_finite:
            self._nonfinite.record_finite_step()
        else:
            self._run_folder.rebuild_if_deleted()
            values = self._nonfinite.skip_or_stop(result, stats)
            self._tracker.record_event("nonfinite", result.step, **values)

        self._write_documents(result)
        progress.add_counts(data.counts)
        self._throughput.add(data.tokens, data.padding, result.data_wait_s)
        if stats.is_finite:
            progress.tokens += int(data.tokens)
            progress.targets += int(data.targets)
            if self._schedule.logs(result.step):
                self._log(result, stats, progress)

        return stats

    def finish(self, progress: Progress) -> None:
        """Records the totals of a completed run."""
        self._tracker.record_event(
            "totals",
            progress.step,
            tokens=progress.tokens,
            targets=progress.targets,
            counts=_drop_zeros(progress.totals),
        )

    def _write_documents(self, result: StepResult) -> None:
        """Logs each document of a step once, if `log_documents` is set."""
        if self._documents is None:
            return

        documents: dict[str, None] = {}  # ordered, without duplicates
        targets = []
        for batch in result.data.micro_batches:
            documents |= dict.fromkeys(batch.documents)
            if batch.targets:
                targets.append(batch.targets)

        line: dict[str, Any] = {"step": result.step, "documents": list(documents)}
        if targets:
            line["targets"] = targets
        self._documents.write(line)

    def _log(self, result: StepResult, stats: StepStats, progress: Progress) -> None:
        """Logs a step, with all counts since the last line of the log."""
        values: dict[str, Any] = {
            "loss": stats.loss,
            "learning_rate": result.learning_rate,
            "grad_norm": stats.grad_norm,
            "parts": stats.parts,
            "counts": _drop_zeros(progress.unlogged),
            "tokens": progress.tokens,
            "targets": progress.targets,
        }
        progress.unlogged.clear()
        self._tracker.record_event("step", result.step, **values, **self._throughput.take_metrics())


def _drop_zeros(sums: dict[str, float]) -> dict[str, float]:
    """Drops counts of 0: most counts are of rare problems, and would fill every line of the log."""
    return {name: value for name, value in sums.items() if value}


class Throughput:
    """Accumulates tokens and seconds between two lines of the log."""

    def __init__(self, flops_per_token: float, device: torch.device, world_size: int) -> None:
        self._device = device
        self._world_size = world_size
        self._flops_per_token = flops_per_token
        self._peak_flops = find_peak_flops(device)
        self.start()
        self._clear()

    def start(self) -> None:
        """Restarts the clock, after the set-up, an evaluation or a save."""
        self._step_start = time.perf_counter()

    def add(self, tokens: float, padding: float, wait_s: float) -> None:
        """Adds a completed step, for whose data the loop waited `wait_s` seconds."""
        step_end = time.perf_counter()
        self._seconds += step_end - self._step_start
        self._step_start = step_end

        self._steps += 1
        self._tokens += tokens
        self._padding += padding
        self._wait_s += wait_s

    def take_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the steps since the last call, and resets them.

        Returns:
            `tokens_per_s` and `mfu` (None if the device's peak is unknown), see the module's
            docstring; `padding`, the share of padding among the positions; `step_s`, seconds per
            step; `data_wait_s`, seconds that the loop waited for data in all these steps;
            `memory_gb`, the peak allocation so far on this rank's GPU, or without one the peak
            resident size of its process, in GiB (2^30 bytes).
        """
        tokens_per_s = self._tokens / self._seconds
        mfu = None
        if self._peak_flops is not None:
            mfu = tokens_per_s * self._flops_per_token / (self._peak_flops * self._world_size)

        if self._device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._device) / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB

        metrics = {
            "data_wait_s": self._wait_s,
            "step_s": self._seconds / self._steps,
            "tokens_per_s": tokens_per_s,
            "mfu": mfu,
            "padding": self._padding / max(self._tokens + self._padding, 1.0),
            "memory_gb": memory,
        }
        self._clear()
        return metrics

    def _clear(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._padding = 0.0
        self._wait_s = 0.0
        self._steps = 0


def find_peak_flops(device: torch.device) -> float | None:
    """Returns the dense bf16 peak of a GPU in FLOP/s; None if unknown."""
    if device.type != "cuda":
        return None
    card = find_card(torch.cuda.get_device_name(device))
    return None if card is None else CARDS[card].peak_flops


class ExternalTracker(Protocol):
    """A tracker that Accelerate creates for a name in `trackers` (tensorboard, wandb, …)."""

    def log(self, values: dict[str, Any], step: int | None) -> None: ...

    def finish(self) -> None: ...


class Tracker:
    """Records events in the log, at the trackers and on the screen; does nothing on other ranks.

    Args:
        is_main: Whether this is rank 0, the only rank that records.
        step: The step that the run resumes from; 0 at its beginning.
        external: Trackers that Accelerate has created.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        *,
        is_main: bool,
        step: int,
        total_steps: int,
        external: Sequence[ExternalTracker] = (),
    ) -> None:
        self._external = list(external) if is_main else []
        self._metrics = run_folder.open_log(METRICS) if is_main else None
        self._screen = Screen(total_steps, step) if is_main else None

    def record_event(self, kind: str, step: int, **values: Any) -> None:
        """Records an event: a line of `metrics.jsonl`, and its numbers for the trackers."""
        if self._metrics is None or self._screen is None:
            return

        self._metrics.write({"event": kind, "step": step, **values})
        if self._external and kind in ("step", "eval"):
            prefix = "" if kind == "step" else "eval/"
            numbers = {
                prefix + name: value
                for name, value in _flatten_values(values)
                # NaN: unknown, such as the utilization of a CPU
                if isinstance(value, (int, float)) and not math.isnan(value)
            }
            self._call_each(lambda tracker: tracker.log(numbers, step))
        self._screen.show(kind, step, values)

    def _call_each(self, action: Callable[[ExternalTracker], None]) -> None:
        """Calls `action` on each tracker, and drops those that fail (full disk, lost server)."""
        for tracker in list(self._external):
            try:
                action(tracker)
            except Exception as error:
                self._external.remove(tracker)
                logger.warning(
                    "%s gets no more metrics (%s: %s); all of them are in %s",
                    type(tracker).__name__,
                    type(error).__name__,
                    redact(str(error)),
                    METRICS,
                )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None and self._screen is not None:
            self._screen.close()
            self._metrics.close()
        self._call_each(lambda tracker: tracker.finish())


def _join_until(values: Sequence[str], width: int) -> str:
    """Joins the first values, up to `width` characters, with two blanks between them."""
    text = ""
    for value in values:
        extended_text = f"{text}  {value}" if text else value
        if len(extended_text) > width:
            break
        text = extended_text
    return text


class Screen:
    """A progress bar on a terminal; elsewhere, plain lines: every ten seconds and per event."""

    def __init__(self, total: int, step: int) -> None:
        self._total = total
        self._bar: ProgressDisplay | None = None
        self._last_line_time = 0.0

        if sys.stderr.isatty():
            self._bar = ProgressDisplay(
                TextColumn("training"),
                BarColumn(
                    bar_width=None,
                    table_column=Column(min_width=_MIN_BAR_COLUMNS, max_width=4 * _MIN_BAR_COLUMNS),
                ),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.description}"),
            )
            # Step and time are never cut; columns are separated by four blanks in all.
            step_width = 2 * len(str(total)) + 1
            fixed_width = len("training") + _MIN_BAR_COLUMNS + step_width + len("0:00:00") + 4
            self._description_width = self._bar.console.width - fixed_width

            self._task = self._bar.add_task("", total=total, completed=step)
            self._bar.start()

    def show(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Shows an event of the kinds that fit on a line; metrics.jsonl has them all."""
        if kind == "step":
            self._show_step(step, values)
        elif kind not in ("exposure", "totals"):
            self._show_event(kind, step, values)

    def _show_step(self, step: int, values: dict[str, Any]) -> None:
        """Updates the bar, or prints a line if the last one is old enough."""
        metrics = (
            f"loss {values['loss']:.4f}",
            f"lr {values['learning_rate']:.2e}",
            f"{values['tokens_per_s']:,.0f} tokens/s",
            f"data wait {values['data_wait_s']:.3f} s",
        )
        if self._bar is not None:
            description = _join_until(metrics, self._description_width)
            self._bar.update(self._task, completed=step, description=description)
        elif time.monotonic() - self._last_line_time > PLAIN_INTERVAL_S or step == self._total:
            self._last_line_time = time.monotonic()
            self._print(f"step {step}/{self._total}  {'  '.join(metrics)}")

    def _show_event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Prints a line with the values of an event, of an evaluation only the first few."""
        items = _flatten_values(values)
        if kind == "eval":
            numbers = [(name, value) for name, value in items if isinstance(value, float)]
            items = numbers[:_MAX_METRICS_SHOWN]

        words = []
        for name, value in items:
            words.append(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
        self._print(f"step {step}/{self._total}  {kind}  {'  '.join(words)}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _flatten_values(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flattens nested values to pairs of a path, such as `parts/url`, and a value."""
    items: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            items += _flatten_values(value, f"{prefix}{name}/")
        else:
            items.append((prefix + name, value))
    return items


def start_trackers(accelerator: Any, config: RunConfig, folder: Path, step: int) -> None:
    """Starts every tracker of the configuration; called on rank 0.

    Args:
        accelerator: Created with `log_with=config.trackers`.
        step: The step that the run resumes from, 0 at its beginning.

    Raises:
        ConfigurationError: If a tracker cannot start (no key, no network).
    """
    if not config.trackers:
        return

    # Otherwise tensorboard would import TensorFlow if it is installed (0.5 GB, seconds).
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))

    # Trackers expect settings on one level, with plain values.
    settings = {}
    for name, value in _flatten_values(redact_values(dataclasses.asdict(config))):
        settings[name] = value if _is_plain(value) else str(value)

    try:
        accelerator.init_trackers(
            redact(config.run_name),
            config=settings,
            init_kwargs=make_tracker_arguments(folder, step),
        )
    except Exception as error:
        reason = f"{', '.join(config.trackers)}: {type(error).__name__}: {error}"
        expected = "trackers that can start; wandb needs WANDB_API_KEY, or WANDB_MODE=offline"
        raise_problems([Problem("trackers", HYDRA, reason, expected, "fix that, or leave it out")])


def _is_plain(value: Any) -> bool:
    """Whether trackers accept a value unchanged; tensorboard warns of infinity and NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (int, str, bool))


def make_tracker_arguments(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """Returns arguments for each tracker with which a resumed run continues the same run there."""
    name = ensure_run_name(folder)
    digest = xxhash.xxh3_128_hexdigest(name.encode())
    is_resumed = step > 0
    return {
        "tensorboard": {"purge_step": step + 1} if is_resumed else {},
        "wandb": {"id": name, "name": name, "resume": "allow", "dir": str(folder)},
        "trackio": {"name": name, "resume": "allow"},
        "aim": {"experiment": name},
        # Without copies of what the run writes itself: arguments and models.
        "clearml": {
            "task_name": name,
            "continue_last_task": is_resumed,
            "reuse_last_task_id": is_resumed,
            "auto_connect_arg_parser": False,
            "auto_connect_frameworks": False,
        },
        "comet_ml": {"experiment_key": digest},  # 32 to 50 letters and digits
        # Files only, without commits in the repository of the working folder.
        "dvclive": {
            "dir": str(folder / "dvclive"),
            "resume": is_resumed,
            "save_dvc_exp": False,
            "dvcyaml": None,
        },
        "mlflow": {"run_name": name},
        "swanlab": {
            "experiment_name": name,
            "id": digest[:_SWANLAB_ID_CHARS],
            "resume": "allow",
            "logdir": str(folder / "swanlab"),
        },
    }


def ensure_run_name(folder: Path) -> str:
    """Returns the name of the run at its trackers; generates and stores it on the first call.

    It consists of the name of the folder and eight hexadecimal digits. An empty file counts as
    missing: it was being written when the machine crashed. A wandb id must not contain any of
    `/\\#?%:`, nor have more than 128 characters.
    """
    file = folder / TRACKERS_FILE
    try:
        return str(parse_json(file.read_text())["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        safe_folder_name = re.sub(r"[^\w.-]", "-", folder.name)[:100]
        name = f"{safe_folder_name}-{secrets.token_hex(4)}"
        write_json(file, {"run": name})
        return name

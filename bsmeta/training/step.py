"""One training step: forward and backward over a global batch, one all-reduce, the optimizer.

The loss of a step is the mean over the targets of the whole global batch, however it is split
over ranks and micro-batches: the sum of losses is divided by the number of targets of the *step*.
DeepSpeed reduces gradients inside the backward pass, so that number must be known before it. The
next step's data is therefore fetched while the device still computes this one, and its number of
targets is summed in the same all-reduce as the losses: one collective per step besides the
gradient's.

Nothing here waits for the device; `stats.StepResult.read` does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from bsmeta.config.schema import RunConfig
from bsmeta.core.progress import opaque_work
from bsmeta.core.signals import StopRequest, WaitEnded
from bsmeta.data.batch import StepData, Stream
from bsmeta.training.distributed import Accelerator, Processes
from bsmeta.training.engines import Engine
from bsmeta.training.optimizers import learning_rate, set_learning_rate
from bsmeta.training.saving import Saver
from bsmeta.training.stats import DataStats, ReducedStats, StepResult, StepStats
from bsmeta.training.task import Loss, Task
from bsmeta.training.watchdog import Watchdog, report_of, reported_error

PROFILES = "profile"


class Profile:
    """`profile=true`: records a trace of some steps by torch's profiler; does nothing if it is off.

    Chrome's about:tracing and https://ui.perfetto.dev read it. Its ranges are named `bsmeta: …`
    after the phases of the loop.

    Args:
        steps: First and last step, or None: off.
        folder: The run folder; each rank writes `profile/steps-{first}-{last}-rank{r}.json` there.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path, rank: int) -> None:
        self._steps = steps
        self._folder = folder
        self._rank = rank
        self._running: profile | None = None

    def range(self, name: str) -> AbstractContextManager[Any]:
        """A named range of the trace."""
        return nullcontext() if self._running is None else record_function(f"bsmeta: {name}")

    def before(self, step: int) -> None:
        """To be called before each step."""
        if self._steps is not None and self._running is None and step == self._steps[0]:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()

    def after(self, step: int) -> None:
        """To be called after each step."""
        if self._steps is not None and step == self._steps[1]:
            self.stop()

    def stop(self) -> None:
        """Writes the trace, even if the run ends before the last step to record."""
        if self._running is None or self._steps is None:
            return
        running, self._running = self._running, None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        running.stop()
        (self._folder / PROFILES).mkdir(parents=True, exist_ok=True)
        name = f"steps-{self._steps[0]}-{self._steps[1]}-rank{self._rank}.json"
        with opaque_work():
            running.export_chrome_trace(str(self._folder / PROFILES / name))


@dataclass(frozen=True)
class _Fetched:
    """The next step's data, being copied to the device or already there."""

    data: StepData
    wait_s: float
    inputs: list[dict[str, torch.Tensor]]
    copied: torch.cuda.Event | None

    def on_device(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields the tensors of each micro-batch, safe to use on the device's current stream."""
        if self.copied is not None:
            current = torch.cuda.current_stream()
            current.wait_event(self.copied)
            for tensors in self.inputs:
                for tensor in tensors.values():
                    tensor.record_stream(current)  # otherwise its memory would be reused too early
        yield from self.inputs


class StepRunner:
    """Runs the steps of this rank. All ranks call each method together.

    Args:
        last_step: The last step of the run; no data is fetched after it.
        stop: Records whether this rank was asked to stop; also ends the wait for data.
        saver: Reports whether a checkpoint of this rank could not be written.
        lag: How many further steps may start before the statistics of a step are read.
    """

    def __init__(
        self, config: RunConfig, task: Task, accelerator: Accelerator, model: nn.Module,
        optimizer: Any, engine: Engine, last_step: int, stop: StopRequest, saver: Saver,
        watchdog: Watchdog, profile: Profile, *, lag: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._task = task
        self._accelerator = accelerator
        self._processes = Processes.of(accelerator)
        self._model = model
        self._optimizer = optimizer
        self._engine = engine
        self._last_step = last_step
        self._stop = stop
        self._saver = saver
        self._watchdog = watchdog
        self._profile = profile
        self._steps: Iterator[StepData] = iter(())
        self._next: _Fetched | None = None
        self._count_names: list[str] = []
        self._error: Exception | None = None
        # A step that begins before the statistics of the last step are read must begin on all ranks
        # or on none.
        self._must_agree = lag > 0 and self._processes.size > 1
        self._next_targets = torch.zeros((), dtype=torch.float64)
        # Copies to a GPU overlap with the computation, from the loader's pinned memory.
        device = self._processes.device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def open(self, stream: Stream) -> None:
        """Starts to read the data from this stream, beginning at its state."""
        self._steps = iter(stream)
        self._next = None

    @property
    def next_data(self) -> StepData | None:
        """The data of the next step; None if it has not been fetched."""
        return None if self._next is None else self._next.data

    def fetch_first(self, step: int) -> StepStats:
        """Fetches the data of a step that was not prefetched by the step before it.

        Returns:
            The statistics of all ranks; a stop if a signal has ended the wait on any rank.
        """
        fetched = self._fetch(step)
        if self._error is not None:
            raise self._error  # there is no earlier step to complete first
        if not self._all_have_data(step, fetched):
            return StepStats(DataStats(), stop=1.0)
        self._next = fetched
        self._watchdog.enter(f"step {step}: all-reduce", logged=False)
        reduced = ReducedStats(self._processes, self._own_stats(), [], None)
        self._next_targets = reduced.next_targets
        return reduced.read()

    def train_step(self, step: int) -> StepResult:
        """Runs one step, and fetches the data of the next; see the module's docstring.

        Args:
            step: Its number, from 1. Its data has been fetched, by the previous step or by
                `fetch_first`.
        """
        assert self._next is not None, "fetch_first comes before the first step"
        fetched, targets = self._next, self._next_targets
        self._watchdog.step = step - 1
        self._profile.before(step)
        rate = learning_rate(self._config, self._last_step, step)
        set_learning_rate(self._optimizer.param_groups, rate)

        self._model.train()
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        parts = self._processes.size * len(fetched.inputs)
        scale = (parts / targets.clamp(min=1.0)).float()
        losses: list[Loss] = []
        for batch, tensors in zip(fetched.data.micro_batches, fetched.on_device(), strict=True):
            with self._accelerator.accumulate(self._model):
                with self._doing(step, "forward pass"), self._accelerator.autocast():
                    loss = self._task.loss(self._model, tensors)
                    if batch.weight == 0:
                        loss = loss.without_targets()
                with self._doing(step, "backward pass"):
                    self._accelerator.backward(loss.sum * scale)
            losses.append(loss.detached())

        self._next = None if step == self._last_step else self._prefetch(step + 1)

        with self._doing(step, "all-reduce"):
            norm = self._engine.clip(self._config.gradient_clipping or float("inf"))
            reduced = ReducedStats(self._processes, self._own_stats(), losses, norm)
            self._next_targets = reduced.next_targets

        with self._doing(step, "optimizer"):
            finite = reduced.loss.isfinite()
            if isinstance(norm, torch.Tensor):
                finite = finite & norm.isfinite()
            changed = self._engine.step(finite)
        self._profile.after(step)
        return StepResult(
            step, fetched.data, fetched.wait_s, rate, [loss.sum for loss in losses], reduced,
            self._engine.scaled, changed,
        )  # fmt: skip

    def raise_error(self) -> None:
        """Raises, on every rank, the error that left a rank without data. All ranks call it."""
        errors = self._processes.gather(None if self._error is None else report_of(self._error))
        if self._error is not None:
            raise self._error
        for rank, report in enumerate(errors):
            if report is not None:
                raise reported_error(rank, report)

    def _own_stats(self) -> StepStats:
        if self._next is not None:
            data = DataStats.of(self._next.data)
            self._count_names = list(data.counts)
        else:  # with the same names, because other ranks may have data
            data = DataStats(counts=dict.fromkeys(self._count_names, 0.0))
        return StepStats(
            data,
            stop=float(self._stop.name is not None),
            save_failed=float(self._saver.failed),
            out_of_data=float(self._error is not None),
        )

    def _prefetch(self, step: int) -> _Fetched | None:
        """Fetches the data of the next step; None if the run has to end before that step."""
        fetched = self._fetch(step)
        if self._must_agree and not self._all_have_data(step, fetched):
            return None
        return fetched

    def _all_have_data(self, step: int, fetched: _Fetched | None) -> bool:
        self._watchdog.enter(f"step {step}: waiting for the data of the other ranks", logged=False)
        return self._processes.agree(fetched is not None)

    def _fetch(self, step: int) -> _Fetched | None:
        """Fetches the next step of the stream, and starts its copy to the device.

        Returns None if a signal arrived while this rank waited, or if the data cannot be read: the
        previous step is completed and saved first, then `raise_error` raises the error.
        """
        try:
            with self._doing(step, "waiting for data"), self._stop.ends_wait():
                began = time.perf_counter()
                data = next(self._steps)
                wait_s = time.perf_counter() - began
        except WaitEnded:
            return None
        except Exception as error:
            self._error = self._watchdog.named(error)
            return None
        if self._copies is None:
            return _Fetched(data, wait_s, self._moved(data), None)
        with torch.cuda.stream(self._copies):
            inputs = self._moved(data)
            copied = torch.cuda.Event()
            copied.record(self._copies)
        return _Fetched(data, wait_s, inputs, copied)

    def _moved(self, data: StepData) -> list[dict[str, torch.Tensor]]:
        device = self._processes.device
        return [
            {name: tensor.to(device, non_blocking=True) for name, tensor in batch.tensors.items()}
            for batch in data.micro_batches
        ]

    def _doing(self, step: int, what: str) -> Any:
        """Names the phase of the loop, for the watchdog and the trace."""
        self._watchdog.enter(f"step {step}: {what}", logged=False)
        return self._profile.range(what)

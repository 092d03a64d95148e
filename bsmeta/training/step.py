"""One training step: forward and backward over a global batch, one all-reduce, the optimizer.

The loss of a step is the mean over the targets of the whole global batch, however it is split
over ranks and micro-batches: the sum of losses is divided by the number of targets of the *step*.
DeepSpeed reduces gradients inside the backward pass, so that number must be known before it. The
next step's data is therefore fetched while the device still computes this one, and its number of
targets is summed in the same all-reduce as the losses: one collective per step besides the
gradient's.

Nothing waits for the device but `ReducedStats.read`, which the loop calls later, while the device
is busy with the next step. A rank's statistics are a flat tensor only inside the all-reduce.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bsmeta.config.schema import RunConfig
from bsmeta.core.process import StopRequest, WaitEnded
from bsmeta.core.progress import opaque_work
from bsmeta.data.batch import StepData, Stream
from bsmeta.training.engines import Engine
from bsmeta.training.optimization import learning_rate, set_learning_rate
from bsmeta.training.processes import Processes
from bsmeta.training.saving import Saver
from bsmeta.training.task import Loss, Task
from bsmeta.training.watchdog import Watchdog, report_of, reported_error

PROFILES = "profile"


class Profile:
    """`profile=true`: records a trace of some steps by torch's profiler; does nothing if it is off.

    Chrome's about:tracing and https://ui.perfetto.dev read it. Its ranges are named `bsmeta: …`
    after the phases of the loop. Each rank writes `profile/steps-{first}-{last}-rank{r}.json` in
    the run folder.
    """

    def __init__(self, config: RunConfig, folder: Path, rank: int) -> None:
        self._first, self._last = config.profile_steps if config.profile else (0, 0)
        self._file = folder / PROFILES / f"steps-{self._first}-{self._last}-rank{rank}.json"
        self._running: profile | None = None

    def range(self, name: str) -> AbstractContextManager[Any]:
        """A named range of the trace."""
        return nullcontext() if self._running is None else record_function(f"bsmeta: {name}")

    def before(self, step: int) -> None:
        if self._running is None and step == self._first:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._running = profile(activities=activities)
            self._running.start()

    def after(self, step: int) -> None:
        if step == self._last:
            self.stop()

    def stop(self) -> None:
        """Writes the trace, even if the run ends before the last step to record."""
        if self._running is None:
            return
        running, self._running = self._running, None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        running.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with opaque_work():
            running.export_chrome_trace(str(self._file))


@dataclass(frozen=True)
class DataStats:
    """Sums over the micro-batches of a step, on one rank or on all; see `MicroBatch`."""

    targets: float = 0.0
    tokens: float = 0.0
    padding: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, data: StepData) -> DataStats:
        batches = data.micro_batches
        names = batches[0].counts if batches else ()
        return cls(
            targets=float(sum(batch.weight for batch in batches)),
            tokens=float(sum(batch.tokens for batch in batches)),
            padding=float(sum(batch.padding for batch in batches)),
            counts={name: float(sum(batch.counts[name] for batch in batches)) for name in names},
        )


@dataclass(frozen=True)
class StepStats:
    """Per-step statistics: what a rank contributes to the all-reduce, then those of all ranks.

    Attributes:
        next_data: Statistics of the next step's data; zeros after the last step.
        stop: Number of ranks that were asked to stop.
        save_failed: Number of ranks whose checkpoint writer has failed.
        out_of_data: Number of ranks whose next data cannot be read.
        loss: Mean over the targets of the global batch, in nats.
        parts: Weighted mean of each named part of the loss whose weight is not 0.
        grad_norm: Norm of the gradient of the global batch; None if the engine reports none.
    """

    next_data: DataStats
    stop: float
    save_failed: float = 0.0
    out_of_data: float = 0.0
    loss: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are finite numbers.

        DeepSpeed returns -1 or infinity for a norm that is NaN.
        """
        norm = self.grad_norm
        return math.isfinite(self.loss) and (norm is None or (math.isfinite(norm) and norm >= 0))


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy from main memory for which the host does not wait.

    From memory that is not page-locked, the driver may first wait for the device. A loader locks
    its batches, but not what a task adds to them.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class ReducedStats:
    """A step's statistics, summed over all ranks; on the device until they are read."""

    def __init__(
        self, processes: Processes, own: StepStats, losses: Sequence[Loss] = (),
        norm: torch.Tensor | float | None = None, *, scaled: bool = False,
    ) -> None:  # fmt: skip
        """Starts the all-reduce; every rank calls it with the same names of counts and parts.

        Args:
            own: This rank's statistics that are known on the host.
            losses: Losses of this rank's micro-batches, on the device; none before the first step.
            norm: The norm of the gradient of the global batch, on the device or on the host.
            scaled: Whether there is a loss scaler, which itself skips gradients that are not
                finite.
        """
        self._norm = norm
        self._scaled = scaled
        self._count_names = list(own.next_data.counts)
        self._part_names = list(losses[0].parts) if losses else []
        data = own.next_data
        host = [own.stop, own.save_failed, own.out_of_data]
        host += [data.targets, data.tokens, data.padding, *data.counts.values()]
        self._num_host = len(host)
        values = copy_to(processes.device, torch.tensor(host, dtype=torch.float64))
        if losses:
            values = torch.cat([values, torch.stack([_flat(loss) for loss in losses]).sum(0)])
        values = processes.sum(values)
        if isinstance(norm, torch.Tensor):
            values = torch.cat([values, norm.detach().double().reshape(1)])
        self._values = self._host = values
        self._copied: torch.cuda.Event | None = None
        if values.device.type == "cuda":  # the copy starts at once
            self._host = torch.empty_like(values, device="cpu", pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @property
    def next_targets(self) -> torch.Tensor:
        """Number of targets of the next step over all ranks: a float64 scalar on the device."""
        return self._values[3]

    @property
    def loss(self) -> torch.Tensor:
        """Sum of the step's losses over all ranks: a float64 scalar on the device."""
        return self._values[self._num_host]

    def read(self, targets: float = 0.0) -> StepStats:
        """Waits for the device; `targets` is the number of targets of the global batch."""
        if self._copied is not None:
            self._copied.synchronize()
        values = self._host.tolist()
        norm = values.pop() if isinstance(self._norm, torch.Tensor) else self._norm
        stop, save_failed, out_of_data, *sums = values[: self._num_host]
        next_targets, tokens, padding, *counted = sums
        counts = dict(zip(self._count_names, counted, strict=True))
        loss, *sums = values[self._num_host :] or [0.0]
        weighted = zip(self._part_names, sums[::2], sums[1::2], strict=True)
        parts = {name: total / weight for name, total, weight in weighted if weight}
        data = DataStats(next_targets, tokens, padding, counts)
        mean = loss / max(targets, 1.0)
        stats = StepStats(data, stop, save_failed, out_of_data, mean, parts, norm)
        if self._scaled and not replace(stats, loss=0.0).finite:
            # fp16: the scale was too high; the scaler skips the step and lowers it
            return replace(stats, grad_norm=None)
        return stats


def _flat(loss: Loss) -> torch.Tensor:
    """A micro-batch's loss and parts: float64[1 + 2 * parts], detached."""
    parts = [value for pair in loss.parts.values() for value in pair]
    return torch.stack([value.detach().double() for value in (loss.sum, *parts)])


@dataclass(frozen=True)
class StepResult:
    """A step that the device has completed or is still working on.

    Attributes:
        step: Its number, from 1.
        data_wait_s: Seconds that the loop waited for the step's data.
        losses: Sum of losses of each of this rank's micro-batches, on the device.
        weights_changed: Whether the weights were changed even if the step is not finite.
    """

    step: int
    data: StepData
    data_wait_s: float
    learning_rate: float
    losses: list[torch.Tensor]
    reduced: ReducedStats
    weights_changed: bool


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
        self, config: RunConfig, task: Task, engine: Engine, last_step: int, stop: StopRequest,
        saver: Saver, watchdog: Watchdog, profile: Profile, *, lag: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._task = task
        self._engine = engine
        self._processes = Processes.of_group(engine.accelerator.device)
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
        reduced = ReducedStats(self._processes, self._own_stats())
        self._next_targets = reduced.next_targets
        return reduced.read()

    def train_step(self, step: int) -> StepResult:
        """Runs one step, and fetches the data of the next; see the module's docstring.

        Its own data has been fetched, by the previous step or by `fetch_first`.
        """
        assert self._next is not None, "fetch_first comes before the first step"
        engine, fetched, targets = self._engine, self._next, self._next_targets
        self._watchdog.step = step - 1
        self._profile.before(step)
        rate = learning_rate(self._config, self._last_step, step)
        set_learning_rate(engine.optimizer.param_groups, rate)

        engine.model.train()
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        parts = self._processes.size * len(fetched.inputs)
        scale = (parts / targets.clamp(min=1.0)).float()
        losses: list[Loss] = []
        for batch, tensors in zip(fetched.data.micro_batches, fetched.on_device(), strict=True):
            with engine.accelerator.accumulate(engine.model):
                with self._doing(step, "forward pass"), engine.accelerator.autocast():
                    loss = self._task.loss(engine.model, tensors)
                    if batch.weight == 0:
                        loss = loss.without_targets()
                with self._doing(step, "backward pass"):
                    engine.accelerator.backward(loss.sum * scale)
            losses.append(loss.detached())

        self._next = None if step == self._last_step else self._prefetch(step + 1)

        with self._doing(step, "all-reduce"):
            norm = engine.clip(self._config.gradient_clipping or float("inf"))
            own = self._own_stats()
            reduced = ReducedStats(self._processes, own, losses, norm, scaled=engine.scaled)
            self._next_targets = reduced.next_targets

        with self._doing(step, "optimizer"):
            finite = reduced.loss.isfinite()
            if isinstance(norm, torch.Tensor):
                finite = finite & norm.isfinite()
            changed = engine.step(finite)
        self._profile.after(step)
        sums = [loss.sum for loss in losses]
        return StepResult(step, fetched.data, fetched.wait_s, rate, sums, reduced, changed)

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
        device, copied = self._processes.device, None
        with torch.cuda.stream(self._copies):  # of no effect on a CPU
            inputs = [
                {name: copy_to(device, value) for name, value in batch.tensors.items()}
                for batch in data.micro_batches
            ]
            if self._copies is not None:
                copied = self._copies.record_event()
        return _Fetched(data, wait_s, inputs, copied)

    def _doing(self, step: int, what: str) -> AbstractContextManager[Any]:
        """Names the phase of the loop, for the watchdog and the trace."""
        self._watchdog.enter(f"step {step}: {what}", logged=False)
        return self._profile.range(what)

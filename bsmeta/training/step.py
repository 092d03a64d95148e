"""One training step: forward and backward over a global batch, one all-reduce, the optimizer.

The loss of a step is the mean over the targets of the whole global batch, however it is split
over ranks and micro-batches: the sum of losses is divided by the number of targets of the *step*.
DeepSpeed reduces gradients inside the backward pass, so that number must be known before it. The
next step's data is therefore fetched while the device still computes this one, and its number of
targets is summed in the same all-reduce as the losses: one collective per step besides the
reduction of the gradient.

Only `ReducedStats.read` waits for the device; the loop calls it later, while the device is busy
with the next step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from bsmeta.config.learning_rate import RatePlan
from bsmeta.core.signals import StopRequest, WaitEnded
from bsmeta.data.batch import StepData, Stream
from bsmeta.training.corruption import CorruptionCheck
from bsmeta.training.device_copy import copy_to
from bsmeta.training.engines.engine import Engine
from bsmeta.training.optimization import set_learning_rate
from bsmeta.training.profile import Profile
from bsmeta.training.ranks.error_reports import rebuild_error, serialize_error
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.saving import Saver
from bsmeta.training.step_stats import DataStats, ReducedStats, StepResult, StepStats
from bsmeta.training.task import Loss, Task
from bsmeta.training.watchdog import Watchdog


@dataclass(frozen=True)
class _Fetched:
    """Data of the next step; its tensors are on the device, or being copied to it.

    Attributes:
        data: The data on the host.
        wait_s: Seconds that the loop waited for it.
        inputs: Tensors of each micro-batch on the device.
        copied: Recorded when the copies to a GPU are complete; None on a CPU.
    """

    data: StepData
    wait_s: float
    inputs: list[dict[str, torch.Tensor]]
    copied: torch.cuda.Event | None

    def iterate_on_device(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields the tensors of each micro-batch, ready for the device's current stream."""
        if self.copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self.copied)
            for tensors in self.inputs:
                for tensor in tensors.values():
                    tensor.record_stream(stream)  # otherwise its memory would be reused too early

        yield from self.inputs


class StepRunner:
    """Runs the steps of this rank. All ranks call each method together.

    Args:
        corruption: Checks some steps for silent data corruption.
        rates: The learning rate of each step; no data is fetched after the last one.
        stop: Records whether this rank was asked to stop; also ends the wait for data.
        saver: Reports whether a checkpoint of this rank could not be written.
        max_norm: Norm to which gradients are clipped; infinity: no clipping.
        lag: Number of further steps that may start before the statistics of a step are read.
    """

    def __init__(
        self,
        task: Task,
        engine: Engine,
        rates: RatePlan,
        stop: StopRequest,
        saver: Saver,
        watchdog: Watchdog,
        profile: Profile,
        corruption: CorruptionCheck,
        *,
        max_norm: float,
        lag: int,
    ) -> None:
        self._task = task
        self._engine = engine
        self._processes = Processes.of_group(engine.accelerator.device)
        self._rates = rates
        self._last_step = rates.max_steps
        self._max_norm = max_norm
        self._stop = stop
        self._saver = saver
        self._watchdog = watchdog
        self._profile = profile
        self._corruption = corruption

        self._steps: Iterator[StepData] = iter(())
        self._next: _Fetched | None = None
        self._count_names: list[str] = []
        self._error: Exception | None = None
        self._next_targets = torch.zeros((), dtype=torch.float64)

        # A step that begins before the statistics of the last step are read must begin on all ranks
        # or on none.
        self._must_agree = lag > 0 and self._processes.size > 1

        # Copies to a GPU overlap with the computation, from the loader's pinned memory.
        device = self._processes.device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def open(self, stream: Stream) -> None:
        """Starts to read from `stream` at its current position; prefetched data is dropped."""
        self._steps = iter(stream)
        self._next = None

    @property
    def next_data(self) -> StepData | None:
        """The data of the next step; None if it has not been fetched."""
        return None if self._next is None else self._next.data

    def fetch_first(self, step: int) -> StepStats:
        """Fetches the data of a step that no earlier step has prefetched.

        Returns:
            The statistics of all ranks, with `stop` set if a signal ended the wait on any rank.
        """
        fetched = self._fetch(step)
        if self._error is not None:
            raise self._error  # there is no earlier step to complete first
        if not self._all_have_data(step, fetched):
            return StepStats(DataStats(), stop=1.0)

        self._next = fetched
        self._watchdog.enter(f"step {step}: all-reduce", logged=False)
        reduced = ReducedStats(self._processes, self._collect_rank_stats())
        self._next_targets = reduced.next_targets
        return reduced.read()

    def train_step(self, step: int) -> StepResult:
        """Runs one step, and fetches the data of the next; see the module's docstring.

        The data of this step has been fetched by the previous step or by `fetch_first`.
        """
        assert self._next is not None, "fetch_first comes before the first step"
        fetched = self._next

        self._watchdog.step = step - 1
        self._profile.start_if_due(step)
        rate = self._rates.compute_rate(step)
        set_learning_rate(self._engine.optimizer.param_groups, rate)

        losses = self._accumulate_gradients(step, fetched, self._next_targets)
        self._next = None if step == self._last_step else self._prefetch(step + 1)

        with self._enter_phase(step, "all-reduce"):
            norm = self._engine.clip(self._max_norm)
            reduced = ReducedStats(
                self._processes,
                self._collect_rank_stats(),
                losses,
                norm,
                scales_loss=self._engine.scales_loss,
            )
            self._next_targets = reduced.next_targets

        with self._enter_phase(step, "optimizer"):
            is_finite = reduced.loss.isfinite()
            if isinstance(norm, torch.Tensor):
                is_finite = is_finite & norm.isfinite()
            weights_changed = self._engine.step(is_finite)
        self._profile.stop_if_due(step)

        return StepResult(
            step=step,
            data=fetched.data,
            data_wait_s=fetched.wait_s,
            learning_rate=rate,
            losses=[loss.sum for loss in losses],
            reduced=reduced,
            weights_changed=weights_changed,
        )

    def _accumulate_gradients(
        self, step: int, fetched: _Fetched, targets: torch.Tensor
    ) -> list[Loss]:
        """Runs forward and backward passes; returns the detached loss of each micro-batch.

        Args:
            targets: Number of targets of the global batch, which the gradient is divided by.
        """
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        num_micro_batches = self._processes.size * len(fetched.inputs)
        scale = (num_micro_batches / targets.clamp(min=1.0)).float()

        engine = self._engine
        engine.model.train()
        losses = []
        inputs = [*fetched.iterate_on_device()]
        if self._corruption.is_due(step):
            with self._enter_phase(step, "check for corruption"):
                self._corruption.check(step, inputs[0])

        for batch, tensors in zip(fetched.data.micro_batches, inputs, strict=True):
            with engine.accelerator.accumulate(engine.model):
                with self._enter_phase(step, "forward pass"), engine.accelerator.autocast():
                    loss = self._task.loss(engine.model, tensors)
                    if batch.weight == 0:  # contributes neither loss nor gradient
                        loss = loss.without_targets()
                with self._enter_phase(step, "backward pass"):
                    engine.accelerator.backward(loss.sum * scale)
            losses.append(loss.detached())
        return losses

    def raise_error(self) -> None:
        """Raises the error that left a rank without data, on every rank. All ranks call it."""
        error_of_this_rank = None if self._error is None else serialize_error(self._error)
        errors_by_rank = self._processes.gather(error_of_this_rank)
        if self._error is not None:
            raise self._error

        for rank, error in enumerate(errors_by_rank):
            if error is not None:
                raise rebuild_error(rank, error)

    def _collect_rank_stats(self) -> StepStats:
        """Returns this rank's contribution to the all-reduce, except losses and gradient norm."""
        if self._next is not None:
            data = DataStats.of(self._next.data)
            self._count_names = list(data.counts)
        else:  # other ranks may have data, and all must sum counts of the same names
            data = DataStats(counts=dict.fromkeys(self._count_names, 0.0))

        return StepStats(
            next_data=data,
            stop=float(self._stop.name is not None),
            save_failed=float(self._saver.has_failed),
            out_of_data=float(self._error is not None),
        )

    def _prefetch(self, step: int) -> _Fetched | None:
        """Fetches the data of the next step; None if the run has to end before that step."""
        fetched = self._fetch(step)
        if self._must_agree and not self._all_have_data(step, fetched):
            return None
        return fetched

    def _all_have_data(self, step: int, fetched: _Fetched | None) -> bool:
        """Whether every rank has fetched the data of a step."""
        self._watchdog.enter(f"step {step}: waiting for the data of the other ranks", logged=False)
        return self._processes.is_true_on_all(fetched is not None)

    def _fetch(self, step: int) -> _Fetched | None:
        """Fetches the next step of the stream, and starts its copy to the device.

        Returns None if a signal arrived while this rank waited, or if the data cannot be read. The
        error is kept for `raise_error`, because the previous step is completed and saved first.
        """
        try:
            with self._enter_phase(step, "waiting for data"), self._stop.end_wait_on_signal():
                began = time.perf_counter()
                data = next(self._steps)
                wait_s = time.perf_counter() - began
        except WaitEnded:
            return None
        except Exception as error:
            self._error = self._watchdog.name_dead_loader(error)
            return None

        inputs, copied = self._start_copies(data)
        return _Fetched(data, wait_s, inputs, copied)

    def _start_copies(
        self, data: StepData
    ) -> tuple[list[dict[str, torch.Tensor]], torch.cuda.Event | None]:
        """Starts to copy the micro-batches; also returns the event after the copies on a GPU."""
        device = self._processes.device
        inputs = []
        copied = None
        with torch.cuda.stream(self._copies):  # no effect on a CPU
            for batch in data.micro_batches:
                tensors = {name: copy_to(device, value) for name, value in batch.tensors.items()}
                inputs.append(tensors)
            if self._copies is not None:
                copied = self._copies.record_event()
        return inputs, copied

    def _enter_phase(self, step: int, phase: str) -> AbstractContextManager[Any]:
        """Names the current phase of the loop for the watchdog and the trace."""
        self._watchdog.enter(f"step {step}: {phase}", logged=False)
        return self._profile.mark_range(phase)

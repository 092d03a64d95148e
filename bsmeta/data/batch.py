"""The interface between streams and the training loop.

For each step, a stream yields the micro-batches of one rank and the state to resume after the step.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

_PR_SET_PDEATHSIG = 1  # prctl(2): sets the signal that the kernel sends when the parent exits


@dataclass(slots=True)
class MicroBatch:
    """The input of one forward pass on one rank.

    Attributes:
        tensors: Inputs of `Task.loss`, on the host; the trainer moves them to the device.
        weight: Number of targets: the loss of a step is its summed loss over its summed weight.
            A micro-batch of weight 0 contributes neither loss nor gradient.
        tokens: Number of tokens that are not padding.
        padding: Number of tokens that are padding.
        documents: Names of the documents (or source rows) with tokens in the micro-batch.
        targets: A hash of the target tokens, the same in runs on the same text; "" if the order of
            the targets is undefined.
        counts: Additional sums for the log, by name; every micro-batch of a run has the same names.
    """

    tensors: dict[str, torch.Tensor]
    weight: float
    tokens: int
    padding: int = 0
    documents: list[str] = field(default_factory=list)
    targets: str = ""
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepData:
    """One step of one rank.

    Attributes:
        micro_batches: `gradient_accumulation_steps` micro-batches, in every step and on every
            rank; their number of rows may vary.
        state: The position of this rank's part of the stream after the step, as JSON types.
        phase: Index of the data phase that the step belongs to; sums of `MicroBatch.counts` are
            reported per phase.
    """

    micro_batches: list[MicroBatch]
    state: dict[str, Any]
    phase: int = 0


class Stream(Protocol):
    """A resumable, endless source of this rank's steps."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that must be unchanged to resume from a state (shards, tokenizer, …)."""

    @property
    def state(self) -> dict[str, Any]:
        """This rank's state before its first step."""

    def __iter__(self) -> Iterator[StepData]:
        """Yields the steps after `state`."""

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merges the states of all ranks after a step into a run state usable by any world size."""


def set_up_worker(_: int) -> None:
    """Sets up garbage collection and signals in a loader process.

    Schedulers signal every process of a job, but only the trainer may stop the job, because it must
    save first. So a loader process ignores signals from other processes, and does not run the
    handlers inherited from the trainer. It ends at a SIGTERM from the trainer, and when the trainer
    exits, which a process that waits for data would not notice for minutes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    gc.enable()  # the trainer may have disabled it for its loop
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork

    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)

    # SIGTERM is blocked, so that it stays pending for the thread below. It is also ignored, because
    # a library's thread that does not block it would otherwise receive it and end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_trainer, daemon=True).start()


def _end_with_the_trainer() -> None:
    """Waits for a SIGTERM from the trainer, then ends this process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)

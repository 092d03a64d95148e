"""What a stream yields: the micro-batches of one step of one rank, and the data state after it.

The contract between all streams and the training loop; both know nothing else of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class MicroBatch:
    """What one rank feeds to the model at once.

    Attributes:
        tensors: What `Task.loss` gets, on the host; the trainer moves them to the device.
        weight: Number of targets: the loss of a step is its sum of losses over its sum of weights.
            A micro-batch of weight 0 contributes neither loss nor gradient.
        tokens: Number of tokens that are not padding.
        padding: Number of tokens that are padding.
        documents: Names of the documents (or source rows) with a part in it.
        counts: Further sums for the log; the same names in every micro-batch of a run.
    """

    tensors: dict[str, torch.Tensor]
    weight: float
    tokens: int
    padding: int = 0
    documents: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepData:
    """One step of one rank.

    Attributes:
        micro_batches: As many in every step and on every rank (`gradient_accumulation_steps`); the
            number of rows in them may vary.
        state: JSON-able: where this rank's part of the stream stands after the step.
        phase: Number of the phase of the data, from 0, that the step belongs to; sums of
            `MicroBatch.counts` are reported per phase.
    """

    micro_batches: list[MicroBatch]
    state: dict[str, Any]
    phase: int = 0


class Stream(Protocol):
    """A resumable source of this rank's steps that never ends."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a state to be usable (the shards, the tokenizer, …)."""

    @property
    def state(self) -> dict[str, Any]:
        """This rank's state before its first step."""

    def __iter__(self) -> Iterator[StepData]:
        """The steps from the state on."""

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of the run, usable by any world size, from those of all ranks after a step."""

"""What a stream yields: the micro-batches of one step of one rank, and the data state after it.

The contract between all streams and the training loop, which share nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class MicroBatch:
    """The input of one forward pass on one rank.

    Attributes:
        tensors: Inputs of `Task.loss`, on the host; the trainer moves them to the device.
        weight: Number of targets: the loss of a step is its summed loss over its summed weight.
            A micro-batch of weight 0 contributes neither loss nor gradient.
        tokens: Number of tokens that are not padding.
        padding: Number of tokens that are padding.
        documents: Names of the documents (or source rows) that contribute to it.
        targets: A hash of what it is trained to predict, where the order of that is known; runs on
            the same text have the same.
        counts: Additional sums for the log; the same names in every micro-batch of a run.
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
        micro_batches: The same number in every step and on every rank
            (`gradient_accumulation_steps`); the number of rows in them may vary.
        state: The position of this rank's part of the stream after the step; JSON-serializable.
        phase: Number of the data phase that the step belongs to, from 0; sums of
            `MicroBatch.counts` are reported per phase.
    """

    micro_batches: list[MicroBatch]
    state: dict[str, Any]
    phase: int = 0


class Stream(Protocol):
    """A resumable, endless source of this rank's steps."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The facts that must be equal for a state to be usable (shards, tokenizer, …)."""

    @property
    def state(self) -> dict[str, Any]:
        """This rank's state before its first step."""

    def __iter__(self) -> Iterator[StepData]:
        """The steps that follow the state."""

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the states of all ranks after a step into a run state usable by any world size."""

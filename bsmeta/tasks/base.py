"""The contract between the trainer and a task: what the trainer is given, and all that it knows.

The weight of a micro-batch (the number of its targets) must be known before its backward pass: the
loss of a step is the mean over the *global* batch, and DeepSpeed reduces gradients inside the
backward pass, where no later division could reach them. So the batch carries its weight, and
`loss` returns a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn


class MicroBatch(Protocol):
    """The part of a step that one rank feeds to the model at once."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What `Task.loss` gets, moved to the device."""

    @property
    def weight(self) -> float:
        """Number of targets: the loss of the step is the sum of losses over the sum of weights."""

    @property
    def tokens(self) -> int:
        """Number of tokens that are not padding."""

    @property
    def padding(self) -> int:
        """Number of tokens that are padding."""

    @property
    def documents(self) -> list[str]:
        """Names of the documents with a part in this batch."""

    @property
    def states(self) -> dict[int, dict[str, Any]]:
        """The state of each stream after its last sequence in this batch."""

    @property
    def counts(self) -> dict[str, float]:
        """Further sums to be logged, with the same keys in every batch of a run."""


class Stream(Protocol):
    """An endless, resumable source of this rank's micro-batches."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a state to be usable (the shards, the tokenizer, …)."""

    def phase(self, step: int) -> int:
        """The number of the phase, from 0, that the data of a step (from 1) belongs to."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """The micro-batches from the stream's state on."""


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        sum: Scalar tensor: the sum of the losses of all targets, in nats.
        parts: Named parts of it: (sum, weight), both scalar tensors; the same names in every batch.
    """

    sum: torch.Tensor
    parts: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationContext:
    """What an evaluation needs to know of the processes that run it together."""

    rank: int
    world_size: int
    device: torch.device
    gather: Callable[[Any], list[Any]]


class Task(Protocol):
    """What the trainer is given."""

    def build_model(self) -> nn.Module:
        """The model to train, on the CPU; called once, after the processes have started."""

    def shape(self) -> nn.Module:
        """The model without weights, on the meta device: to be counted, not called."""

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Stream:
        """The stream of this rank, from a saved data state or from the beginning.

        Raises:
            ConfigurationError: If the state belongs to other data.
        """

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """The forward pass of one micro-batch."""

    def evaluate(self, model: nn.Module, context: EvaluationContext) -> dict[str, float]:
        """Figures on held-out data; every rank calls it and gets the same."""

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """What the model was to see beside what it saw; {} where there is nothing to tell.

        Args:
            counts: The sums of `MicroBatch.counts` over all ranks since the phase began.
            phase: The phase of the data.
        """

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Writes the model in the form that others load (called on rank 0)."""

"""The contract between the trainer and a task.

A task has a model, a stream and a loss. Everything else is a capability: a method that a task has
or does not have, which the trainer and the entry points ask for by the protocols below.

The weight of a micro-batch (the number of its targets) must be known before its backward pass: the
loss of a step is the mean over the *global* batch, and DeepSpeed reduces gradients inside the
backward pass, where no later division could reach them. So the batch carries its weight, and `loss`
returns a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from bsmeta.data.batch import Stream


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        sum: Scalar tensor: the sum of the losses of all targets, in nats.
        parts: Named parts of it: (sum, weight), both scalar tensors; the same names in every
            micro-batch of a run.
    """

    sum: torch.Tensor
    parts: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def without_targets(self) -> Loss:
        """The same with every value 0, still attached to the graph."""
        parts = {name: (total * 0, weight * 0) for name, (total, weight) in self.parts.items()}
        return Loss(self.sum * 0, parts)

    def detached(self) -> Loss:
        """The same without the graph."""
        parts = {name: (total.detach(), weight) for name, (total, weight) in self.parts.items()}
        return Loss(self.sum.detach(), parts)


@dataclass(frozen=True)
class Metric:
    """One number of an evaluation.

    Attributes:
        name: As `metrics.jsonl` and `keep_best_by` name it.
        value: NaN where it is not defined.
        better: The direction of a better model; None where there is none (a count).
        split: What it was measured on.
    """

    name: str
    value: float
    better: Literal["min", "max"] | None = "min"
    split: str = "validation"


@dataclass(frozen=True)
class EvaluationContext:
    """What an evaluation needs to know of the processes that run it together.

    Attributes:
        rank: This process.
        world_size: Number of processes.
        device: Where the model is.
        gather: The values of all ranks, in their order, on every rank.
    """

    rank: int
    world_size: int
    device: torch.device
    gather: Callable[[Any], list[Any]]


@dataclass(frozen=True)
class FinishContext(EvaluationContext):
    """What a task needs after the last step.

    Attributes:
        folder: The run folder.
        best: The best checkpoint by `keep_best_by`, where there is one.
    """

    folder: Path
    best: Path | None


class Task(Protocol):
    """What the trainer requires."""

    def build_model(self) -> nn.Module:
        """The model to train, on the CPU; called once, after the processes have started."""

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Stream:
        """The stream of this rank, from a saved data state or from the beginning.

        Raises:
            ConfigurationError: If the state belongs to other data.
        """

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """The forward pass of one micro-batch."""


@runtime_checkable
class Evaluates(Protocol):
    """A task that measures its model during training."""

    def evaluate(self, model: nn.Module, context: EvaluationContext) -> list[Metric]:
        """Metrics on held-out data; every rank calls it and gets the same."""


@runtime_checkable
class ReportsExposure(Protocol):
    """A task whose data has phases with shares that can be compared with what was configured."""

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """Configured beside realized shares; {} where nothing was counted.

        Args:
            counts: The sums of `MicroBatch.counts` over all ranks since the phase began.
            phase: The phase of the data.
        """


@runtime_checkable
class HasEpochs(Protocol):
    """A task on a finite table, whose runs may be measured in epochs."""

    def steps_per_epoch(self, world_size: int) -> int:
        """Steps that train on every row once."""


@runtime_checkable
class Exports(Protocol):
    """A task whose model others can load."""

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        """Writes the model in the form that others load (called on rank 0)."""


@runtime_checkable
class Finishes(Protocol):
    """A task that has work after the last step: a test split, predictions, artifacts."""

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Called on every rank after the last step, once."""


@dataclass(frozen=True)
class Shape:
    """What memory and speed are estimated from.

    Attributes:
        model: The model without weights, on the meta device: to be counted, not called.
        rows: Rows of a micro-batch.
        length: Tokens of a row.
        keeps_scores: Whether attention keeps its scores for the backward pass.
        recompute_every: With recomputation, one hidden state is kept for so many layers.
        loss_chunk: Logits that exist at one time; 0: all of a micro-batch.
    """

    model: nn.Module
    rows: int
    length: int
    keeps_scores: bool = False
    recompute_every: int = 1
    loss_chunk: int = 0


@runtime_checkable
class HasShape(Protocol):
    """A task whose memory and speed can be estimated before anything is loaded."""

    def shape(self) -> Shape:
        """Model and micro-batch."""


@runtime_checkable
class CountsFlops(Protocol):
    """A task whose model does not take 6 FLOPs a parameter and token (the default)."""

    def flops_per_token(self, model: nn.Module) -> float:
        """FLOPs of the forward and backward pass of one token."""


@runtime_checkable
class Predicts(Protocol):
    """A task whose exported model is used on new records."""

    def load(self, folder: Path) -> nn.Module:
        """The exported model."""

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """One result a record, in their order."""

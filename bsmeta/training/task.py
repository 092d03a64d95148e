"""The contract between the trainer and a task, and how a task runs a model on all processes.

A task has a model, a stream and a loss. Everything else is optional: a method with a default, or a
capability that the trainer and the entry points detect through the protocols below.

The weight of a micro-batch (the number of its targets) must be known before its backward pass: the
loss of a step is the mean over the *global* batch, and DeepSpeed reduces gradients inside the
backward pass, so they cannot be divided later. So the batch carries its weight, and `loss` returns
a sum.

`spread` runs a model on many items, in batches that the processes share, and every rank gets all
results. The batches depend on the items only, not on the number of processes, and each rank runs
the model equally often: under ZeRO-3 the ranks gather the weights together.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import nn

from bsmeta.core.progress import report_progress
from bsmeta.data.batch import Stream
from bsmeta.training.processes import FinishContext, Processes

Item = TypeVar("Item")

LOG_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        sum: Scalar tensor: the sum of the losses of all targets, in nats.
        parts: Named parts of the loss: (sum, weight), both scalar tensors; with the same names in
            every micro-batch of a run.
    """

    sum: torch.Tensor
    parts: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def without_targets(self) -> Loss:
        """Returns the loss with every value 0, still attached to the graph."""
        parts = {name: (total * 0, weight * 0) for name, (total, weight) in self.parts.items()}
        return Loss(self.sum * 0, parts)

    def detached(self) -> Loss:
        """Returns the loss detached from the graph."""
        parts = {name: (total.detach(), weight) for name, (total, weight) in self.parts.items()}
        return Loss(self.sum.detach(), parts)


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation.

    Attributes:
        name: Its name in `metrics.jsonl` and `keep_best_by`.
        value: NaN if undefined.
        better: Whether lower or higher is better; None if neither (a count).
    """

    name: str
    value: float
    better: Literal["min", "max"] | None = "min"
    split: str = "validation"

    @property
    def cost(self) -> float:
        """The value, negated if higher values are better."""
        return -self.value if self.better == "max" else self.value


@dataclass(frozen=True)
class Shape:
    """The model and micro-batch from which memory and speed are estimated.

    Attributes:
        model: The model without weights, on the meta device: its parameters are counted.
        body: The part of it that makes hidden states from ids; it is called without values.
        layers: The layers of the body, which can be recomputed.
        length: Tokens per row.
        outputs: Logits per token.
        recompute_every: The n of "recompute every n-th layer", where layers are recomputed.
        loss_chunk: Maximum number of logits that exist at once; 0: all of a micro-batch.
    """

    model: nn.Module
    body: nn.Module
    layers: list[nn.Module]
    rows: int
    length: int
    outputs: int
    recompute_every: int = 1
    loss_chunk: int = 0


class Task(ABC):
    """What the trainer requires of every task; methods with a default are optional."""

    shape_needs_no_data: ClassVar[bool] = False
    """Whether `shape` reads no data and writes nothing, so that every start can print the memory
    that the run needs."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Builds the model to train, on the CPU; called once, after the processes have started."""

    def rehearse(self, model: nn.Module) -> None:
        """Tries what the run does with its model later, such as its export.

        Called on rank 0, on the CPU, before the engine takes the model, which stays as it is.

        Raises:
            UserError: If it would fail, which then ends the run before its first step.
        """

    @abstractmethod
    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Stream:
        """Opens the stream of this rank, from a saved data state or from the beginning.

        Raises:
            ConfigurationError: If the state belongs to different data.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Runs the forward pass of one micro-batch."""

    def shape(self) -> Shape | None:
        """Describes model and micro-batch for an estimate; None: they cannot be before loading."""
        return None

    def steps_per_epoch(self, world_size: int) -> int | None:
        """Steps that train on every row of a finite table once; 0: the run trains nothing by steps.

        None: the runs of the task cannot be measured in epochs.
        """
        return None

    def survey(self) -> Any:
        """Looks at the data on rank 0 for all, before the streams are opened; picklable."""

    def use_survey(self, survey: Any) -> None:
        """Takes the result of rank 0, for the next `train_stream`."""

    def rate_scale(self, name: str) -> float:
        """The share of the learning rate that a parameter has, by its name."""
        return 1.0

    def flops_per_token(self, model: nn.Module) -> float:
        """FLOPs of the forward and backward pass of one token."""
        return flops_per_token(model)

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Computes metrics on held-out data; every rank calls it and gets the same result."""
        return []

    def state(self) -> Any:
        """What evaluations have chosen, such as a threshold: JSON, and the same on every rank."""

    def restore(self, state: Any) -> None:
        """Takes the state of the checkpoint that a run resumes from or rolls back to."""

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """Compares configured with realized shares of the data in a phase; {} if none are known.

        `counts` are the sums of `MicroBatch.counts` over all ranks since the phase began.
        """
        return {}

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Does the work after the last step, on every rank: a test split, predictions."""
        return []

    def complete(self, folder: Path) -> None:
        """Changes the exported model of the finished run (called on rank 0 after `finish`)."""


def flops_per_token(model: nn.Module) -> float:
    """Forward and backward FLOPs of one token: 6 per parameter (Kaplan et al. 2020, section 2.1).

    Embeddings that are only looked up do not count; one that is also the output layer does.
    Attention over the context is left out: documents packed into a sequence do not attend to each
    other, so it depends on their lengths. The true utilization is therefore slightly higher.
    """
    looked_up: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        into = looked_up if isinstance(module, nn.Embedding) else others
        into.update(id(parameter) for parameter in module.parameters(recurse=False))
    # Under ZeRO-3 a parameter is a shard here, and its full size is in ds_numel.
    return 6.0 * sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if id(parameter) in others or id(parameter) not in looked_up
    )


@runtime_checkable
class Exports(Protocol):
    """A task that writes its model in the form that other programs load (called on rank 0)."""

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None: ...


@runtime_checkable
class ChangesText(Protocol):
    """A task whose exported model finds or corrects parts of a text."""

    forms: tuple[str, ...]
    """How `predict.py` can show them: `color`, `json`; of corrections, also `text` and `diff`."""

    def load(self, folder: Path) -> nn.Module: ...

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Any]]:
        """The parts of each text, in order, with their character offsets."""


@runtime_checkable
class PredictsFromData(Protocol):
    """A task whose predictions also depend on data outside its model, such as a table.

    The fingerprint, JSON-serializable, identifies the content of these data.
    """

    def data_fingerprint(self) -> Any: ...


@runtime_checkable
class ChecksRecords(Protocol):
    """A task whose records have more than texts, which may be invalid."""

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Raises DataError if a record with all texts of `inputs` cannot be predicted."""


@runtime_checkable
class Predicts(Protocol):
    """A task whose exported model, which `load` opens, can be applied to new records."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The keys that a record must have, with a text each."""

    def load(self, folder: Path) -> nn.Module: ...

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields one result per record, in the order of the records."""


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of `size`, in their order; the last list has the rest."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def batches_of(lengths: Sequence[int] | np.ndarray, size: int) -> list[np.ndarray]:
    """The numbers of the items by their length, `size` to a batch."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def batches_within(lengths: Sequence[int] | np.ndarray, budget: int) -> list[np.ndarray]:
    """The numbers of the items by their length, in batches of at most `budget` padded tokens.

    A longer item is a batch by itself.
    """
    order = np.argsort(lengths, kind="stable")
    found, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > budget:
            found.append(order[start:end])
            start = end
    return found


def spread(
    batches: Sequence[np.ndarray],
    run: Callable[[np.ndarray], Sequence[Any] | np.ndarray],
    context: Processes,
) -> list[Any]:
    """The result of each item, in their order.

    Args:
        batches: The numbers of the items of each batch; every item is in one.
        run: Returns the results of a batch of items, given their numbers.
    """
    own: dict[int, Sequence[Any] | np.ndarray] = {}
    last = time.monotonic()
    for start in range(0, len(batches), context.size):
        turn = start + context.rank
        results = run(batches[min(turn, len(batches) - 1)])
        report_progress()
        if turn < len(batches):
            own[turn] = results
        if context.rank == 0 and time.monotonic() - last > LOG_INTERVAL_S:
            last = time.monotonic()
            logger.info("scoring: %d of %d batches", start, len(batches))
    found: list[Any] = [None] * sum(map(len, batches))
    for part in context.gather(own):
        for turn, results in part.items():
            for item, result in zip(batches[turn].tolist(), results, strict=True):
                found[item] = result
    return found

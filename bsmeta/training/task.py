"""The contract between the trainer and a task, and how a task runs a model on all processes.

A task has a model, a stream and a loss. Everything else is optional: a method with a default, or a
capability that the trainer and the entry points detect through the protocols below.

The weight of a micro-batch (the number of its targets) must be known before its backward pass: the
loss of a step is the mean over the *global* batch, and DeepSpeed reduces gradients inside the
backward pass, so they cannot be divided later. The batch therefore carries its weight, and `loss`
returns a sum.

`run_on_all_ranks` runs a model on many items, in batches that are divided among the ranks, and
every rank gets all results. The batches depend on the items only, not on the number of processes.
Each rank runs the model equally often, because under ZeRO-3 the ranks gather the weights together.
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
from bsmeta.training.ranks.processes import FinishContext, Processes

Item = TypeVar("Item")

LOG_INTERVAL_S = 10.0
"""Seconds between two lines of the log while `run_on_all_ranks` runs."""

MAX_PADDING_SHARE = 0.05
"""Padding of a batch of `sort_into_tight_batches`, as a share of its other tokens."""
FREE_PADDING = 32
"""Tokens of padding in such a batch that are allowed at any share, because each call of a model has
a cost of its own, which short items would not repay."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        sum: Scalar tensor: the sum of the losses of all targets, in nats.
        parts: Named parts of the loss: (sum, weight), both scalar tensors. Every micro-batch of a
            run has the same names.
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
        body: The part of the model that computes hidden states from ids; called on fake tensors.
        layers: The layers of the body, which can be recomputed.
        rows: Rows of a micro-batch.
        length: Tokens per row.
        outputs: Logits per token.
        recompute_every: With gradient_checkpointing, every n-th layer is recomputed.
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


@dataclass(frozen=True)
class BaseModel:
    """The pretrained model whose frozen weights checkpoints reference, and do not hold.

    Attributes:
        setting: Key and value that name it, for messages: `model_name=gpt2`.
        revision: Its commit on the Hub; None for a folder.
    """

    setting: str
    revision: str | None


class Task(ABC):
    """Base class of every task; methods with a default are optional."""

    shape_needs_no_data: ClassVar[bool] = False
    """Whether `shape` reads no data and writes nothing: every start then prints the memory that the
    run needs."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Builds the model to train, on the CPU; called once, after the processes have started."""

    def base_model(self, model: nn.Module) -> BaseModel | None:
        """Returns the pretrained model that the frozen weights of `model` are loaded from.

        Each start loads them again. None: checkpoints hold all weights, frozen ones included.
        """
        return None

    def rehearse(self, model: nn.Module) -> None:
        """Tries later operations on the model, such as its export.

        Called on rank 0, on the CPU, before the engine takes the model, which stays unchanged.

        Raises:
            UserError: If an operation fails; the run then ends before its first step.
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
        """Describes model and micro-batch for an estimate; None if unknown before loading."""
        return None

    def steps_per_epoch(self, world_size: int) -> int | None:
        """Returns the number of steps in one pass over a finite table.

        0: the run takes no optimizer steps. None: the task has no epochs.
        """
        return None

    def survey(self) -> Any:
        """Surveys the data on rank 0 before the streams are opened; returns a picklable result."""

    def use_survey(self, survey: Any) -> None:
        """Receives the survey of rank 0 on every rank, for the next `train_stream`."""

    def rate_scale(self, name: str) -> float:
        """Returns the learning-rate multiplier of the parameter with this name."""
        return 1.0

    def flops_per_token(self, model: nn.Module) -> float:
        """Returns the FLOPs of the forward and backward pass of one token."""
        return compute_flops_per_token(model)

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Computes metrics on held-out data; every rank calls it and gets the same result."""
        return []

    def state(self) -> Any:
        """Returns values chosen by evaluations, such as a threshold, for a checkpoint.

        JSON-serializable, and the same on every rank.
        """

    def restore(self, state: Any) -> None:
        """Restores the state from the checkpoint that a run resumes from or rolls back to."""

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """Compares configured with realized shares of the data in a phase; {} if there are none.

        Args:
            counts: Sums of `MicroBatch.counts` over all ranks since the phase began.
        """
        return {}

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Runs on every rank after the last step, to evaluate a test split or to predict.

        Returns the metrics of the test split, if any.
        """
        return []

    def finalize_export(self, folder: Path) -> None:
        """Hook that may modify the exported model; called on rank 0 after `finish`."""


def compute_flops_per_token(model: nn.Module) -> float:
    """Returns FLOPs per token, forward and backward: 6 per parameter (Kaplan et al. 2020, 2.1).

    Embeddings that are only looked up do not count, unless they are also the output layer.
    Attention over the context is left out: documents packed into a sequence do not attend to each
    other, so it depends on their lengths. The true utilization is therefore slightly higher.
    """
    embeddings: set[int] = set()
    multiplied: set[int] = set()
    for module in model.modules():
        parameters = embeddings if isinstance(module, nn.Embedding) else multiplied
        parameters.update(id(parameter) for parameter in module.parameters(recurse=False))

    # Under ZeRO-3 a parameter is a shard here, and its full size is in ds_numel.
    return 6.0 * sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if id(parameter) in multiplied or id(parameter) not in embeddings
    )


@runtime_checkable
class Exports(Protocol):
    """A task that exports its model for other programs (called on rank 0)."""

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None: ...


@runtime_checkable
class ChangesText(Protocol):
    """A task whose exported model finds or corrects parts of a text."""

    forms: tuple[str, ...]
    """Output forms of `predict.py`: `color`, `json`; for corrections also `text` and `diff`."""

    def load(self, folder: Path) -> nn.Module: ...

    def changes(self, model: nn.Module, texts: Sequence[str]) -> list[list[Any]]:
        """Returns the changed parts of each text, in order, with their character offsets."""


@runtime_checkable
class WarnsOfScripts(Protocol):
    """A task whose exported model may skip words in scripts that it does not know."""

    def warn_of_unknown_scripts(self, texts: Iterable[str]) -> None:
        """Logs the number of skipped words in `texts`, if any."""


@runtime_checkable
class PredictsFromData(Protocol):
    """A task whose predictions also depend on data outside its model, such as a table."""

    def data_fingerprint(self) -> Any:
        """Returns a JSON-serializable value that identifies the content of these data."""


@runtime_checkable
class ChecksRecords(Protocol):
    """A task whose records have values other than texts, which may be invalid."""

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Checks a record that has all texts of `inputs`.

        Raises:
            DataError: If the task cannot predict it.
        """


@runtime_checkable
class Predicts(Protocol):
    """A task whose exported model can be loaded and applied to new records."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Keys of a record that must hold a text."""

    def load(self, folder: Path) -> nn.Module: ...

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields one result per record, in the order of the records."""


def split_into_lists(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of `size`, in their order; the last list may be shorter."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def sort_into_batches(lengths: Sequence[int] | np.ndarray, size: int) -> list[np.ndarray]:
    """Sorts items by length (stable), and returns their indices in batches of `size`."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def sort_into_budgeted_batches(
    lengths: Sequence[int] | np.ndarray, budget: int
) -> list[np.ndarray]:
    """Sorts items by length, and returns their indices in batches of at most `budget` tokens.

    Padding counts. An item that is longer than the budget is a batch by itself.
    """
    order = np.argsort(lengths, kind="stable")
    batches = []
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > budget:
            batches.append(order[start:end])
            start = end
    return batches


def sort_into_tight_batches(lengths: Sequence[int] | np.ndarray, size: int) -> list[np.ndarray]:
    """Sorts items by length, and returns their indices in batches of up to `size`, little padded.

    The padding of a batch is at most `MAX_PADDING_SHARE` of its other tokens, or `FREE_PADDING`,
    whichever is more.
    """
    order = np.argsort(lengths, kind="stable")
    batches = []
    start = 0
    tokens = 0
    for end, item in enumerate(order):
        length = int(lengths[item])
        padding = length * (end - start) - tokens
        limit = max(FREE_PADDING, MAX_PADDING_SHARE * (tokens + length))
        if end > start and (end - start == size or padding > limit):
            batches.append(order[start:end])
            start = end
            tokens = 0
        tokens += length

    if start < len(order):
        batches.append(order[start:])
    return batches


def run_on_all_ranks(
    batches: Sequence[np.ndarray],
    run: Callable[[np.ndarray], Sequence[Any] | np.ndarray],
    context: Processes,
) -> list[Any]:
    """Divides batches among the ranks; returns the results of all items, in the items' order.

    All ranks call it, and get all results. Each rank calls `run` equally often: a rank without a
    batch of its own in the last round repeats the last batch and drops the results.

    Args:
        batches: The indices of the items in each batch; every item is in exactly one batch.
        run: Returns the results of the items with the given indices.
    """
    results_of_rank: dict[int, Sequence[Any] | np.ndarray] = {}
    last_logged = time.monotonic()
    for first_of_round in range(0, len(batches), context.size):
        number = first_of_round + context.rank
        results = run(batches[min(number, len(batches) - 1)])
        report_progress()
        if number < len(batches):
            results_of_rank[number] = results
        if context.rank == 0 and time.monotonic() - last_logged > LOG_INTERVAL_S:
            last_logged = time.monotonic()
            logger.info("scoring: %d of %d batches", first_of_round, len(batches))

    num_items = sum(len(batch) for batch in batches)
    results_by_item: list[Any] = [None] * num_items
    for results_by_batch in context.gather(results_of_rank):
        for number, results in results_by_batch.items():
            for item, result in zip(batches[number].tolist(), results, strict=True):
                results_by_item[item] = result
    return results_by_item

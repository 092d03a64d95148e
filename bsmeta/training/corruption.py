"""A guard against silent data corruption: hardware that computes or stores wrong numbers.

Before every `corruption_check_steps`-th step, its first micro-batch is computed twice with the same
random numbers, and the losses and gradients must be equal bit for bit. Where every process holds
all weights (data parallel, and ZeRO up to stage 2), the weights must also be equal on all ranks.

Under FSDP2 and ZeRO-3, a process holds only its shard of the weights, and a backward pass would
reduce the gradients over all ranks. There, only the forward pass is computed twice.

Numbers are compared by their checksums: the sum of their bits, read as integers, modulo 2**64. A
single flipped bit always changes that sum.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bsmeta.core.errors import TrainingError
from bsmeta.training.checkpoints.rng import capture_rng, set_rng
from bsmeta.training.engines.engine import Engine
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Task

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by their size in bytes."""

_LOSS = ""
"""Key of the loss among the checksums of gradients by parameter."""

_MAX_NAMES = 3
"""How many names of tensors a message lists."""


@dataclass(frozen=True)
class _Report:
    """The result of a check on one rank.

    Attributes:
        host: Name of the machine.
        difference: How two computations differ; "" if they are equal.
        weights: Checksums of the weights; [] if this rank holds only a shard.
    """

    host: str
    difference: str
    weights: list[int]


class CorruptionCheck:
    """Computes a micro-batch twice at regular steps. All ranks call each method together.

    Args:
        interval: Steps between two checks; 0: none.
    """

    def __init__(self, task: Task, engine: Engine, processes: Processes, interval: int) -> None:
        self._task = task
        self._engine = engine
        self._processes = processes
        self._interval = interval
        self._last_passed = 0  # step of the last check that found no difference

        named = [*engine.unwrapped_model.named_parameters()]
        self._names = [name for name, _ in named]
        self._trained = {name: weight for name, weight in named if weight.requires_grad}

    def is_due(self, step: int) -> bool:
        """Whether a micro-batch of this step is to be checked."""
        return self._interval > 0 and step % self._interval == 0

    def check(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Computes a micro-batch twice, and compares the results and the weights of all ranks.

        The step itself comes later: its gradients and its random numbers do not change.

        Raises:
            TrainingError: On every rank, if the results or the weights differ on any rank.
        """
        compute = self._compute_gradients
        if not self._engine.holds_all_weights:
            compute = self._compute_loss

        generators = capture_rng(self._processes.device)
        first_checksums = compute(tensors)
        set_rng(generators, self._processes.device)
        second_checksums = compute(tensors)
        set_rng(generators, self._processes.device)

        difference = _describe_difference(first_checksums, second_checksums)
        report = _Report(socket.gethostname(), difference, self._compute_weight_checksums())
        reports = self._processes.gather(report)
        problems = [*_describe_computations(reports), *_describe_weights(reports, self._names)]
        if problems:
            raise TrainingError(self._explain(step, problems))
        self._last_passed = step

    def _compute_gradients(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the checksums of the loss and of each gradient, by name.

        The gradients are not added to those of the step, and no engine reduces them.
        """
        # Data parallel's wrapper would wait for a backward pass that it does not see.
        with self._engine.accelerator.autocast():
            loss = self._task.loss(self._engine.unwrapped_model, tensors).sum
        gradients = torch.autograd.grad(loss, [*self._trained.values()], allow_unused=True)

        named_gradients = zip(self._trained, gradients, strict=True)
        checksums = {
            name: compute_checksum(gradient)
            for name, gradient in named_gradients
            if gradient is not None
        }
        return {_LOSS: compute_checksum(loss), **checksums}

    def _compute_loss(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the checksum of the loss; all ranks gather the shards of the weights."""
        with torch.no_grad(), self._engine.accelerator.autocast():
            loss = self._task.loss(self._engine.model, tensors).sum
        return {_LOSS: compute_checksum(loss)}

    def _compute_weight_checksums(self) -> list[int]:
        """Returns the checksums of all weights, frozen ones included; [] for shards."""
        if not self._engine.holds_all_weights or self._processes.size == 1:
            return []
        weights = self._engine.unwrapped_model.parameters()
        checksums = torch.stack([compute_checksum(weight) for weight in weights])
        values: list[int] = checksums.tolist()
        return values

    def _explain(self, step: int, problems: Sequence[str]) -> str:
        """Returns the message for the user."""
        since = f"after step {self._last_passed}" if self._last_passed else "since the start"
        return (
            f"step {step}: silent data corruption: {'; '.join(problems)}. The device or its memory "
            f"may be faulty: checkpoints {since} may be wrong. Resume on other hardware from an "
            "earlier one. If it happens on all hardware, a kernel does not repeat its results bit "
            "for bit: corruption_check_steps=0"
        )


def compute_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum of a tensor's bits, read as integers: an int64 scalar on its device."""
    numbers = tensor.detach().contiguous()
    return numbers.view(_INTEGERS[numbers.element_size()]).sum(dtype=torch.int64)


def _describe_difference(
    first_checksums: Mapping[str, torch.Tensor], second_checksums: Mapping[str, torch.Tensor]
) -> str:
    """Describes how two computations differ; "" if they are equal."""
    differing = [
        name
        for name, checksum in first_checksums.items()
        if not torch.equal(checksum, second_checksums[name])
    ]
    if _LOSS in differing:
        return "the loss differs"
    if differing:
        gradients = len(first_checksums) - 1
        return f"the gradients differ in {_format_names(differing, gradients)}"
    return ""


def _describe_computations(reports: Sequence[_Report]) -> list[str]:
    """Describes the ranks whose two computations differ."""
    return [
        f"rank {rank} ({report.host}) has computed a micro-batch twice, and {report.difference}"
        for rank, report in enumerate(reports)
        if report.difference
    ]


def _describe_weights(reports: Sequence[_Report], names: Sequence[str]) -> list[str]:
    """Describes the ranks whose weights differ from the majority's.

    Without a majority, as with two ranks, the ranks that differ from rank 0 are described.
    """
    counts = Counter(tuple(report.weights) for report in reports)
    common_weights, count = counts.most_common(1)[0]
    others = "most ranks" if count > len(reports) / 2 else "rank 0"
    expected = common_weights if others == "most ranks" else tuple(reports[0].weights)

    problems = []
    for rank, report in enumerate(reports):
        checksums = zip(expected, report.weights, strict=True)
        is_different = [first != second for first, second in checksums]
        differing = [*itertools.compress(names, is_different)]
        if differing:
            problems.append(
                f"rank {rank} ({report.host}) has other weights than {others} in "
                f"{_format_names(differing, len(names))}"
            )
    return problems


def _format_names(names: Sequence[str], total: int) -> str:
    """Formats the number of parameters and the first of their names."""
    first_names = ", ".join(names[:_MAX_NAMES])
    ellipsis = ", …" if len(names) > _MAX_NAMES else ""
    return f"{len(names)} of {total} parameters ({first_names}{ellipsis})"

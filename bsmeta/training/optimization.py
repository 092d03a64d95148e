"""The course of an optimization: the optimizer, its learning rate, and guards.

The learning rate is a pure function of the step number: it has no state to save, and a resumed run
cannot deviate from it. It is applied to the optimizer's groups before each step, under DeepSpeed as
well, so that neither Accelerate nor DeepSpeed steps a scheduler of its own.

The guards act on non-finite steps, loss spikes and evaluations that no longer improve. They only
use values that are equal on all ranks, so every rank makes the same decision.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import OPTIMIZERS, WSD, RunConfig
from bsmeta.config.steps import decay_start, warm_up_steps
from bsmeta.core.errors import ConfigurationError, TrainingError
from bsmeta.core.secrets import redact
from bsmeta.training.step_stats import StepResult, StepStats
from bsmeta.training.task import Metric

RATE_SCALE = "rate_scale"
"""Key of a parameter group: the factor of its learning rate."""
IN_LAYERS = "in_layers"
"""Whether a parameter group holds matrices of repeated layers that are apart from the others."""
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Factor of the learning rate after a given share of the decay."""


def build_optimizer(
    model: nn.Module, config: RunConfig, rate_scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """Builds the optimizer of `optimizer_type`; only matrices are decayed, no biases or norms.

    Args:
        rate_scale: What the learning rate of a parameter, given its name, is multiplied with.

    Raises:
        ConfigurationError: If the model has no parameters of the kind that the optimizer is for.
    """
    entry = OPTIMIZERS[config.optimizer_type]
    apart = matrices_in_layers(model) if entry.matrices_apart else set()
    if entry.matrices_apart and not apart:
        raise ConfigurationError(
            f"optimizer_type={config.optimizer_type}: the model has no repeated layers with "
            "trainable matrices; expected another optimizer, such as optimizer_type=adamw"
        )
    groups: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is a flat shard here, and its shape is in ds_shape.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            group = (rate_scale(name), parameter in apart, len(shape) > 1)
            groups.setdefault(group, []).append(parameter)
    settings = [
        {
            "params": groups[scale, in_layers, is_decayed],
            "weight_decay": config.weight_decay if is_decayed else 0.0,
            RATE_SCALE: scale,
            IN_LAYERS: in_layers,
        }
        # Highest rate first, and the decayed matrices before the rest.
        for scale, in_layers, is_decayed in sorted(groups, reverse=True)
    ]
    built: torch.optim.Optimizer = entry.load()(
        settings, lr=config.learning_rate, **entry.options(config)
    )
    return built


def matrices_in_layers(model: nn.Module) -> set[nn.Parameter]:
    """The trainable matrices of repeated layers (in a `ModuleList`), without embeddings."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.ModuleList)]
    modules = {module for layer in layers for module in layer.modules()}
    return {
        parameter
        for module in modules
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad and parameter.ndim == 2
    }


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups marked `IN_LAYERS`, AdamW for the others, with one learning rate.

    The two share their groups and state with this optimizer, whose state dict is that of both.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], lr: float, momentum: float,
        betas: tuple[float, float], eps: float,
    ) -> None:  # fmt: skip
        inner, outer = (
            [group for group in groups if group[IN_LAYERS] == flag] for flag in (True, False)
        )
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inner, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        ]
        if outer:  # none with adapters alone, which are matrices of layers
            self._parts.append(torch.optim.AdamW(outer, lr=lr, betas=betas, eps=eps, fused=True))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Replaces groups and state, as torch does when a state dict is loaded."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [*itertools.islice(groups, len(part.param_groups))]
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def learning_rate(config: RunConfig, max_steps: int, step: int) -> float:
    """The learning rate of a step.

    A linear warm-up reaches the peak at step `num_warmup_steps`, or after `warmup_share` of the
    steps; then the rate stays there (`constant`), or decays linearly (`linear`) or along half a
    cosine (`cosine`) such that it would reach `min_learning_rate_ratio` of the peak one step after
    the last. Under `wsd` (Hu et al. 2024, arXiv 2404.06395) it stays there until the last
    `num_decay_steps`, or `decay_share` of the steps, and decays in these; `1-sqrt` is the shape
    that Hägele et al. 2024 (arXiv 2405.18392) found best.

    Args:
        step: The step number, from 1 to `max_steps`.
    """
    start = warm_up_steps(config, max_steps)
    if step <= start:
        return config.learning_rate * step / start
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    shape = config.lr_scheduler_type
    if shape == WSD:
        start, shape = decay_start(config, max_steps) or 0, config.decay_shape
    progress = min(1.0, max(0, step - 1 - start) / max(1, max_steps - start))
    lowest = config.min_learning_rate_ratio
    return config.learning_rate * (lowest + (1.0 - lowest) * SHAPES[shape](progress))


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Sets the rate of every parameter group: its own share of `rate`."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_SCALE, 1.0)


@contextmanager
def own_settings(optimizer: Any) -> Iterator[None]:
    """Keeps the settings that the optimizer was built with while a checkpoint is loaded.

    A saved state contains its own settings: a changed `weight_decay` would be ignored.
    """
    own = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    yield
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


@dataclass
class NonFiniteGuard:
    """Handles steps whose loss or gradient is not finite.

    Attributes:
        action: `stop`, or `skip`: leave the weights unchanged and continue with the next step.
        limit: The maximum number of consecutive skips; one more stops the run.
        folder: The run folder; each rank writes `nonfinite-step{n}-rank{r}.json` there.
        consecutive: Steps skipped since the last finite one; saved with a checkpoint.
    """

    action: str
    limit: int
    folder: Path
    rank: int
    consecutive: int = 0

    def failed(self, result: StepResult, stats: StepStats) -> dict[str, Any]:
        """Writes the step's documents to a file, then stops the run or skips the step.

        It can no longer be skipped if the engine has changed the weights.

        Returns:
            The event for the log, if the step is skipped.

        Raises:
            TrainingError: If the run must stop.
        """
        self.consecutive += 1
        step, loss, norm = result.step, stats.loss, stats.grad_norm
        file = self.folder / f"nonfinite-step{step}-rank{self.rank}.json"
        parts = [
            {"loss_sum": repr(float(value)), "documents": list(batch.documents)}
            for batch, value in zip(result.data.micro_batches, result.losses, strict=True)
        ]
        values = {"loss": repr(loss), "grad_norm": repr(norm)}
        report = {"step": step, "rank": self.rank, **values, "micro_batches": parts}
        with suppress(FileNotFoundError):  # the run folder was deleted, and rank 0 rebuilds it
            file.write_text(redact(json.dumps(report, indent=1)) + "\n")
        found = (
            f"step {step}: loss {loss}, gradient norm {norm}. The documents of the step are in "
            f"{self.folder}/nonfinite-step{step}-rank*.json; no checkpoint of it was written"
        )
        if self.action == "stop" or result.weights_changed:
            raise TrainingError(
                f"{found}. Resume with a lower learning_rate, or with on_nonfinite=skip"
            )
        if self.consecutive > self.limit:
            raise TrainingError(
                f"{found}. There were {self.consecutive} such steps in a row, and "
                f"max_consecutive_skips={self.limit}"
            )
        return {**values, "consecutive": self.consecutive}


class SpikeGuard:
    """Detects losses far above those of the last steps, and limits how often a run rolls back.

    Every rank sees the same losses and so detects the same spikes; so does a resumed run, because
    the losses are saved with a checkpoint.

    Args:
        deviations: Standard deviations above the mean at which a loss counts as a spike; 0: never.
        window: Number of past losses to compare with; no spike is detected until the window is
            full.
        limit: How often the run may roll back to the same checkpoint.
    """

    def __init__(self, deviations: float, window: int, limit: int) -> None:
        self._deviations = deviations
        self._limit = limit
        self.losses: deque[float] = deque(maxlen=window)
        self._rollbacks: Counter[int] = Counter()

    def is_spike(self, loss: float) -> bool:
        """Whether the loss is a spike; if not, adds it to the window for later comparisons."""
        if self._deviations > 0 and len(self.losses) == self.losses.maxlen:
            spread = self._deviations * statistics.pstdev(self.losses)
            if loss > statistics.fmean(self.losses) + spread:
                return True
        self.losses.append(loss)
        return False

    def rolled_back(self, step: int) -> None:
        """Counts a rollback to the checkpoint of `step`; more than the limit raise an error."""
        self._rollbacks[step] += 1
        if self._rollbacks[step] > self._limit:
            raise TrainingError(
                f"the loss spiked again after {self._limit} rollbacks (max_rollbacks) to step "
                f"{step}; resume with a lower learning_rate, or raise loss_spike_deviations"
            )


@dataclass
class EarlyStopping:
    """Ends a run whose evaluations have stopped improving.

    Attributes:
        name: The metric that is compared, in its own direction (`Metric.better`).
        patience: Consecutive evaluations without a better value than the best after which the run
            ends; None: never.
        best: Its best value, negated if higher values are better.
        without: Evaluations since. Both are saved with a checkpoint.
    """

    name: str | None
    patience: int | None
    best: float | None = None
    without: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the run should end now."""
        return self.patience is not None and self.without >= self.patience

    def record(self, metrics: Sequence[Metric]) -> None:
        """Records an evaluation; a value that is not a number counts as no improvement."""
        cost = next((metric.cost for metric in metrics if metric.name == self.name), None)
        if cost is None:
            return
        if not math.isnan(cost) and (self.best is None or cost < self.best):
            self.best, self.without = cost, 0
        else:
            self.without += 1

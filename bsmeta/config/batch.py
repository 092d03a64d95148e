"""The batch of a step: rows of a micro-batch of each process, and rows in total.

The only place that computes the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from bsmeta.config.schema import RunConfig


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of a step are split.

    Attributes:
        micro_batch: Rows in a micro-batch of one process; 1 where they vary from step to step.
        accumulation: Micro-batches of one process in a step.
        processes: Number of processes.
        key: The key that sets the rows of a micro-batch; None if they vary.
        is_total: Whether that key sets the rows of a whole step, which are divided.
    """

    micro_batch: int
    accumulation: int
    processes: int
    key: str | None
    is_total: bool = False

    @classmethod
    def of(cls, config: RunConfig, processes: int) -> BatchPlan:
        """The plan of a run with this number of processes."""
        name, scope = config.micro_batch_key, config.batch_scope_key
        rows = 1 if name is None else reduce(getattr, name.split("."), config)
        assert isinstance(rows, int)
        accumulation = config.gradient_accumulation_steps
        is_total = scope is not None and reduce(getattr, scope.split("."), config) == "total"
        if is_total:  # the check of the launch refuses a remainder
            rows //= accumulation * processes
        return cls(rows, accumulation, processes, name, is_total)

    @property
    def global_batch(self) -> int:
        """Rows of a step over all processes; where they vary, its micro-batches."""
        return self.micro_batch * self.accumulation * self.processes

    @property
    def rows_per_step(self) -> int | None:
        """Rows of every step; None where they vary."""
        return None if self.key is None else self.global_batch

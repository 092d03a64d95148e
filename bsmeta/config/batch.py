"""The batch of a step: how many rows each process takes at a time, and how many that makes in all.

The only place that computes the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.config.schema import TrainConfig


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of a step are split.

    Attributes:
        micro_batch: Rows in a micro-batch of one process.
        accumulation: Micro-batches of one process in a step.
        processes: Number of processes.
    """

    micro_batch: int
    accumulation: int
    processes: int

    @classmethod
    def of(cls, config: TrainConfig, processes: int) -> BatchPlan:
        """The plan of a run with this number of processes."""
        micro_batch = config.data_config.per_device_train_batch_size
        return cls(micro_batch, config.gradient_accumulation_steps, processes)

    @property
    def global_batch(self) -> int:
        """Rows of a step over all processes."""
        return self.micro_batch * self.accumulation * self.processes

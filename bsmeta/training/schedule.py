"""The length and the intervals of a run, all in steps, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from bsmeta.config.schema import TrainConfig


@dataclass(frozen=True)
class Schedule:
    """When a run ends, logs, evaluates and saves.

    Attributes:
        max_steps: Steps of the run.
        logging_steps: A line in the log every so many steps.
        eval_steps: An evaluation every so many; 0: none.
        save_steps: A checkpoint every so many; 0: only at the end.
        extra_steps: Further steps to evaluate and save at.
    """

    max_steps: int
    logging_steps: int = 1
    eval_steps: int = 0
    save_steps: int = 0
    extra_steps: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, config: TrainConfig) -> Schedule:
        """The schedule of a run."""
        return cls(
            max_steps=config.max_train_steps,
            logging_steps=config.logging_steps,
            eval_steps=config.eval_steps,
            save_steps=config.save_steps,
            extra_steps=frozenset(config.extra_steps_to_eval_save_at),
        )

    def logs(self, step: int) -> bool:
        """Whether the metrics of a step are logged; those of the last step always are."""
        return step % self.logging_steps == 0 or step == self.max_steps

    def evaluates(self, step: int) -> bool:
        """Whether the model is evaluated after a step; after the last one if it ever is."""
        if self.eval_steps and (step % self.eval_steps == 0 or step == self.max_steps):
            return True
        return step in self.extra_steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is written after a step (after the last one it always is)."""
        if self.save_steps and step % self.save_steps == 0:
            return True
        return step in self.extra_steps

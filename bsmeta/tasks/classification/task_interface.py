"""The interface of the task that fitting (`systems`) and the final report (`evaluate`) use."""

from __future__ import annotations

from typing import Protocol

from transformers import PreTrainedModel

from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.model import Scorer
from bsmeta.training.processes import Processes


class ClassifierTask(Protocol):
    """A run that trains a classifier of texts, as `task.TextClassifier` implements it."""

    @property
    def config(self) -> ClassificationConfig:
        """The configuration of the run."""

    @property
    def examples(self) -> Examples:
        """The table of texts and labels."""

    @property
    def weights(self) -> list[float]:
        """The weight of each label."""

    def untouched_encoder(self) -> PreTrainedModel:
        """Builds the encoder before it is trained."""

    def scorer(self, context: Processes) -> Scorer:
        """Returns a scorer of models in evaluations of this run."""

    def steps_per_epoch(self, world_size: int) -> int:
        """Returns the number of steps of an epoch; 0 for a method without training steps."""

"""The interface of the task for fitting systems (`systems`) and the final report (`evaluate`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.model import Scorer
from bsmeta.training.ranks.processes import Processes

if TYPE_CHECKING:  # slow to import, and method=linear needs no encoder
    from transformers import PreTrainedModel


class ClassifierTask(Protocol):
    """The run of a text classifier; implemented by `task.TextClassifier`."""

    @property
    def config(self) -> ClassificationConfig:
        """The configuration of the run."""

    @property
    def examples(self) -> Examples:
        """The table of texts and labels."""

    @property
    def weights(self) -> list[float]:
        """The weight of each label in the loss."""

    def build_untouched_encoder(self) -> PreTrainedModel:
        """Builds the encoder with its weights before training."""

    def make_scorer(self, context: Processes) -> Scorer:
        """Makes the scorer of models in evaluations of this run."""

    def steps_per_epoch(self, world_size: int) -> int:
        """Returns the number of steps of an epoch; 0 for a method without training steps."""

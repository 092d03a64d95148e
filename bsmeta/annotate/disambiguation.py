"""The mentions of entities that a trained disambiguator finds in a text."""

from __future__ import annotations

import os
from typing import Any

from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.data.stream.fingerprint import file_hash


class Disambiguator:
    """The model that `entity_model` names, for workers that are forked later.

    Raises:
        ConfigurationError, DataError: If it cannot be used.
    """

    def __init__(self, config: AnnotateConfig) -> None:
        if config.entity_model is None:
            raise ConfigurationError(
                "entity_model is not set, but entity_source=checkpoint; expected a run of "
                "task=entity_disambiguation: entity_model=runs/disambiguation",
                ["entity_model"],
            )
        # Imported here because torch takes seconds, and the other annotators need none.
        import torch

        from bsmeta.tasks.checkpoints import open_task
        from bsmeta.tasks.disambiguation.task import EntityDisambiguator

        least = config.entity_min_score
        self._overrides = {} if least is None else {"min_score": least}
        task, folder = open_task(config.entity_model, self._overrides)
        if not isinstance(task, EntityDisambiguator):
            raise ConfigurationError(
                f"entity_model={config.entity_model} is a model of another task; expected a run "
                "of task=entity_disambiguation",
                ["entity_model"],
            )
        self._table = task.data.table.fingerprint
        self._files = {
            file.name: file_hash(file) for file in sorted(folder.iterdir()) if file.is_file()
        }
        # The threads of this process do not exist in the workers.
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._predictor = task.predictor(task.load(folder).eval())
        self.entities("")  # opens its detector of mentions, too

    def fingerprint(self) -> dict[str, Any]:
        """Identifies the model, its entities, and what is changed of its configuration."""
        return {"files": self._files, "entities": self._table, "overrides": self._overrides}

    def entities(self, text: str) -> list[dict[str, Any]]:
        """The entities that a text mentions: `start`, `end`, `entity` (the identifier), `title`."""
        (found,) = self._predictor([{"text": text}])
        return list(found["entities"])

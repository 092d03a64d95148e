"""What trained models find in pages: mentions of entities, words with spelling errors, a label."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.row import AnnotationError, Columns, Row, global_record
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import file_hash

LONGEST_SAMPLE = 10_000
"""Characters of the text that the model reads; a detector of words reads them in about a second."""


def _open(checkpoint: str, overrides: Mapping[str, Any]) -> tuple[Any, Path, dict[str, str]]:
    """The task of a checkpoint, its folder, and the hashes of the model's files."""
    # Imported here because torch takes seconds, and the other annotators need none.
    import torch

    from bsmeta.tasks.checkpoints import open_task

    task, folder = open_task(checkpoint, overrides)
    # There is a worker for each core, and the threads of this process do not exist there.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    files = (file for file in sorted(folder.iterdir()) if file.is_file())
    return task, folder, {file.name: file_hash(file) for file in files}


class Disambiguator:
    """The model that `entity_model` names, for workers that are forked later.

    Raises:
        ConfigurationError, DataError: If it cannot be used.
    """

    def __init__(self, config: AnnotateConfig) -> None:
        if config.entity_model is None:
            raise ConfigurationError(
                "entity_model is not set, but entity_source=checkpoint; expected a run of "
                "task=disambiguation: entity_model=runs/disambiguation",
                ["entity_model"],
            )
        least = config.entity_min_score
        self._overrides = {} if least is None else {"min_score": least}
        task, folder, self._files = _open(config.entity_model, self._overrides)
        from bsmeta.tasks.disambiguation.task import EntityDisambiguator

        if not isinstance(task, EntityDisambiguator):
            raise ConfigurationError(
                f"entity_model={config.entity_model} is a model of another task; expected a run "
                "of task=disambiguation",
                ["entity_model"],
            )
        self._table = task.data.table.fingerprint
        self._predictor = task.predictor(task.load(folder).eval())
        self.entities("")  # opens its detector of mentions, too

    def fingerprint(self) -> dict[str, Any]:
        """Identifies the model, its entities, and what is changed of its configuration."""
        return {"files": self._files, "entities": self._table, "overrides": self._overrides}

    def entities(self, text: str) -> list[dict[str, Any]]:
        """The entities that a text mentions: `start`, `end`, `entity` (the identifier), `title`."""
        (found,) = self._predictor([{"text": text}])
        return list(found["entities"])


class Spelling(Annotator):
    """The share of the words of the beginning of the text that a spelling model flags."""

    name = "spelling"
    columns = ("metadata_spelling",)

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        if config.spelling_model is None:
            raise ConfigurationError(
                "spelling_model is not set, but the annotator spelling is used; expected a run of "
                "task=sed_words: spelling_model=runs/sed_words",
                ["spelling_model"],
            )
        self._task, folder, self._files = _open(config.spelling_model, {})
        from bsmeta.training.task import ChangesText

        if not isinstance(self._task, ChangesText):
            raise ConfigurationError(
                f"spelling_model={config.spelling_model}: its task does not change texts; expected "
                "a run of task=sed_words",
                ["spelling_model"],
            )
        self._model = self._task.load(folder).eval()

    def annotate(self, row: Row) -> Columns:
        sample = row.text
        if len(sample) > LONGEST_SAMPLE:
            sample = sample[:LONGEST_SAMPLE].rsplit(maxsplit=1)[0]
        words = len(sample.split())
        if not words:
            raise AnnotationError("no_words")
        (found,) = self._task.changes(self._model, [sample])
        flagged = sum(len(change.text.split()) for change in found)
        return {"metadata_spelling": [global_record("spelling", f"{flagged / words:.4f}")]}

    def fingerprint(self) -> str:
        return self.digest({"model": self._files})


class Label(Annotator):
    """The label that a trained classifier predicts for the text."""

    name = "label"
    columns = ("metadata_label",)

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        if config.label_model is None:
            raise ConfigurationError(
                "label_model is not set, but the annotator label is used; expected a run of "
                "task=classification: label_model=runs/classification",
                ["label_model"],
            )
        task, folder, self._files = _open(config.label_model, {})
        from bsmeta.tasks.classification.task import TextClassifier

        if not isinstance(task, TextClassifier):
            raise ConfigurationError(
                f"label_model={config.label_model} is a model of another task; expected a run of "
                "task=classification",
                ["label_model"],
            )
        self._task = task
        self._model = task.load(folder).eval()

    def annotate(self, row: Row) -> Columns:
        (column,) = self._task.inputs
        (found,) = self._task.predict(self._model, [{column: row.text}])
        if found["prediction"] is None:
            raise AnnotationError("no_words")
        return {"metadata_label": [global_record("label", found["prediction"])]}

    def fingerprint(self) -> str:
        return self.digest({"model": self._files})

"""What trained models find in pages: mentions of entities, words with spelling errors, a label."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bsmeta.annotate.annotator import AnnotationError, Annotator, Columns, Row, global_record
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import file_hash

LONGEST_SAMPLE = 10_000
"""Characters of the text that the model reads; a detector of words reads them in about a second."""


def _open(
    config: AnnotateConfig, key: str, user: str, *tasks: str, **overrides: Any
) -> tuple[Any, Path, dict[str, str]]:
    """Opens the model that a key of the configuration names.

    Args:
        config: The configuration.
        key: The key.
        user: What needs the model, for messages.
        tasks: The tasks whose models can be used.
        overrides: Keys of the configuration of its run to change.

    Returns:
        The task, the folder of the model, and the hashes of the model's files.

    Raises:
        ConfigurationError, DataError: If it cannot be used.
    """
    checkpoint = getattr(config, key)
    expected = f"expected a run of task={' or '.join(tasks)}"
    if checkpoint is None:
        message = f"{key} is not set, but {user}; {expected}: {key}=runs/{tasks[0]}"
        raise ConfigurationError(message, [key])
    # Imported here because torch takes seconds, and the other annotators need none.
    import torch

    from bsmeta.tasks.checkpoints import open_task, task_of
    from bsmeta.training.locations import locate

    location = locate(checkpoint)
    if location.has_run_config and task_of(location) not in tasks:
        message = f"{key}={checkpoint} is a model of task={task_of(location)}; {expected}"
        raise ConfigurationError(message, [key])
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
        least = config.entity_min_score
        self._overrides = {} if least is None else {"min_score": least}
        user, changes = "entity_source=checkpoint", self._overrides
        task, folder, self._files = _open(config, "entity_model", user, "disambiguation", **changes)
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
        user, tasks = "the annotator spelling is used", ("sed_words", "sed_sequence", "sec")
        self._task, folder, self._files = _open(config, "spelling_model", user, *tasks)
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
        user = "the annotator label is used"
        self._task, folder, self._files = _open(config, "label_model", user, "classification")
        self._model = self._task.load(folder).eval()

    def annotate(self, row: Row) -> Columns:
        (column,) = self._task.inputs
        (found,) = self._task.predict(self._model, [{column: row.text}])
        if found["prediction"] is None:
            raise AnnotationError("no_words")
        return {"metadata_label": [global_record("label", found["prediction"])]}

    def fingerprint(self) -> str:
        return self.digest({"model": self._files})

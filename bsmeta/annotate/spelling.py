"""The annotator of spelling quality: a trained model of a spelling task judges each text."""

from __future__ import annotations

from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.row import AnnotationError, Columns, Row, global_record
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.data.stream.fingerprint import file_hash

LONGEST_SAMPLE = 10_000
"""Characters of the text that the model reads; a detector of words reads them in about a second."""


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
        # Imported here because torch takes seconds, and the other annotators need none.
        import torch

        from bsmeta.tasks.base import ChangesText
        from bsmeta.tasks.checkpoints import open_task

        task, self._folder = open_task(config.spelling_model, {})
        if not isinstance(task, ChangesText):
            raise ConfigurationError(
                f"spelling_model={config.spelling_model}: its task does not change texts; expected "
                "a run of task=sed_words",
                ["spelling_model"],
            )
        # There is a worker for each core, and torch's threads would not survive the fork.
        torch.set_num_threads(1)
        self._task = task
        self._model = task.load(self._folder).eval()

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
        files = (file for file in sorted(self._folder.iterdir()) if file.is_file())
        return self.digest({"model": {file.name: file_hash(file) for file in files}})

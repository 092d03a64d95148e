"""Annotators that make local records (about sentences, paragraphs and mentions), or use trained
models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from bsmeta.annotate.annotator import (
    AnnotationError,
    Annotator,
    Columns,
    Row,
    global_record,
    local_record,
)
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.links import LinkIndex, index_digest, index_path, mentions
from bsmeta.annotate.page import PARAGRAPHS
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import file_hash
from bsmeta.data.text.sentences import sentences

LONGEST_SAMPLE = 10_000
"""Characters of the text that the model reads; a detector of words reads them in about a second."""

REMAINDER = "remainder"

BLANK_LINE, BY_BLANK_LINE = "\n\n", "+lf"


def _open(
    config: AnnotateConfig, key: str, user: str, *tasks: str, **overrides: Any
) -> tuple[Any, Path, dict[str, str]]:
    """Opens the model, of one of some tasks, that a key of the configuration names.

    `user` needs the model, in messages; `overrides` are keys of its run to change.

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

    from bsmeta.tasks.checkpoints import locate, open_task, task_of

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


class _Trained(Annotator):
    """Uses the model of one of `tasks` that a `key` names; it is open before workers are forked."""

    key: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        user = f"the annotator {self.name} is used"
        self._task, folder, self._files = _open(config, self.key, user, *self.tasks)
        self._model = self._task.load(folder).eval()

    def fingerprint(self) -> str:
        return self.digest({"model": self._files})


class Spelling(_Trained):
    """The share of the words of the beginning of the text that a spelling model flags."""

    name = "spelling"
    columns = ("metadata_spelling",)
    key = "spelling_model"
    tasks = ("sed_words", "sed_sequence", "sec")

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


class Label(_Trained):
    """The label that a trained classifier predicts for the text."""

    name = "label"
    columns = ("metadata_label",)
    key = "label_model"
    tasks = ("classification",)

    def annotate(self, row: Row) -> Columns:
        (column,) = self._task.inputs
        (found,) = self._task.predict(self._model, [{column: row.text}])
        if found["prediction"] is None:
            raise AnnotationError("no_words")
        return {"metadata_label": [global_record("label", found["prediction"])]}


class Length(Annotator):
    """The number of characters of the text, and of each sentence."""

    name = "length"
    version = 2
    columns = ("metadata_generation_length_text", "metadata_generation_length_sentence")
    settings = ("length_of", "sentence_splitter")

    def annotate(self, row: Row) -> Columns:
        columns: Columns = {}
        if "text" in self.config.length_of:
            records = [global_record("length", str(len(row.text)))]
            columns["metadata_generation_length_text"] = records
        if "sentence" in self.config.length_of:
            columns["metadata_generation_length_sentence"] = list(self._of_sentences(row.text))
        return columns

    def _of_sentences(self, text: str) -> Iterator[Columns]:
        splitter = self.config.sentence_splitter
        for start, end in sentences(text, splitter):
            # As published, a span begins with the full stop before it, which does not count.
            is_stop = splitter == "full_stops" and start < end and text[start] == "."
            yield local_record("length", str(end - start - is_stop), start, end)


class Paragraph(Annotator):
    """The paragraphs of the text; `marker` is the tag that ends one."""

    name = "paragraph"
    columns = ("metadata_paragraph",)
    settings = ("paragraph_values", "profile")

    def annotate(self, row: Row) -> Columns:
        records = []
        for number, (start, end, marker) in enumerate(paragraphs(row), 1):
            value = row.text[start:end] if self.config.paragraph_values else str(number)
            records.append(local_record("paragraph", value, start, end, marker=marker))
        return {"metadata_paragraph": records}


def paragraphs(row: Row) -> Iterator[tuple[int, int, str]]:
    """Start, end and marker of each paragraph; together they are the whole text.

    The text is cut where block elements end, and further after blank lines (`+lf` is then added to
    the marker). What follows the last block is the `remainder`.
    """
    text, start = row.text, 0
    for end, marker in sorted({len(text): REMAINDER, **_block_ends(row)}.items()):
        if end <= start:
            continue
        cuts = []
        if BLANK_LINE in text[start:end]:
            ends = (match.end() for match in re.finditer(BLANK_LINE, text[start:end]))
            cuts = [start + cut for cut in ends if start + cut < end]
        parts = pairwise([start, *cuts, end])
        yield from ((*part, marker + BY_BLANK_LINE if cuts else marker) for part in parts)
        start = end


def _block_ends(row: Row) -> dict[int, str]:
    """The innermost block element that ends at each position where any does."""
    ends: dict[int, tuple[int, str]] = {}
    for tag in row.tags:
        if tag.value in PARAGRAPHS:
            end, found = tag.char_end_idx or 0, (tag.relative_end_pos or 0, str(tag.value))
            ends[end] = min(found, ends.get(end, found))
    return {end: marker for end, (_, marker) in ends.items()}


class Entity(Annotator):
    """Mentions of entities; a record's value is the title, with underscores.

    They are the anchors of the links to other pages of the crawl (`url` is the address of the
    page), or the mentions that a trained disambiguator detects (`entity` is the identifier).
    """

    name = "entity"
    version = 3
    columns = ("metadata_entity",)
    settings = ("entity_source", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self.reads_links = config.entity_source == "links"
        if self.reads_links:
            self._path = index_path(Path(config.output or ""))
            self._index = LinkIndex(self._path)
            return
        least = config.entity_min_score
        changes = {} if least is None else {"min_score": least}
        user = "entity_source=checkpoint"
        task, folder, files = _open(config, "entity_model", user, "disambiguation", **changes)
        table = task.data.table.fingerprint
        self._about = {"files": files, "entities": table, "overrides": changes}
        self._predictor = task.predictor(task.load(folder).eval())
        self._detected("")  # opens its detector of mentions, too

    def annotate(self, row: Row) -> Columns:
        if not self.reads_links:
            return {"metadata_entity": self._detected(row.text)}
        found = mentions(row.page, row.needed_url(), self._index)
        return {
            "metadata_entity": [
                local_record("entity", page.title.replace(" ", "_"), start, end, url=page.key)
                for start, end, page in found
            ]
        }

    def _detected(self, text: str) -> list[Columns]:
        (found,) = self._predictor([{"text": text}])
        return [
            local_record(
                "entity", one["title"].replace(" ", "_"), one["start"], one["end"],
                entity=one["entity"],
            )
            for one in found["entities"]
        ]  # fmt: skip

    def fingerprint(self) -> str:
        if self.reads_links:
            return self.digest({"pages": index_digest(self._path)})
        return self.digest({"model": self._about})


class EntityParagraph(Annotator):
    """For each entity the paragraphs that mention it, once each."""

    name = "entity_paragraph"
    needs = ("metadata_entity",)
    columns = ("metadata_entity_paragraph",)
    settings = ("profile",)

    def annotate(self, row: Row) -> Columns:
        entities = sorted(row.column("metadata_entity"), key=lambda one: one["char_start_idx"])
        spans = iter(paragraphs(row))
        start, end = 0, 0
        found: dict[tuple[int, int], dict[str, None]] = {}
        for entity in entities:
            while entity["char_start_idx"] >= end and (span := next(spans, None)) is not None:
                start, end, _ = span
            found.setdefault((start, end), {})[entity["value"]] = None
        records = []
        for (start, end), values in found.items():
            for place, value in enumerate(values):
                places = {"relative_start_pos": place, "relative_end_pos": place}
                records.append(local_record("entity_paragraph", value, start, end, **places))
        return {"metadata_entity_paragraph": records}

"""Annotates sentences, paragraphs and mentions, and runs annotators with trained models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bsmeta.annotate.annotator import (
    AnnotationError,
    Annotator,
    Columns,
    Row,
    make_global_record,
    make_local_record,
)
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.html.page import PARAGRAPHS
from bsmeta.annotate.links import LinkIndex, list_mentions, locate_index, read_index_digest
from bsmeta.config.task_entry import ModelUse
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import hash_file
from bsmeta.data.text.sentences import find_sentences

MAX_SAMPLE_CHARS = 10_000
"""Number of characters at the beginning of a text that a word detector reads: about a second."""

REMAINDER = "remainder"
"""Marker of the text after the last block element."""
BLANK_LINE = "\n\n"
BLANK_LINE_MARKER = "+lf"
"""Appended to the marker of paragraphs in a block that is cut at blank lines."""


class _OpenModel(NamedTuple):
    """A trained model.

    Attributes:
        task: The opened task of the model.
        folder: The folder of the model.
        file_hashes: The hashes of its files by name.
    """

    task: Any
    folder: Path
    file_hashes: dict[str, str]


def _open_model(
    config: AnnotateConfig, key: str, reason: str, use: ModelUse, **overrides: Any
) -> _OpenModel:
    """Opens the model that a configuration key names.

    Args:
        key: The configuration key.
        reason: Why a model is needed, a clause such as "the annotator … is used"; for the error if
            the key is not set.
        use: Capability that the model's task must have.
        overrides: Configuration keys of the model's run to replace.

    Raises:
        ConfigurationError, DataError: If the key is not set, or the model cannot be used.
    """
    # Imported here because torch takes seconds, and the other annotators do not need it.
    import torch

    from bsmeta.tasks.checkpoints import list_tasks, locate_model, open_task, read_task

    checkpoint = getattr(config, key)
    tasks = list_tasks(use)
    expected = f"expected a run of task={' or '.join(tasks)}"
    if checkpoint is None:
        message = f"{key} is not set, but {reason}; {expected}: {key}=runs/{tasks[0]}"
        raise ConfigurationError(message, [key])

    location = locate_model(checkpoint)
    if location.has_run_config and read_task(location) not in tasks:
        message = f"{key}={checkpoint} is a model of task={read_task(location)}; {expected}"
        raise ConfigurationError(message, [key])
    task, folder = open_task(checkpoint, overrides)

    # There is a worker for each core, and threads do not survive a fork.
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    files = (file for file in sorted(folder.iterdir()) if file.is_file())
    return _OpenModel(task, folder, {file.name: hash_file(file) for file in files})


class _ModelAnnotator(Annotator):
    """Base class of annotators with a trained model, which is loaded before workers are forked.

    Attributes:
        key: The configuration key that names the model.
        use: Capability that the model's task must have.
    """

    key: ClassVar[str]
    use: ClassVar[ModelUse]

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        reason = f"the annotator {self.name} is used"
        opened = _open_model(config, self.key, reason, self.use)
        self._task = opened.task
        self._file_hashes = opened.file_hashes
        self._model = opened.task.load(opened.folder).eval()

    def fingerprint(self) -> str:
        return self.digest({"model": self._file_hashes})


class Spelling(_ModelAnnotator):
    """Records the share of words at the beginning of the text that a spelling model flags.

    Words in a script that the model's lexicon lacks are not counted.
    """

    name = "spelling"
    version = 4
    columns = ("metadata_spelling",)
    key = "spelling_model"
    use = "flag_words"

    def annotate(self, row: Row) -> Columns:
        sample = row.text
        if len(sample) > MAX_SAMPLE_CHARS:
            sample = sample[:MAX_SAMPLE_CHARS].rsplit(maxsplit=1)[0]
        words = sample.split()
        if not words:
            raise AnnotationError("no_words")
        num_counted = sum(not self._task.find_unknown_script(word) for word in words)
        if not num_counted:
            raise AnnotationError("no_words_of_known_script")

        (changes,) = self._task.changes(self._model, [sample])
        num_flagged = sum(len(change.text.split()) for change in changes)
        share = f"{num_flagged / num_counted:.4f}"
        return {"metadata_spelling": [make_global_record("spelling", share)]}


class Label(_ModelAnnotator):
    """Records the label that a trained classifier predicts, or any number of labels if it may."""

    name = "label"
    columns = ("metadata_label",)
    key = "label_model"
    use = "predict_label"

    def annotate(self, row: Row) -> Columns:
        (column,) = self._task.inputs
        (result,) = self._task.predict(self._model, [{column: row.text}])
        prediction = result["prediction"]
        if prediction is None:
            raise AnnotationError("no_words")
        labels = prediction if isinstance(prediction, list) else [prediction]
        return {"metadata_label": [make_global_record("label", label) for label in labels]}


class Length(Annotator):
    """Records the length in characters of the text and of each sentence."""

    name = "length"
    version = 2
    columns = ("metadata_generation_length_text", "metadata_generation_length_sentence")
    settings = ("length_of", "sentence_splitter")

    def annotate(self, row: Row) -> Columns:
        columns: Columns = {}
        if "text" in self.config.length_of:
            records = [make_global_record("length", str(len(row.text)))]
            columns["metadata_generation_length_text"] = records
        if "sentence" in self.config.length_of:
            records = list(self._make_sentence_records(row.text))
            columns["metadata_generation_length_sentence"] = records
        return columns

    def _make_sentence_records(self, text: str) -> Iterator[Columns]:
        """Yields a record for each sentence."""
        splitter = self.config.sentence_splitter
        for start, end in find_sentences(text, splitter):
            length = end - start
            # As in the published data, a span may begin with the full stop of the previous
            # sentence, which is not counted.
            if splitter == "full_stops" and start < end and text[start] == ".":
                length -= 1
            yield make_local_record("length", str(length), start, end)


class Paragraph(Annotator):
    """Records the paragraphs of the text; `marker` names the element that ends a paragraph."""

    name = "paragraph"
    columns = ("metadata_paragraph",)
    settings = ("paragraph_values", "profile")

    def annotate(self, row: Row) -> Columns:
        records = []
        for number, (start, end, marker) in enumerate(split_paragraphs(row), 1):
            value = row.text[start:end] if self.config.paragraph_values else str(number)
            records.append(make_local_record("paragraph", value, start, end, marker=marker))
        return {"metadata_paragraph": records}


class ParagraphSpan(NamedTuple):
    """A paragraph of a text.

    Attributes:
        start: Its first character.
        end: Its end, excluded.
        marker: The block element that ends it, or `REMAINDER`; followed by `BLANK_LINE_MARKER` if
            the block is cut at blank lines.
    """

    start: int
    end: int
    marker: str


def split_paragraphs(row: Row) -> Iterator[ParagraphSpan]:
    """Yields the paragraphs, which cover the whole text.

    The text is cut where block elements end, and blocks are cut after blank lines. The text after
    the last block is the `remainder`.
    """
    text = row.text
    block_start = 0
    block_ends = {len(text): REMAINDER, **_find_block_ends(row)}
    for block_end, marker in sorted(block_ends.items()):
        if block_end <= block_start:
            continue

        cuts = []
        if BLANK_LINE in text[block_start:block_end]:
            for match in re.finditer(BLANK_LINE, text[block_start:block_end]):
                cut = block_start + match.end()
                if cut < block_end:
                    cuts.append(cut)
        if cuts:
            marker += BLANK_LINE_MARKER

        for start, end in pairwise([block_start, *cuts, block_end]):
            yield ParagraphSpan(start, end, marker)
        block_start = block_end


def _find_block_ends(row: Row) -> dict[int, str]:
    """Maps each position where block elements end to the name of the innermost one."""
    # The relative position of the end of the element (the innermost ends first), and its name.
    innermost: dict[int, tuple[int, str]] = {}
    for tag in row.tags:
        if tag.value in PARAGRAPHS:
            position = tag.char_end_idx or 0
            block = (tag.relative_end_pos or 0, str(tag.value))
            innermost[position] = min(block, innermost.get(position, block))
    return {position: name for position, (_, name) in innermost.items()}


class Entity(Annotator):
    """Records mentions of entities; the value is the title of the entity, with underscores.

    Mentions are either links to other pages of the crawl (`url` is the normalized address), or
    detected by a trained disambiguator (`entity` is the identifier).
    """

    name = "entity"
    version = 3
    columns = ("metadata_entity",)
    settings = ("entity_source", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self.reads_links = config.entity_source == "links"
        if self.reads_links:
            self._index_path = locate_index(Path(config.output or ""))
            self._index = LinkIndex(self._index_path)
        else:
            self._open_disambiguator(config)

    def _open_disambiguator(self, config: AnnotateConfig) -> None:
        """Opens the trained model, and everything that it loads lazily."""
        min_score = config.entity_min_score
        overrides = {} if min_score is None else {"min_score": min_score}
        reason = "entity_source=checkpoint"
        opened = _open_model(config, "entity_model", reason, "detect_entities", **overrides)
        task = opened.task
        self._dependencies = {
            "files": opened.file_hashes,
            "data": task.data_fingerprint(),
            "overrides": overrides,
        }
        self._predictor = task.predictor(task.load(opened.folder).eval())
        self._detect_entities("")  # loads the mention detector before workers are forked

    def annotate(self, row: Row) -> Columns:
        if not self.reads_links:
            return {"metadata_entity": self._detect_entities(row.text)}

        records = []
        for start, end, page in list_mentions(row.page, row.require_url(), self._index):
            title = page.title.replace(" ", "_")
            records.append(make_local_record("entity", title, start, end, url=page.key))
        return {"metadata_entity": records}

    def _detect_entities(self, text: str) -> list[Columns]:
        """Returns the records of the mentions that the disambiguator detects in a text."""
        (result,) = self._predictor([{"text": text}])
        return [
            make_local_record(
                "entity",
                entity["title"].replace(" ", "_"),
                entity["start"],
                entity["end"],
                entity=entity["entity"],
            )
            for entity in result["entities"]
        ]

    def fingerprint(self) -> str:
        if self.reads_links:
            return self.digest({"pages": read_index_digest(self._index_path)})
        return self.digest({"model": self._dependencies})


class EntityParagraph(Annotator):
    """Records the paragraphs that mention each entity, once for each entity and paragraph."""

    name = "entity_paragraph"
    needs = ("metadata_entity",)
    columns = ("metadata_entity_paragraph",)
    settings = ("profile",)

    def annotate(self, row: Row) -> Columns:
        mentions = sorted(
            row.read_spans("metadata_entity"), key=lambda mention: mention.char_start_idx or 0
        )
        paragraphs = split_paragraphs(row)
        paragraph = ParagraphSpan(0, 0, REMAINDER)
        # The entities of each paragraph, in the order of their first mentions.
        entities_by_span: dict[tuple[int, int], dict[str, None]] = {}
        for mention in mentions:
            position = mention.char_start_idx or 0
            while position >= paragraph.end:
                next_paragraph = next(paragraphs, None)
                if next_paragraph is None:
                    break
                paragraph = next_paragraph
            entities = entities_by_span.setdefault((paragraph.start, paragraph.end), {})
            entities[str(mention.value)] = None

        records = []
        for (start, end), entities in entities_by_span.items():
            for order, value in enumerate(entities):
                positions = {"relative_start_pos": order, "relative_end_pos": order}
                records.append(
                    make_local_record("entity_paragraph", value, start, end, **positions)
                )
        return {"metadata_entity_paragraph": records}

"""Loads trained models, which predict, score and generate on Python values.

`load` opens a checkpoint of any task. A language model scores and continues documents with their
metadata, with the code of `evaluate.py` and `generate.py`; the models of the other tasks predict on
texts, with the code of `predict.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.api.configuration import Overrides, check_overrides, nest_overrides
from bsmeta.api.documents import (
    DocumentReader,
    GivenDocument,
    RenderedDocument,
    read_batches,
    read_each,
    refuse_single,
)
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.core.errors import ConfigurationError, DataError, name_missing_extras
from bsmeta.core.keys import refuse_out_of_bounds
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import OWN, SHUFFLED
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.rendering import Rendered
from bsmeta.models.pretrained import choose_device
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT_ALONE, plan_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import GivenDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.windows import WINDOW_CUTTERS
from bsmeta.tasks.causal_lm.generation.contexts import is_announced
from bsmeta.tasks.causal_lm.generation.requests import replace_defaults
from bsmeta.tasks.causal_lm.generation.writer import Result, Writer
from bsmeta.tasks.checkpoints import locate_model, open_task, read_task
from bsmeta.training.task import (
    ChangesText,
    ChecksRecords,
    Predicts,
    PredictsFromData,
    Task,
    WarnsOfScripts,
)

# The names of this package's tasks, for type checkers; `open_model` checks names at run time.
LanguageModelTask = Literal["causal_lm"]
PredictorTask = Literal["classification", "disambiguation", "sed_words", "sed_sequence", "sec"]
Checkpoint = str | os.PathLike[str]
"""The path of a model, a checkpoint or a run; or a `Run`."""


class Sampling(TypedDict, total=False):
    """Settings of text generation; `GenerateConfig` documents them and has their defaults."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    num_samples: int
    guidance: float
    null_metadata: dict[str, Any]
    batch_size: int


@dataclass(frozen=True, slots=True)
class Score:
    """The cross-entropy of a document's text under a model, with and without its metadata.

    Both are sums over the bytes of the tokens that are predicted in both cases, so the first token
    of a text is excluded.

    Attributes:
        prefix: The rendered metadata; empty if the document has none.
        types: The rendered types.
        bytes: Number of scored bytes (UTF-8) of the text.
        nats: Negative log-probability of these bytes with the metadata, in nats.
        nats_without: Negative log-probability of these bytes without metadata, in nats.
        lost_bytes: Number of unscored bytes that the tokenizer does not preserve: unknown tokens,
            and characters that it changes or drops.
    """

    prefix: str
    types: tuple[str, ...]
    bytes: int
    nats: float
    nats_without: float
    lost_bytes: int = 0

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte with the metadata; NaN if no byte is scored."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def bits_per_byte_without(self) -> float:
        """Bits per byte without metadata; NaN if no byte is scored."""
        return self.nats_without / math.log(2) / self.bytes if self.bytes else math.nan


class Model:
    """A trained model of any task; `load` returns an instance of a subclass.

    A method that the model's task does not support raises a `UserError` that names those it does.

    Attributes:
        checkpoint: The checkpoint as given by the caller.
        task: The name of the task that the model was trained on.
    """

    _offered = ""

    def __init__(self, checkpoint: str, task: str) -> None:
        self.checkpoint = checkpoint
        self.task = task

    def __repr__(self) -> str:
        return f"bsmeta.load({self.checkpoint!r}, {self.task!r})"

    @property
    def module(self) -> nn.Module:
        """The model, on its device and in evaluation mode."""
        raise NotImplementedError

    def predict(self, texts: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the predictions for each text."""
        raise self._make_refusal("predict")

    def predict_each(self, texts: Iterable[str | Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the predictions one by one."""
        raise self._make_refusal("predict_each")

    def score(self, documents: Iterable[GivenDocument], *, windows: str = "sliding") -> list[Score]:
        """Returns the cross-entropy of each document's text, with and without its metadata."""
        raise self._make_refusal("score")

    def score_each(
        self, documents: Iterable[GivenDocument], *, windows: str = "sliding"
    ) -> Iterator[Score]:
        """Yields the scores one by one."""
        raise self._make_refusal("score_each")

    def generate(
        self, documents: Iterable[GivenDocument], **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """Returns continuations of each document."""
        raise self._make_refusal("generate")

    def generate_each(
        self, documents: Iterable[GivenDocument], **sampling: Unpack[Sampling]
    ) -> Iterator[Result]:
        """Yields the continuations of the documents, one document at a time."""
        raise self._make_refusal("generate_each")

    def generate_pieces(
        self, document: GivenDocument, **sampling: Unpack[Sampling]
    ) -> Iterator[str]:
        """Yields the continuation of a document while it is generated."""
        raise self._make_refusal("generate_pieces")

    def _make_refusal(self, method: str) -> ConfigurationError:
        return ConfigurationError(
            f"{method}: {self.checkpoint} is a model of task={self.task}, which has {self._offered}"
        )


SCORE_BATCH_SIZE = 64
"""Number of documents that `score_each` reads and scores together."""


def _check_windows(windows: str) -> None:
    """Refuses an unknown value of `windows`."""
    if windows not in WINDOW_CUTTERS:
        raise ConfigurationError(f"windows={windows}: expected one of {', '.join(WINDOW_CUTTERS)}")


def _split_sampling(sampling: Sampling) -> tuple[int, dict[str, Any]]:
    """Splits the settings of a call into the batch size and the settings of each request."""
    settings: dict[str, Any] = {**sampling}
    batch_size = settings.pop("batch_size", GenerateConfig().batch_size)
    if not isinstance(batch_size, int):
        raise ConfigurationError(f"batch_size={batch_size!r}: expected a whole number")
    refuse_out_of_bounds(GenerateConfig(batch_size=batch_size))
    return batch_size, settings


@dataclass(frozen=True)
class _ScoringInput:
    """A document to score.

    Attributes:
        document: The document with its metadata.
        rendered: The document rendered with all its metadata.
    """

    document: Document
    rendered: Rendered


class LanguageModel(Model):
    """A language model, with the tokenizer and the metadata of its training."""

    _offered = "score, generate and render"

    def __init__(self, opened: OpenedModel) -> None:
        super().__init__(opened.location.name, opened.run_config.task)
        self._opened = opened
        self._reader = DocumentReader(opened.run_config.data_config)

    @property
    def module(self) -> nn.Module:
        return self._opened.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that the model was trained with."""
        return self._opened.tokenizer

    def render(
        self,
        document: GivenDocument,
        metadata: Mapping[str, Any] | None = None,
        *,
        types: Sequence[str] | None = None,
    ) -> RenderedDocument:
        """Renders a document as in the training of this model; see `bsmeta.render`."""
        return self._reader.render(document, metadata, types)

    def score(self, documents: Iterable[GivenDocument], *, windows: str = "sliding") -> list[Score]:
        """Scores the text of each document, with and without its metadata.

        The documents are not compared with the training data; `bsmeta.evaluate_model` compares.

        Args:
            documents: Texts, `{"text": …, "metadata": {…}}`, or records of the training data: a
                list, a `Dataset`, or any other iterable.
            windows: `sliding` (overlapping windows), `all_pieces` (the chunks of training) or
                `first_piece`.

        Raises:
            UserError: If documents cannot be read (all are listed) or have no text.
        """
        _check_windows(windows)
        inputs = read_each(documents, self._read_scoring_input, "documents")
        return self._score_inputs(inputs, windows) if inputs else []

    def score_each(
        self, documents: Iterable[GivenDocument], *, windows: str = "sliding"
    ) -> Iterator[Score]:
        """Yields the scores one by one, for more documents than fit into memory; see `score`.

        Documents are read lazily, `SCORE_BATCH_SIZE` at a time, and errors are raised then.
        """
        _check_windows(windows)
        refuse_single(documents, "documents")
        batches = read_batches(documents, self._read_scoring_input, "documents", SCORE_BATCH_SIZE)
        return (score for batch in batches for score in self._score_inputs(batch, windows))

    def _score_inputs(self, inputs: Sequence[_ScoringInput], windows: str) -> list[Score]:
        """Scores documents in one evaluation."""
        data = self._opened.run_config.data_config
        metadata = data.metadata_config
        if metadata.metadata_values == SHUFFLED:
            # Shuffling is a control for training; here documents keep their own values.
            metadata = replace(metadata, metadata_values=OWN)

        (with_metadata,) = plan_comparisons(["all"], metadata.metadata_list)
        names = [f"documents[{number}]" for number in range(len(inputs))]
        evaluation = PairedEvaluation(
            replace(data, metadata_config=metadata),
            self._opened.tokenizer,
            GivenDocuments([scoring_input.document for scoring_input in inputs], names),
            [TEXT_ALONE, with_metadata],
            windows=windows,
        )
        sums = evaluation.run(self._opened.model, self._opened.device)

        # Documents without metadata are only in the comparison of the text alone.
        text_sums = sums[TEXT_ALONE.name]
        metadata_sums = sums[with_metadata.name]
        has_metadata = metadata_sums.takes_part
        totals = np.where(has_metadata[:, None], metadata_sums.totals, text_sums.totals)
        lost_bytes = np.where(has_metadata, metadata_sums.lost_bytes, text_sums.lost_bytes)

        return [
            Score(
                prefix=scoring_input.rendered.prefix,
                types=scoring_input.rendered.types,
                bytes=int(total[BYTES]),
                nats=float(total[NATS_WITH]),
                nats_without=float(total[NATS_WITHOUT]),
                lost_bytes=int(num_lost),
            )
            for scoring_input, total, num_lost in zip(inputs, totals, lost_bytes, strict=True)
        ]

    def _read_scoring_input(self, source: GivenDocument) -> _ScoringInput:
        """Reads a document to score.

        Raises:
            DataError: If the document is invalid, or its text is empty.
        """
        document = self._reader.read(source)
        if not document.text:
            raise DataError("its text is empty, so there is nothing to score")

        types = self._opened.run_config.data_config.metadata_config.metadata_list
        return _ScoringInput(document, self._reader.render_types(document, types))

    def generate(
        self, documents: Iterable[GivenDocument], **sampling: Unpack[Sampling]
    ) -> list[Result]:
        """Continues the text of each document under its metadata.

        Args:
            documents: Prompts, `{"text": prompt, "metadata": {…}}`, or records of the training
                data: a list, a `Dataset`, or any other iterable. Without `text`, the model begins
                the text.
            sampling: `max_new_tokens`, `temperature`, `top_p`, `seed`, `num_samples`, `guidance`,
                `null_metadata` and `batch_size`, with the meanings and defaults of
                `bsmeta generate`.

        Returns:
            For each document its `prefix` and its `samples`, each with `text`, `tokens`, `finished`
            and `seed`.

        Raises:
            UserError: If documents or settings are invalid.
        """
        batch_size, settings = _split_sampling(sampling)
        prompts = read_each(documents, self._read_prompt, "documents")
        requests = [replace_defaults(settings, prompt) for prompt in prompts]
        return list(Writer(self._opened, batch_size=batch_size).write(requests))

    def generate_each(
        self, documents: Iterable[GivenDocument], **sampling: Unpack[Sampling]
    ) -> Iterator[Result]:
        """Yields the result of each document as soon as it is complete; see `generate`.

        Documents are read lazily, `batch_size` at a time, and errors are raised then.
        """
        batch_size, settings = _split_sampling(sampling)
        refuse_single(documents, "documents")
        batches = read_batches(documents, self._read_prompt, "documents", batch_size)
        writer = Writer(self._opened, batch_size=batch_size)
        return (
            result
            for batch in batches
            for result in writer.write([replace_defaults(settings, prompt) for prompt in batch])
        )

    def generate_pieces(
        self, document: GivenDocument, **sampling: Unpack[Sampling]
    ) -> Iterator[str]:
        """Yields the continuation of a document while it is generated, in pieces.

        Joined, the pieces are the text that `generate` returns for the document.

        Args:
            document: See `generate`.
            sampling: As for `generate`, with one sample.

        Raises:
            UserError: If the document or a setting is invalid.
        """
        _, settings = _split_sampling(sampling)
        if settings.get("num_samples", 1) != 1:
            raise ConfigurationError(
                f"num_samples={settings['num_samples']}: expected 1; generate() makes several"
            )
        (prompt,) = read_each([document], self._read_prompt, "document")
        writer = Writer(self._opened, batch_size=1)
        return writer.write_pieces(replace_defaults(settings, prompt))

    def _read_prompt(self, source: GivenDocument) -> dict[str, Any]:
        """Reads the prompt and the metadata values of a document, as a request for generation."""
        if isinstance(source, Mapping) and source.keys() <= {"text", "metadata"}:
            values = source.get("metadata") or {}
            if isinstance(values, Mapping):
                return {"prompt": source.get("text", ""), "metadata": dict(values)}

        document = self._reader.read(source)
        metadata = self._opened.run_config.data_config.metadata_config
        values = {}
        for key in metadata.metadata_list:
            if not document.has(key):
                continue
            if find_type(key).is_local:
                # Positions in a given text do not apply to its continuation, so the prefix only
                # announces the type.
                values[key] = is_announced(key, metadata) or None
            else:
                values[key] = [record.value for record in document.records(key)]
        return {"prompt": document.text, "metadata": values}


class Predictor(Model):
    """A classifier, a disambiguator, or a detector or corrector of spelling errors.

    Attributes:
        folder: The folder of the exported model.
    """

    _offered = "predict"

    def __init__(
        self, checkpoint: str, name: str, task: Task, folder: Path, device: torch.device
    ) -> None:
        super().__init__(checkpoint, name)
        if not isinstance(task, Predicts):
            raise ConfigurationError(f"checkpoint={checkpoint}: its task does not predict")
        self.folder = folder
        self._task = task
        self._device = device

    @cached_property
    def module(self) -> nn.Module:
        """The model, on its device and in evaluation mode."""
        return self._task.load(self.folder).to(self._device).eval()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the training data that a record must have for a prediction."""
        return self._task.inputs

    def predict(self, texts: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predicts the columns of `bsmeta predict` for each text.

        The texts are not compared with the training data; `bsmeta.evaluate_model` compares.

        Args:
            texts: Texts, or records with a text in the column of the training data (for a
                disambiguator also `mentions`): a list, a `Dataset`, or any other iterable.

        Returns:
            A dict for each text. A classifier returns `prediction` (a label, or a list of labels if
            a text may have several), the probability of each label, and `chunks`; a disambiguator
            `entities`; a detector `changes`, each with its character offsets; a corrector `changes`
            and `corrected`.

        Raises:
            UserError: If records cannot be read; all are listed.
        """
        return list(self.predict_each(read_each(texts, self._read_record, "texts")))

    def predict_each(self, texts: Iterable[str | Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the predictions one by one, for more texts than fit into memory; see `predict`.

        Texts are read lazily, and errors are raised then.
        """
        refuse_single(texts, "texts")
        batches = read_batches(texts, self._read_record, "texts", 1)
        return self._task.predict(self.module, chain.from_iterable(batches))

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Checks the fields of a record other than its texts, such as mentions.

        Raises:
            DataError: If a field is invalid.
        """
        if isinstance(self._task, ChecksRecords):
            self._task.check_record(record)

    def data_fingerprint(self) -> Any:
        """Returns a fingerprint of external data that predictions use, such as an entity table.

        Returns:
            The fingerprint; None if predictions depend on the model alone.
        """
        return self._task.data_fingerprint() if isinstance(self._task, PredictsFromData) else None

    def _read_record(self, text: str | Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes a record from a text, or checks a given record.

        Raises:
            DataError: If it lacks a text in one of `inputs`, or has an invalid field.
        """
        record = dict.fromkeys(self.inputs, text) if isinstance(text, str) else text
        if not isinstance(record, Mapping):
            raise DataError(f"a {type(record).__name__}; expected a text or a record")

        for key in self.inputs:
            if not isinstance(record.get(key), str):
                keys = ", ".join(repr(name) for name in record) or "nothing"
                raise DataError(f"{key!r} is not a text (it has {keys}); expected one")
        self.check_record(record)
        return record

    @property
    def forms(self) -> tuple[str, ...]:
        """Output formats of `bsmeta predict` for changes to a text; empty for other tasks."""
        return self._task.forms if isinstance(self._task, ChangesText) else ()

    def changes(self, text: str) -> list[Any]:
        """Returns a detector's flags or a corrector's changes in a text, with character offsets.

        Raises:
            UserError: If the task of the model changes no texts.
        """
        if not isinstance(self._task, ChangesText):
            raise self._make_refusal("changes")

        (changes,) = self._task.changes(self.module, [text])
        if isinstance(self._task, WarnsOfScripts):
            self._task.warn_of_unknown_scripts([text])
        return changes


@overload
def load(
    checkpoint: Checkpoint,
    task: LanguageModelTask,
    *,
    device: str | None = ...,
    overrides: Overrides | None = ...,
) -> LanguageModel: ...


@overload
def load(
    checkpoint: Checkpoint,
    task: PredictorTask,
    *,
    device: str | None = ...,
    overrides: Overrides | None = ...,
) -> Predictor: ...


@overload
def load(
    checkpoint: Checkpoint,
    task: None = ...,
    *,
    device: str | None = ...,
    overrides: Overrides | None = ...,
) -> Model: ...


def load(
    checkpoint: Checkpoint,
    task: str | None = None,
    *,
    device: str | None = None,
    overrides: Overrides | None = None,
) -> Model:
    """Loads a trained model of any task.

    Args:
        checkpoint: A run folder (its `model/`, otherwise the `model/` of its newest checkpoint that
            has one), a checkpoint folder, a folder that `from_pretrained` loads, a Hub model as
            `hf://owner/name`, or a `Run`.
        task: The expected task, which determines the static type of the result; None: any task.
        device: For example `cpu` or `cuda:1`; None: a GPU if there is one.
        overrides: Keys of the training configuration to change:
            `{"data_config.bad_documents": "skip"}`, or nested.

    Raises:
        UserError: If there is no model, it has another task, or it cannot be loaded.
    """
    model = open_model(checkpoint, task, device=device, overrides=overrides)
    _ = model.module  # loads the weights
    return model


def open_model(
    checkpoint: Checkpoint,
    task: str | None = None,
    *,
    device: str | None = None,
    overrides: Overrides | None = None,
) -> Model:
    """Opens a model like `load`, but loads the weights only when they are first used."""
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise ConfigurationError(
            f"checkpoint={checkpoint!r}: expected the path of a run or a checkpoint, or a Run"
        )
    if task is not None and task not in TASKS:
        raise ConfigurationError(f"task={task}: expected one of {', '.join(TASKS)}")
    check_overrides(overrides)
    nested_overrides = nest_overrides(overrides)

    name = os.path.expanduser(checkpoint)
    location = locate_model(name)
    trained_task = read_task(location)
    if task is not None and task != trained_task:
        raise ConfigurationError(
            f"checkpoint={name}: trained with task={trained_task}; expected task={task}"
        )

    torch_device = choose_device() if device is None else _parse_device(device)
    if trained_task in TASKS and TASKS[trained_task].is_language_model:
        return LanguageModel(OpenedModel(location, None, nested_overrides, device=torch_device))
    with name_missing_extras():
        return Predictor(name, trained_task, *open_task(name, nested_overrides), torch_device)


def _parse_device(name: str) -> torch.device:
    """Parses the name of a torch device.

    Raises:
        ConfigurationError: If there is no such device, or no GPU.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device={name!r}: expected cpu, cuda or cuda:NUMBER") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device={name}: torch finds no GPU; expected device=cpu, or none")
    return device

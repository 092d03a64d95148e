"""Builds and loads the model of a run, and runs it on the chunks of texts.

The model is a `Classifier`, or with `pooling=head` a model of transformers. Its loss is
cross-entropy with label smoothing, weighted by the label of each chunk. The loss of a step is
sum(weight x cross-entropy) / sum(weight) over its global batch.

The logits of a text are the mean over its chunks; word features add logits of the whole text. The
logits of many texts and labels may exceed the memory, so they are computed for some texts at a
time, and only labels, losses and probabilities are kept.

If a text may have several labels, the loss is binary cross-entropy, and the sums of a step are over
all pairs of a chunk and a label. The predicted labels of a text are those whose probabilities, the
sigmoids of its logits, are at least their thresholds.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import transformers
from scipy.special import expit, softmax
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError, suggest_nearest
from bsmeta.core.model_files import create_model, read_model_and_report
from bsmeta.core.parsing import parse_json
from bsmeta.data.text.tokenizer import count_trained_tokens
from bsmeta.models import pretrained
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.shapes import read_hidden_size
from bsmeta.tasks.classification.classifier import (
    CONFIG_ENTRY,
    CONFIG_FILE,
    MULTI_LABEL_TYPE,
    SINGLE_LABEL_TYPE,
    Classifier,
    Description,
    check_labels,
    check_thresholds,
    freeze_below,
    is_classifier,
    load_linear,
    read_description,
)
from bsmeta.tasks.classification.config import FINE_TUNE, ClassificationConfig
from bsmeta.tasks.classification.examples import Chunk, compute_words_limit
from bsmeta.tasks.classification.label_sets import make_truth
from bsmeta.tasks.classification.thresholds import DEFAULT_THRESHOLD, apply_thresholds
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_batches

if TYPE_CHECKING:  # slow to import, and method=linear needs no encoder
    from transformers import PreTrainedModel

HEAD_DROPOUT_NAMES = (
    "classifier_dropout",
    "seq_classif_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
)
"""Keys of the dropout before the head in the configurations of transformers, by priority."""
HEAD_STD = 0.02
"""Standard deviation of a new head's weights, as in transformers."""

DROPOUT_NAMES = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout",
    "attention_dropout", "seq_classif_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop",
    "activation_dropout", "hidden_dropout", "embedding_dropout", "mlp_dropout", "pooler_dropout",
)  # fmt: skip
"""Keys of dropout probabilities in the configurations of transformers."""

MAX_LISTED_PROBABILITIES = 100
"""Maximum number of labels for which a prediction lists all probabilities."""
MAX_SCORED_PAIRS = 1 << 27
"""Maximum number of pairs of a text and a label to score if a text may have several labels; the
probability of each pair is kept for choosing thresholds."""
THRESHOLDS_ENTRY = "label_thresholds"
"""The entry of `config.json` with the thresholds of the labels, in a model of transformers."""
MAX_LOGITS = 1 << 21
"""Maximum number of logits that are computed at a time."""
_MAX_LABELS_IN_ERROR = 20

logger = logging.getLogger(__name__)


def build_with_head(
    config: ClassificationConfig,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str],
    *,
    has_several: bool = False,
) -> PreTrainedModel:
    """Builds the model of transformers with its own head, in float32 on the CPU.

    On torch's default device `meta`, it has no weights.

    Raises:
        ConfigurationError: If it cannot be built, or has fewer positions than `max_length`.
        DataError: If the weights do not fit its encoder.
    """
    build = _build_parts(config, tokenizer, labels, has_several=has_several)
    if has_several:
        set_thresholds(build.model, [DEFAULT_THRESHOLD] * len(labels))
    if build.random_weights:
        names = ", ".join(build.random_weights)
        logger.info(
            "%s: %d new random weights: %s", config.model_name, len(build.random_weights), names
        )
    return build.model


def build_untouched_encoder(
    config: ClassificationConfig,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str],
    *,
    has_several: bool = False,
) -> PreTrainedModel:
    """Builds the encoder with its weights before training, in evaluation mode.

    Random weights equal the initial weights of the run; torch's generator is not advanced.
    """
    with torch.random.fork_rng(devices=[]), pretrained.load_whole_weights():
        torch.manual_seed(config.seed)
        return _build_encoder(config, tokenizer, labels, has_several=has_several).eval()


def build_classifier(
    config: ClassificationConfig,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str],
    *,
    has_several: bool = False,
) -> Classifier:
    """Builds the encoder with a new linear head, and freezes layers below `train_layers`."""
    encoder = _build_encoder(config, tokenizer, labels, has_several=has_several)
    freeze_below(encoder, config.train_layers)

    dropouts = [getattr(encoder.config, name, None) for name in HEAD_DROPOUT_NAMES]
    dropout = next((value for value in dropouts if value is not None), 0.0)

    head = nn.Linear(read_hidden_size(encoder.config), len(labels))
    nn.init.normal_(head.weight, std=HEAD_STD)
    nn.init.zeros_(head.bias)
    thresholds = [DEFAULT_THRESHOLD] * len(labels) if has_several else None
    description = Description(
        FINE_TUNE, list(labels), config.pooling, has_words=False, thresholds=thresholds
    )
    return Classifier(description, encoder, head, dropout=dropout)


def _build_encoder(
    config: ClassificationConfig,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str],
    *,
    has_several: bool = False,
) -> PreTrainedModel:
    build = _build_parts(config, tokenizer, labels, has_several=has_several)
    return _remove_pooler(build.model.base_model)


class _Build(NamedTuple):
    """A model of transformers."""

    model: PreTrainedModel
    random_weights: list[str]  # names of weights that its files lack


def _build_parts(
    config: ClassificationConfig,
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[str],
    *,
    has_several: bool = False,
) -> _Build:
    """Builds the model of transformers, and resizes its vocabulary for the tokenizer."""
    from transformers import AutoModelForSequenceClassification

    model_class = AutoModelForSequenceClassification
    key, source = pretrained.find_model_source(config)

    model_config = pretrained.read_model_shape(config, model_class)
    _configure_labels(model_config, labels, has_several=has_several)
    model_config.pad_token_id = tokenizer.pad_token_id
    token_limit = pretrained.find_token_limit(model_config, tokenizer)
    _check_length(config, token_limit, tokenizer, f"{key}={source}")
    if config.dropout is not None:
        for name in DROPOUT_NAMES:
            if hasattr(model_config, name):
                setattr(model_config, name, config.dropout)

    has_weights = torch.get_default_device().type != "meta"
    with pretrained.explain_load_errors(key, source, model_class):
        if config.model_config_file is not None or not has_weights:
            build = _Build(create_model(model_class, model_config, dtype=torch.float32), [])
        else:
            build = _load_pretrained(source, f"{key}={source}", model_config)

    if has_weights:
        num_trained = None
        if config.model_config_file is None:
            num_trained = count_trained_tokens(source, config.tokenizer_name, tokenizer)
        add_embeddings(build.model, len(tokenizer), num_trained)
    return build


def _configure_labels(model_config: Any, labels: Sequence[str], *, has_several: bool) -> None:
    """Sets the labels and the problem type in the configuration of a model of transformers."""
    model_config.id2label = dict(enumerate(labels))
    model_config.label2id = {label: number for number, label in enumerate(labels)}
    model_config.problem_type = MULTI_LABEL_TYPE if has_several else SINGLE_LABEL_TYPE
    if hasattr(model_config, THRESHOLDS_ENTRY):
        delattr(model_config, THRESHOLDS_ENTRY)  # of its previous labels


def _check_length(
    config: ClassificationConfig,
    limit: int | None,
    tokenizer: PreTrainedTokenizerBase,
    setting: str,
) -> None:
    """Refuses chunks that may be longer than the model allows.

    Args:
        limit: Maximum tokens of a row of the model; None: no limit.
        setting: The key and value that name the model, for messages.
    """
    if limit is None:
        return

    data = config.data_config
    if data.fold_by == "tokens" and data.max_length > limit:
        raise ConfigurationError(
            f"data_config.max_length={data.max_length}: expected at most {limit}, the tokens of a "
            f"row of the model ({setting}); longer texts are folded into several rows"
        )
    if data.fold_by == "words" and compute_words_limit(tokenizer) > limit:
        raise ConfigurationError(
            f"data_config.fold_by=words: chunks may have {compute_words_limit(tokenizer)} tokens, "
            "but a "
            f"row of the model {limit} ({setting}); expected fold_by=tokens, or "
            f'"model_max_length": {limit} in the tokenizer_config.json of the tokenizer'
        )


def _load_pretrained(source: str, setting: str, model_config: Any) -> _Build:
    """Loads a model of transformers; only weights of a head or pooler may be missing.

    Args:
        source: Folder or name of the model.
        setting: The key and value that name the model, for messages.
        model_config: The configuration of the model.

    Raises:
        DataError: If weights of the encoder are missing, unexpected or of another shape.
    """
    from transformers import AutoModelForSequenceClassification

    pretrained.check_model_folder(source, setting)
    with _silence_warnings():
        model, info = read_model_and_report(
            AutoModelForSequenceClassification,
            source,
            config=model_config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
        )

    return _Build(model, pretrained.check_encoder_weights(model, info, source, setting))


def load_model(folder: Path) -> nn.Module:
    """Loads an exported classifier in evaluation mode.

    Raises:
        DataError: If a file is missing or damaged.
    """
    task = "task=classification"
    if not is_classifier(folder):
        from transformers import AutoModelForSequenceClassification

        model = pretrained.load_exported(
            AutoModelForSequenceClassification, folder, "classifier", task
        )
        _check_config_labels(model.config, folder)
        return model

    pretrained.check_model_folder(str(folder), f"{folder}")
    encoder = None
    if read_description(folder).pooling is not None:
        from transformers import AutoModel

        with _silence_warnings():  # the weights of the pooler are missing
            loaded = pretrained.load_exported(
                AutoModel, folder, "encoder", task, optional=".pooler."
            )
        encoder = _remove_pooler(loaded)
    return load_linear(folder, encoder)


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Keeps transformers from printing a table of missing weights."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def _remove_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Removes the pooler of encoders that have one; only token vectors are used."""
    if isinstance(getattr(encoder, "pooler", None), nn.Module):
        encoder.pooler = None
    return encoder


def _check_config_labels(model_config: Any, folder: Path) -> None:
    """Refuses a model of transformers without a distinct label for each logit.

    Raises:
        DataError: If its labels are invalid.
    """
    numbers = range(model_config.num_labels)
    labels = [model_config.id2label.get(number) for number in numbers]
    has_several = model_config.problem_type == MULTI_LABEL_TYPE
    try:
        check_labels(labels, len(numbers), has_several=has_several)
    except ValueError as error:
        raise DataError(f"{folder / CONFIG_FILE}: id2label: {error}") from error


def read_labels(model: nn.Module) -> tuple[str, ...]:
    """Returns the labels of a trained classifier, in the order of its logits."""
    if isinstance(model, Classifier):
        return tuple(model.description.labels)

    model_config: Any = model.config
    return tuple(model_config.id2label[number] for number in range(model_config.num_labels))


def read_thresholds(model: nn.Module) -> np.ndarray | None:
    """Returns the thresholds of a trained classifier's labels, float64 [labels].

    They are `DEFAULT_THRESHOLD` for a model of transformers that was exported elsewhere with
    `problem_type: multi_label_classification`.

    Returns:
        None if a text has exactly one label.

    Raises:
        DataError: If the thresholds in its `config.json` are invalid.
    """
    if isinstance(model, Classifier):
        thresholds = model.description.thresholds
        return None if thresholds is None else np.array(thresholds)

    model_config: Any = model.config
    if model_config.problem_type != MULTI_LABEL_TYPE:
        return None
    values = getattr(model_config, THRESHOLDS_ENTRY, None)
    if values is None:
        return np.full(model_config.num_labels, DEFAULT_THRESHOLD)
    try:
        check_thresholds(values, model_config.num_labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"config.json of the model: {THRESHOLDS_ENTRY}: {error}") from error
    return np.array(values, np.float64)


def set_thresholds(model: nn.Module, thresholds: Sequence[float]) -> None:
    """Sets the thresholds with which a classifier of several labels is exported."""
    if isinstance(model, Classifier):
        model.set_thresholds(thresholds)
    else:
        setattr(model.config, THRESHOLDS_ENTRY, [*thresholds])


def save_thresholds(folder: Path, thresholds: Sequence[float]) -> None:
    """Replaces the thresholds in the `config.json` of an exported classifier.

    Args:
        folder: The folder of the exported classifier of several labels.
        thresholds: The threshold of each label.
    """
    file = folder / CONFIG_FILE
    content = parse_json(file.read_text(encoding="utf-8"))
    if CONFIG_ENTRY in content:
        content[CONFIG_ENTRY]["thresholds"] = [*thresholds]
    else:
        content[THRESHOLDS_ENTRY] = [*thresholds]
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def compute_label_weights(
    class_weights: Any,
    labels: Sequence[str],
    counts: Mapping[str, int],
    rows: int | None = None,
) -> list[float]:
    """Computes the weight of each label in the loss.

    If a text may have several labels, the weight applies to texts with the label, in the loss of
    that label; texts without it weigh 1.

    Args:
        class_weights: The value of the key `class_weights`.
        counts: Number of training rows with each label.
        rows: Number of training rows, if a row may have several labels; None: one label.

    Raises:
        ConfigurationError: If a weight is for an unknown label.
    """
    if class_weights == "none":
        return [1.0] * len(labels)
    if class_weights == "balanced":
        label_counts = [counts.get(label, 0) for label in labels]
        if rows is not None:  # rows without the label / rows with it
            return [max(rows - count, 1) / max(count, 1) for count in label_counts]
        total = sum(counts.values())
        return [total / (len(labels) * max(count, 1)) for count in label_counts]

    weights = {str(label): value for label, value in class_weights.items()}
    for label in weights:
        if label not in labels:
            raise ConfigurationError(
                f"class_weights: there is no label {label}{suggest_nearest(label, labels)}; "
                f"expected some of {list_labels(labels)}"
            )
    return [float(weights.get(label, 1.0)) for label in labels]


def list_labels(labels: Sequence[str]) -> str:
    """Lists the labels for a message; of many, the first ones and the number of the others."""
    omitted = len(labels) - _MAX_LABELS_IN_ERROR
    ending = f", and {omitted:,} more" if omitted > 0 else ""
    return ", ".join(labels[:_MAX_LABELS_IN_ERROR]) + ending


def pad_chunks(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Pads chunks; returns `input_ids` and `attention_mask`, int64 [chunks, longest chunk]."""
    padded = tokenizer.pad({"input_ids": [list(chunk) for chunk in ids]}, return_tensors="pt")
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


@dataclass(frozen=True)
class Scored:
    """The predictions of a model for texts with one label each.

    The probabilities are the softmax of a text's logits, float64 [texts, labels]; with more than
    `MAX_LISTED_PROBABILITIES` labels only of the predicted label, float64 [texts, 1].
    """

    chunk_labels: np.ndarray  # int64 [chunks], true labels, text by text
    chunk_predicted: np.ndarray  # int64 [chunks]
    chunk_losses: np.ndarray  # float64 [chunks], cross-entropies in nats, with label smoothing
    sources: np.ndarray  # int64 [texts], source rows, ascending
    labels: np.ndarray  # int64 [texts], true labels
    predicted: np.ndarray  # int64 [texts], by the logits of the text
    first_predicted: np.ndarray  # int64 [texts], by the first chunk, as if texts were truncated
    probabilities: np.ndarray
    chunks: np.ndarray  # int64 [texts], number of chunks

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        logits: np.ndarray,
        smoothing: float = 0.0,
        text_logits: np.ndarray | None = None,
    ) -> Scored:
        """Derives predictions from logits.

        Args:
            chunks: Text by text, in the order of the source rows.
            logits: float [chunks, labels].
            smoothing: Share of the target that is spread over all labels, for the losses.
            text_logits: float [texts, labels]; None: the mean over the chunks of each text.
        """
        labels = np.array([chunk.label for chunk in chunks])
        sources, first, counts = find_texts(chunks)

        exact_logits = logits.astype(np.float64)
        losses = functional.cross_entropy(
            torch.from_numpy(exact_logits),
            torch.from_numpy(labels),
            reduction="none",
            label_smoothing=smoothing,
        )

        if text_logits is None:
            text_logits = average_over_chunks(exact_logits, first, counts)
        probabilities = softmax(text_logits, axis=1)
        if probabilities.shape[1] > MAX_LISTED_PROBABILITIES:
            probabilities = probabilities.max(1, keepdims=True)

        return cls(
            chunk_labels=labels,
            chunk_predicted=logits.argmax(1),
            chunk_losses=losses.numpy(),
            sources=sources,
            labels=labels[first],
            predicted=text_logits.argmax(1),
            first_predicted=logits[first].argmax(1),
            probabilities=probabilities,
            chunks=counts,
        )


@dataclass(frozen=True)
class ScoredSets:
    """The predictions of a model for texts that may have several labels."""

    chunk_losses: np.ndarray
    """float64 [chunks], weighted mean over the labels of the binary cross-entropy, in nats."""
    chunk_weights: np.ndarray  # float64 [chunks], sum of the weights of the labels
    sources: np.ndarray  # int64 [texts], source rows, ascending
    labels: np.ndarray  # bool [texts, labels], true labels
    probabilities: np.ndarray  # float32 [texts, labels], sigmoids of the logits of the text
    first_probabilities: np.ndarray  # float32 [texts, labels], of the first chunk of each text
    chunks: np.ndarray  # int64 [texts], number of chunks
    thresholds: np.ndarray  # float64 [labels]

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        logits: np.ndarray,
        thresholds: np.ndarray,
        weights: Sequence[float] | None = None,
        smoothing: float = 0.0,
        text_logits: np.ndarray | None = None,
    ) -> ScoredSets:
        """Derives predictions from logits.

        Args:
            chunks: Text by text, in the order of the source rows.
            logits: float [chunks, labels].
            thresholds: float64 [labels].
            weights: See `weigh_pairs`.
            smoothing: See `compute_pair_losses`.
            text_logits: float [texts, labels]; None: the mean over the chunks of each text.
        """
        labels = [chunk.label for chunk in chunks]
        truth = make_truth(labels, logits.shape[1], has_several=True)
        sources, first, counts = find_texts(chunks)

        exact_logits = logits.astype(np.float64)
        pair_weights = weigh_pairs(torch.from_numpy(truth).double(), weights)
        losses = compute_pair_losses(
            torch.from_numpy(exact_logits), torch.from_numpy(truth).double(), smoothing
        )
        chunk_weights = pair_weights.sum(1)

        if text_logits is None:
            text_logits = average_over_chunks(exact_logits, first, counts)
        return cls(
            chunk_losses=((losses * pair_weights).sum(1) / chunk_weights).numpy(),
            chunk_weights=chunk_weights.numpy(),
            sources=sources,
            labels=truth[first],
            probabilities=expit(text_logits).astype(np.float32),
            first_probabilities=expit(exact_logits[first]).astype(np.float32),
            chunks=counts,
            thresholds=thresholds,
        )

    @property
    def predicted(self) -> np.ndarray:
        """The labels predicted by the logits of the text, bool [texts, labels]."""
        return apply_thresholds(self.probabilities, self.thresholds)

    @property
    def first_predicted(self) -> np.ndarray:
        """The labels predicted by the first chunk, as if texts were truncated.

        bool [texts, labels].
        """
        return apply_thresholds(self.first_probabilities, self.thresholds)


AnyScored = Scored | ScoredSets


def weigh_pairs(truth: torch.Tensor, weights: Sequence[float] | None) -> torch.Tensor:
    """Returns the weight of each pair of a chunk and a label in the loss, float [chunks, labels].

    Args:
        truth: float [chunks, labels], 1 for the labels of a chunk.
        weights: Weight of each label in chunks with the label; None: 1. In chunks without it, the
            weight is 1.
    """
    if weights is None:
        return torch.ones_like(truth)
    factors = torch.as_tensor(weights, dtype=truth.dtype, device=truth.device)
    return truth * factors + (1 - truth)


def compute_pair_losses(
    logits: torch.Tensor, truth: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Computes the binary cross-entropy of each chunk and label in nats, float [chunks, labels].

    Args:
        logits: float [chunks, labels].
        truth: float [chunks, labels], 1 for the labels of a chunk.
        smoothing: Share of the target that is spread evenly over yes and no.
    """
    target = truth * (1 - smoothing) + smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits, target, reduction="none")


class TextRanges(NamedTuple):
    """Source texts as ranges of a list of chunks."""

    sources: np.ndarray  # int64 [texts], source rows, ascending
    first: np.ndarray  # int64 [texts], index of the first chunk
    counts: np.ndarray  # int64 [texts], number of chunks


def find_texts(chunks: Sequence[Chunk]) -> TextRanges:
    """Finds the ranges of source texts in chunks that are sorted by source."""
    sources = [chunk.source for chunk in chunks]
    return TextRanges(*np.unique(sources, return_index=True, return_counts=True))


def join_texts(chunks: Sequence[Chunk]) -> list[str]:
    """Joins consecutive chunks of the same source; returns one string for each source text."""
    texts: list[str] = []
    for _, text_chunks in groupby(chunks, attrgetter("source")):
        texts.append("".join(chunk.text for chunk in text_chunks))
    return texts


def average_over_chunks(values: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Averages values over the chunks of each text.

    Args:
        values: float [chunks, n].
        first, counts: See `TextRanges`.

    Returns:
        float [texts, n].
    """
    return np.add.reduceat(values, first, axis=0) / counts[:, None].astype(values.dtype)


def name_probabilities(shares: np.ndarray | None, labels: Sequence[str]) -> dict[str, Any]:
    """Makes the fields of a prediction from a row of probabilities.

    Args:
        shares: float [labels or 1], a row of `Scored.probabilities`; None: the fields are None.
    """
    if len(labels) > MAX_LISTED_PROBABILITIES:
        return {"probability": None if shares is None else float(shares[0])}

    values = [None] * len(labels) if shares is None else shares.tolist()
    return {"probabilities": dict(zip(labels, values, strict=True))}


def iterate_predictions(scored: AnyScored, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the prediction for each text, its probabilities and its number of chunks.

    The prediction is a label, or a list of labels. With more than `MAX_LISTED_PROBABILITIES`
    labels, `probability` has only the probability of the predicted label, or those of the list.
    """
    if isinstance(scored, ScoredSets):
        yield from _iterate_set_predictions(scored, labels)
        return

    rows = zip(scored.predicted.tolist(), scored.probabilities, scored.chunks.tolist(), strict=True)
    for label, shares, chunks in rows:
        probabilities = name_probabilities(shares, labels)
        yield {"prediction": labels[label], **probabilities, "chunks": chunks}


def _iterate_set_predictions(scored: ScoredSets, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields predictions of several labels; see `iterate_predictions`."""
    rows = zip(scored.predicted, scored.probabilities, scored.chunks.tolist(), strict=True)
    for is_predicted, shares, chunks in rows:
        numbers = np.flatnonzero(is_predicted).tolist()
        probabilities = name_probabilities(shares, labels)
        if len(labels) > MAX_LISTED_PROBABILITIES:
            probabilities = {"probability": [float(shares[number]) for number in numbers]}
        names = [labels[number] for number in numbers]
        yield {"prediction": names, **probabilities, "chunks": chunks}


@dataclass(frozen=True)
class Scorer:
    """Runs models on chunks of texts; all ranks call it together, and get the same results."""

    labels: int  # number of labels
    tokenizer: PreTrainedTokenizerBase  # pads the chunks
    batch_size: int
    context: Processes
    smoothing: float = 0.0  # label smoothing of the losses
    weights: Sequence[float] | None = None
    """Weight of each label in the losses of texts with several labels; see `weigh_pairs`."""

    def score(self, model: nn.Module, chunks: Sequence[Chunk]) -> AnyScored:
        """Predicts the labels of texts: one for each, or several if the model has thresholds.

        Args:
            model: A classifier in evaluation mode, which may be wrapped by an engine.
            chunks: At least one; text by text, in the order of the source rows.

        Raises:
            DataError: If there are more than `MAX_SCORED_PAIRS` texts with labels to score.
        """
        counts = find_texts(chunks).counts
        thresholds = read_thresholds(getattr(model, "module", model))
        if thresholds is not None and len(counts) * self.labels > MAX_SCORED_PAIRS:
            raise DataError(
                f"{len(counts):,} texts with {self.labels:,} labels, any of which a text may have, "
                f"are too many to score at one time: expected at most {MAX_SCORED_PAIRS:,} pairs; "
                "divide the file, or set smaller shares of validation and test in "
                "data_config.split_fractions"
            )

        results: dict[str, np.ndarray] = {}
        filled: Counter[str] = Counter()  # number of rows that are filled in each result
        for batch in self._divide_chunks(counts.tolist()):
            part_chunks = chunks[batch]
            logits, text_logits = self._compute_logits(model, part_chunks)
            scored: AnyScored
            if thresholds is None:
                scored = Scored.of(part_chunks, logits, self.smoothing, text_logits)
            else:
                scored = ScoredSets.of(
                    part_chunks, logits, thresholds, self.weights, self.smoothing, text_logits
                )

            # Copied into one buffer per field: arrays kept from each part would fragment the
            # memory, so that the next logits would not fit.
            for name, values in vars(scored).items():
                if name == "thresholds":
                    continue
                if name not in results:
                    rows = len(chunks) if name.startswith("chunk_") else len(counts)
                    results[name] = np.empty((rows, *values.shape[1:]), values.dtype)
                results[name][filled[name] : filled[name] + len(values)] = values
                filled[name] += len(values)
        if thresholds is not None:
            return ScoredSets(**results, thresholds=thresholds)
        return Scored(**results)

    def _divide_chunks(self, counts: Sequence[int]) -> Iterator[slice]:
        """Yields ranges of chunks of whole texts with up to `MAX_LOGITS` logits.

        Args:
            counts: Number of chunks of each text.
        """
        begin = 0
        end = 0
        for count in counts:
            if end > begin and (end + count - begin) * self.labels > MAX_LOGITS:
                yield slice(begin, end)
                begin = end
            end += count
        yield slice(begin, end)

    def _compute_logits(
        self, model: nn.Module, chunks: Sequence[Chunk]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Computes the logits of chunks, and of texts if they are not means over their chunks."""
        unwrapped = getattr(model, "module", model)
        words = unwrapped.words if isinstance(unwrapped, Classifier) else None
        if words is not None and unwrapped.encoder is None:
            logits = np.zeros((len(chunks), self.labels))
        else:
            logits = self.compute_outputs(lambda **inputs: model(**inputs).logits, chunks)
        if words is None:
            return logits, None

        texts = find_texts(chunks)
        means = average_over_chunks(logits.astype(np.float64), texts.first, texts.counts)
        whole_texts = join_texts(chunks)
        text_word_logits = words.logits(whole_texts)
        chunk_word_logits = text_word_logits
        if len(whole_texts) < len(chunks):
            chunk_word_logits = words.logits([chunk.text for chunk in chunks])
        return logits + chunk_word_logits, means + text_word_logits

    def compute_outputs(
        self, function: Callable[..., torch.Tensor], chunks: Sequence[Chunk]
    ) -> np.ndarray:
        """Applies a function to chunks in batches, divided among the ranks.

        Args:
            function: Takes `input_ids` and `attention_mask`, and returns float [batch, n].

        Returns:
            float32 [chunks, n].
        """

        def run(batch: np.ndarray) -> np.ndarray:
            inputs = pad_chunks(self.tokenizer, [chunks[number].ids for number in batch])
            with torch.no_grad():
                inputs = {name: ids.to(self.context.device) for name, ids in inputs.items()}
                outputs: np.ndarray = function(**inputs).float().cpu().numpy()
            return outputs

        batches = sort_into_batches([len(chunk.ids) for chunk in chunks], self.batch_size)
        return np.stack(run_on_all_ranks(batches, run, self.context))

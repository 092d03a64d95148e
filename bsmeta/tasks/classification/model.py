"""Builds and loads the model of a run, and runs it on the chunks of texts.

It is a `Classifier`, or with `pooling=head` a model of transformers. Its loss is cross-entropy with
label smoothing, weighted by the label of each chunk. The loss of a step is sum(weight x
cross-entropy) / sum(weight) over its global batch; the weights are known before the backward pass.

Of the logits of a split, only the labels, losses and probabilities are kept. Those of a source text
are the mean over its chunks, and of a model with word features those of the words of the whole text
beside them. Those of many texts and labels would not fit into memory, so they are computed for some
texts at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy.special import softmax
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.core.errors import ConfigurationError, DataError, nearest
from bsmeta.core.model_files import new_model, read_model_and_report
from bsmeta.models import pretrained
from bsmeta.models.shapes import hidden_size_of
from bsmeta.tasks.classification.classifier import (
    Classifier,
    Description,
    freeze_below,
    is_classifier,
    load_linear,
    read_description,
)
from bsmeta.tasks.classification.config import FINE_TUNE, ClassificationConfig
from bsmeta.tasks.classification.examples import Chunk, words_limit
from bsmeta.training.processes import Processes
from bsmeta.training.task import batches_of, spread

HEAD_DROPOUT = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "resid_pdrop")
HEAD_STD = 0.02
# What the architectures of transformers call their dropouts.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout",
    "attention_dropout", "seq_classif_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop",
    "activation_dropout", "hidden_dropout", "embedding_dropout", "mlp_dropout", "pooler_dropout",
)  # fmt: skip
MOST_PROBABILITIES = 100
"""Labels up to which a prediction has the probability of each; else that of the predicted one."""
LOGITS_AT_ONCE = 1 << 21
_LISTED = 20

logger = logging.getLogger(__name__)


def build_with_head(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> PreTrainedModel:
    """The model of transformers: float32, on the CPU (on torch's device meta, without weights).

    Raises:
        ConfigurationError: If it cannot be built, or has fewer positions than `max_length`.
        DataError: If the weights are not those of its encoder.
    """
    model, new = _build(config, tokenizer, labels)
    if new:
        logger.info("%s: new random weights for %s", config.model_name, ", ".join(new))
    return model


def untouched_encoder(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> PreTrainedModel:
    """The encoder before any training, in evaluation mode, with all of its weights.

    Also those of random weights are those that the run begins with; the generator is left alone.
    """
    with torch.random.fork_rng(devices=[]), pretrained.whole_weights():
        torch.manual_seed(config.seed)
        return _without_pooler(_build(config, tokenizer, labels)[0].base_model).eval()


def build_classifier(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> Classifier:
    """The encoder with a new linear head, and only the layers trainable that are to be trained."""
    encoder = _without_pooler(_build(config, tokenizer, labels)[0].base_model)
    freeze_below(encoder, config.train_layers)
    dropouts = [getattr(encoder.config, name, None) for name in HEAD_DROPOUT]
    dropout = next((value for value in dropouts if value is not None), 0.0)
    description = Description(FINE_TUNE, list(labels), config.pooling, has_words=False)
    head = nn.Linear(hidden_size_of(encoder.config), len(labels))
    nn.init.normal_(head.weight, std=HEAD_STD)  # as transformers begins one
    nn.init.zeros_(head.bias)
    return Classifier(description, encoder, head, dropout=dropout)


def _build(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> tuple[PreTrainedModel, list[str]]:
    """The model of transformers, and the names of the weights that its files lack."""
    kind = AutoModelForSequenceClassification
    key, source = pretrained.model_source(config)
    shape = pretrained.model_shape(config, kind)
    shape.id2label = dict(enumerate(labels))
    shape.label2id = {label: number for number, label in enumerate(labels)}
    shape.problem_type = "single_label_classification"
    shape.pad_token_id = tokenizer.pad_token_id
    _check_length(config, pretrained.token_limit(shape, tokenizer), tokenizer, f"{key}={source}")
    if config.dropout is not None:
        for name in DROPOUTS:
            if hasattr(shape, name):
                setattr(shape, name, config.dropout)
    is_real = torch.get_default_device().type != "meta"
    new: list[str] = []
    with pretrained.explained(key, source, kind):
        if config.model_config_file is not None or not is_real:
            model = new_model(kind, shape, dtype=torch.float32)
        else:
            model, new = _pretrained(source, f"{key}={source}", shape)
    if is_real and len(tokenizer) > pretrained.vocabulary_of(model):
        model.resize_token_embeddings(len(tokenizer))
    return model, new


def _check_length(
    config: ClassificationConfig, limit: int | None, tokenizer: PreTrainedTokenizerBase, where: str
) -> None:
    data = config.data_config
    if limit is None:
        return
    if data.fold_by == "tokens" and data.max_length > limit:
        raise ConfigurationError(
            f"data_config.max_length={data.max_length}: expected at most {limit}, the tokens of a "
            f"row of the model ({where}); longer texts are folded into several rows"
        )
    if data.fold_by == "words" and words_limit(tokenizer) > limit:
        raise ConfigurationError(
            f"data_config.fold_by=words: chunks may have {words_limit(tokenizer)} tokens, but a "
            f"row of the model {limit} ({where}); expected fold_by=tokens, or "
            f'"model_max_length": {limit} in the tokenizer_config.json of the tokenizer'
        )


def _pretrained(source: str, where: str, shape: Any) -> tuple[PreTrainedModel, list[str]]:
    """Loads the model, and names its random weights, which only a head may have."""
    pretrained.check_files(source, where)
    with _without_warnings():
        model, info = read_model_and_report(
            AutoModelForSequenceClassification, source, config=shape, dtype=torch.float32,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    other_shape = [entry[0] for entry in info["mismatched_keys"]]
    problems = {
        "missing": info["missing_keys"],
        "unexpected": info["unexpected_keys"],
        "of another shape": other_shape,
    }
    encoder, found = f"{model.base_model_prefix}.", []
    for word, names in problems.items():
        own = sorted(n for n in names if n.startswith(encoder) and ".pooler." not in n)
        if own:
            found.append(f"{word}: {', '.join(own[:3])}")
    if found:
        raise DataError(
            f"{where}: the weights in {source} are not those of the encoder of its config.json "
            f"({'; '.join(found)}); copy the folder again, or fix its config.json"
        )
    return model, sorted({*info["missing_keys"], *other_shape})


def load_model(folder: Path) -> nn.Module:
    """A trained classifier, in evaluation mode; `folder` is one that a run has exported.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    task = "task=classification"
    if not is_classifier(folder):
        return pretrained.load_exported(
            AutoModelForSequenceClassification, folder, "classifier", task
        )
    pretrained.check_files(str(folder), f"{folder}")
    encoder = None
    if read_description(folder).pooling is not None:
        with _without_warnings():  # the weights of the pooler are missing
            loaded = pretrained.load_exported(
                AutoModel, folder, "encoder", task, optional=".pooler."
            )
        encoder = _without_pooler(loaded)
    return load_linear(folder, encoder)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences transformers, which prints a table of missing weights."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def _without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """The encoder, without the pooler that some encoders have in addition to token vectors."""
    if isinstance(getattr(encoder, "pooler", None), nn.Module):
        encoder.pooler = None
    return encoder


def labels_of(model: nn.Module) -> tuple[str, ...]:
    """The labels of a trained classifier, in the order of its logits."""
    if isinstance(model, Classifier):
        return tuple(model.description.labels)
    names: Any = model.config
    return tuple(names.id2label[number] for number in range(names.num_labels))


def label_weights(
    class_weights: Any, labels: Sequence[str], counts: Mapping[str, int]
) -> list[float]:
    """The weight of each label, from the configured ones and the number of its training rows.

    Raises:
        ConfigurationError: If one is for an unknown label.
    """
    if class_weights == "none":
        return [1.0] * len(labels)
    if class_weights == "balanced":
        total = sum(counts.values())
        return [total / (len(labels) * max(counts.get(label, 0), 1)) for label in labels]
    given = {str(label): value for label, value in class_weights.items()}
    for label in given:
        if label not in labels:
            raise ConfigurationError(
                f"class_weights: there is no label {label}{nearest(label, labels)}; expected some "
                f"of {listed(labels)}"
            )
    return [float(given.get(label, 1.0)) for label in labels]


def listed(labels: Sequence[str]) -> str:
    """The labels for a message, of many the first ones."""
    more = f", and {len(labels) - _LISTED:,} more" if len(labels) > _LISTED else ""
    return ", ".join(labels[:_LISTED]) + more


def pad(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, int64 [chunks, longest chunk]."""
    padded = tokenizer.pad({"input_ids": [list(chunk) for chunk in ids]}, return_tensors="pt")
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


@dataclass(frozen=True)
class Scored:
    """What a model predicts for texts.

    The probabilities are the softmax of the mean logits, float64 [texts, labels]; of more than
    `MOST_PROBABILITIES` labels only that of the predicted one, [texts, 1].
    """

    chunk_labels: np.ndarray  # int64 [chunks], of all chunks, text by text
    chunk_predicted: np.ndarray  # int64 [chunks]
    chunk_losses: np.ndarray  # float64 [chunks], cross-entropies in nats, with label smoothing
    sources: np.ndarray  # int64 [texts], the source rows, ascending
    labels: np.ndarray  # int64 [texts]
    predicted: np.ndarray  # int64 [texts], by the mean logits over the chunks of a text
    first_predicted: np.ndarray  # int64 [texts], by the first chunk: as if texts were truncated
    probabilities: np.ndarray
    chunks: np.ndarray  # int64 [texts], the number of chunks

    @classmethod
    def of(
        cls, chunks: Sequence[Chunk], logits: np.ndarray, smoothing: float = 0.0,
        text_logits: np.ndarray | None = None,
    ) -> Scored:  # fmt: skip
        """What the logits of chunks, float [chunks, labels], predict.

        Args:
            chunks: Text by text, in the order of the source rows.
            text_logits: float [texts, labels]; None: the mean over the chunks of each text.
        """
        labels = np.array([chunk.label for chunk in chunks])
        sources, first, counts = texts_of(chunks)
        exact = logits.astype(np.float64)
        losses = functional.cross_entropy(
            torch.from_numpy(exact), torch.from_numpy(labels), reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        means = means_over_chunks(exact, first, counts) if text_logits is None else text_logits
        shares = softmax(means, axis=1)
        return cls(
            chunk_labels=labels,
            chunk_predicted=logits.argmax(1),
            chunk_losses=losses.numpy(),
            sources=sources,
            labels=labels[first],
            predicted=means.argmax(1),
            first_predicted=logits[first].argmax(1),
            probabilities=(
                shares if shares.shape[1] <= MOST_PROBABILITIES else shares.max(1, keepdims=True)
            ),
            chunks=counts,
        )


def texts_of(chunks: Sequence[Chunk]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The source row of each text, its first chunk, and the number of its chunks, int [texts]."""
    return np.unique([chunk.source for chunk in chunks], return_index=True, return_counts=True)


def joined_texts(chunks: Sequence[Chunk]) -> list[str]:
    """The texts of chunks, text by text."""
    return ["".join(part.text for part in own) for _, own in groupby(chunks, lambda c: c.source)]


def means_over_chunks(values: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The means of values, float [chunks, n], over the chunks of each text (see `texts_of`)."""
    return np.add.reduceat(values, first, axis=0) / counts[:, None].astype(values.dtype)


def named_probabilities(shares: np.ndarray | None, labels: Sequence[str]) -> dict[str, Any]:
    """A row of `Scored.probabilities` as a part of a record; None: without values."""
    if len(labels) > MOST_PROBABILITIES:
        return {"probability": None if shares is None else float(shares[0])}
    values = [None] * len(labels) if shares is None else shares.tolist()
    return {"probabilities": dict(zip(labels, values, strict=True))}


def predictions(scored: Scored, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the predicted label, the probabilities and the number of chunks of each text."""
    rows = zip(scored.predicted.tolist(), scored.probabilities, scored.chunks.tolist(), strict=True)
    for number, shares, chunks in rows:
        yield {
            "prediction": labels[number], **named_probabilities(shares, labels), "chunks": chunks
        }  # fmt: skip


@dataclass(frozen=True)
class Scorer:
    """Runs models on chunks of texts; every rank calls it and gets the same results."""

    labels: int  # their number
    tokenizer: PreTrainedTokenizerBase  # pads the chunks
    batch_size: int
    context: Processes
    smoothing: float = 0.0  # share of the target that is spread over all labels, for the losses

    def score(self, model: nn.Module, chunks: Sequence[Chunk]) -> Scored:
        """What a model, wrapped or not, in evaluation mode, predicts for texts.

        There is at least one chunk; they are text by text, in the order of the source rows.
        """
        _, _, counts = texts_of(chunks)
        found: dict[str, np.ndarray] = {}
        filled: Counter[str] = Counter()
        for part in self._parts(counts.tolist()):
            own = chunks[part]
            logits, text_logits = self._logits(model, own)
            for name, values in vars(Scored.of(own, logits, self.smoothing, text_logits)).items():
                # Copied to where they stay: arrays kept from each part would divide the free memory
                # between them, so that the next logits would not fit in.
                if name not in found:
                    rows = len(chunks) if name.startswith("chunk_") else len(counts)
                    found[name] = np.empty((rows, *values.shape[1:]), values.dtype)
                found[name][filled[name] : filled[name] + len(values)] = values
                filled[name] += len(values)
        return Scored(**found)

    def _parts(self, counts: Sequence[int]) -> Iterator[slice]:
        """Yields the chunks of consecutive texts whose logits fit in memory together."""
        begin = end = 0
        for count in counts:
            if end > begin and (end + count - begin) * self.labels > LOGITS_AT_ONCE:
                yield slice(begin, end)
                begin = end
            end += count
        yield slice(begin, end)

    def _logits(
        self, model: nn.Module, chunks: Sequence[Chunk]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The logits of chunks, and of texts if they are not the means over their chunks."""
        plain = getattr(model, "module", model)
        words = plain.words if isinstance(plain, Classifier) else None
        if words is not None and plain.encoder is None:
            logits = np.zeros((len(chunks), self.labels))
        else:
            logits = self.outputs(lambda **inputs: model(**inputs).logits, chunks)
        if words is None:
            return logits, None
        _, first, counts = texts_of(chunks)
        means = means_over_chunks(logits.astype(np.float64), first, counts)
        return (
            logits + words.logits([chunk.text for chunk in chunks]),
            means + words.logits(joined_texts(chunks)),
        )

    def outputs(self, function: Callable[..., torch.Tensor], chunks: Sequence[Chunk]) -> np.ndarray:
        """What a function of `input_ids` and `attention_mask` returns for chunks, float32
        [chunks, n]; its model is in evaluation mode.
        """

        def run(batch: np.ndarray) -> np.ndarray:
            inputs = pad(self.tokenizer, [chunks[number].ids for number in batch])
            with torch.no_grad():
                inputs = {name: ids.to(self.context.device) for name, ids in inputs.items()}
                found: np.ndarray = function(**inputs).float().cpu().numpy()
            return found

        batches = batches_of([len(chunk.ids) for chunk in chunks], self.batch_size)
        return np.stack(spread(batches, run, self.context))

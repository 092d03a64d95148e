"""The model to train, and its loss: an encoder, loaded or of random weights, and a head.

The loss is cross-entropy with label smoothing, weighted by the label of each chunk. The loss of a
step is sum(weight x cross-entropy) / sum(weight) over its global batch; the weights are known
before the backward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.core.errors import ConfigurationError, DataError, nearest
from bsmeta.models.pretrained import (
    check_files,
    explained,
    load_exported,
    model_shape,
    model_source,
    token_limit,
    vocabulary_of,
    whole_weights,
)
from bsmeta.tasks.classification import classifier
from bsmeta.tasks.classification.config import FINE_TUNE, ClassificationConfig
from bsmeta.tasks.classification.examples import words_limit

logger = logging.getLogger(__name__)

_LISTED = 20

# What the architectures of transformers call their dropouts.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout",
    "attention_dropout", "seq_classif_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop",
    "activation_dropout", "hidden_dropout", "embedding_dropout", "mlp_dropout", "pooler_dropout",
)  # fmt: skip


def build_encoder(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> PreTrainedModel:
    """The encoder alone, without a pooler of its own; see `build_with_head`."""
    with_head, _ = _build(config, tokenizer, labels)
    return classifier.without_pooler(with_head.base_model)


def untouched_encoder(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> PreTrainedModel:
    """The encoder before any training, in evaluation mode, with all of its weights.

    Also those of random weights are those that the run begins with; the generator is left alone.
    """
    with torch.random.fork_rng(devices=[]), whole_weights():
        torch.manual_seed(config.seed)
        return build_encoder(config, tokenizer, labels).eval()


def build_classifier(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> classifier.Classifier:
    """The encoder with a new linear head, and only the layers trainable that are to be trained."""
    encoder = build_encoder(config, tokenizer, labels)
    classifier.freeze_below(encoder, config.train_layers)
    names = (name for name in classifier.HEAD_DROPOUT if hasattr(encoder.config, name))
    dropouts = [getattr(encoder.config, name) for name in names]
    dropout = next((value for value in dropouts if value is not None), 0.0)
    description = classifier.Description(FINE_TUNE, list(labels), config.pooling, has_words=False)
    head = classifier.random_head(encoder.config.hidden_size, len(labels))
    return classifier.Classifier(description, encoder, head, dropout=dropout)


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


def _build(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> tuple[PreTrainedModel, list[str]]:
    """The model of transformers, and the names of the weights that its files lack."""
    kind = AutoModelForSequenceClassification
    key, source = model_source(config)
    shape = _shape(config, tokenizer, labels)
    random_weights = config.model_config_file is not None
    is_real = torch.get_default_device().type != "meta"
    new: list[str] = []
    with explained(key, source, kind):
        if random_weights or not is_real:
            model = kind.from_config(shape, dtype=torch.float32)
        else:
            model, new = _pretrained(source, f"{key}={source}", shape)
    if is_real and len(tokenizer) > vocabulary_of(model):
        model.resize_token_embeddings(len(tokenizer))
    return model, new


def _shape(
    config: ClassificationConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> Any:
    """The transformers config of the model."""
    key, source = model_source(config)
    shape = model_shape(config, AutoModelForSequenceClassification)
    shape.id2label = dict(enumerate(labels))
    shape.label2id = {label: number for number, label in enumerate(labels)}
    shape.problem_type = "single_label_classification"
    shape.pad_token_id = tokenizer.pad_token_id
    _check_length(config, shape, tokenizer, f"{key}={source}")
    if config.dropout is not None:
        for name in DROPOUTS:
            if hasattr(shape, name):
                setattr(shape, name, config.dropout)
    return shape


def pad(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, int64 [chunks, longest chunk]."""
    padded = tokenizer.pad({"input_ids": [list(chunk) for chunk in ids]}, return_tensors="pt")
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


def load_model(folder: Path) -> nn.Module:
    """A trained classifier, in evaluation mode; `folder` is one that `export` has written."""
    if classifier.is_classifier(folder):
        return classifier.load(folder)
    kind = AutoModelForSequenceClassification
    return load_exported(kind, folder, "classifier", "task=classification")


def labels_of(model: nn.Module) -> tuple[str, ...]:
    """The labels of a trained classifier, in the order of its logits."""
    if isinstance(model, classifier.Classifier):
        return tuple(model.description.labels)
    names: Any = model.config
    return tuple(names.id2label[number] for number in range(names.num_labels))


def _check_length(
    config: ClassificationConfig, shape: Any, tokenizer: PreTrainedTokenizerBase, where: str
) -> None:
    limit, data = token_limit(shape, tokenizer), config.data_config
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
    """Loads the encoder's weights; only the head may be random, and only heads may be ignored.

    Returns:
        The model, and the names of the random weights.
    """
    check_files(source, where)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # its table of missing weights
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source, config=shape, dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    finally:
        transformers.logging.set_verbosity(verbosity)
    encoder = f"{model.base_model_prefix}."

    def of_encoder(names: Any) -> list[str]:
        return sorted(n for n in names if n.startswith(encoder) and ".pooler." not in n)

    other_shape = [entry[0] for entry in info["mismatched_keys"]]
    problems = {
        "missing": of_encoder(info["missing_keys"]),
        "unexpected": of_encoder(info["unexpected_keys"]),
        "of another shape": of_encoder(other_shape),
    }
    found = [f"{word}: {', '.join(names[:3])}" for word, names in problems.items() if names]
    if found:
        raise DataError(
            f"{where}: the weights in {source} are not those of the encoder of its config.json "
            f"({'; '.join(found)}); copy the folder again, or fix its config.json"
        )
    return model, sorted({*info["missing_keys"], *other_shape})


def label_weights(
    class_weights: Any, labels: Sequence[str], counts: Mapping[str, int]
) -> list[float]:
    """The weight of each label.

    Args:
        class_weights: The key of the configuration.
        labels: The labels of the table.
        counts: Source rows of the training split with each label.

    Raises:
        ConfigurationError: If it names an unknown label.
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


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The loss of each chunk before its weight, [chunks], in nats."""
    return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)

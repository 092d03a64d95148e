"""A classifier that is a sum of linear functions: of an encoder's pooled vectors, and of words.

The logits of a text are the mean over its chunks of `head(pooled vector)`, plus the logits from the
TF-IDF features of the whole text. Either part may be absent. Because the head is linear, it can be
initialized with weights that were fitted on frozen vectors (`systems`) before fine-tuning. If a
text may have several labels, the sigmoid of a logit is the probability of its label, and the
description has a threshold for each label.

An exported folder has `config.json` (the encoder's, with the entry `text_classifier`),
`classifier.safetensors`, `ngrams.json` if there are word features, and the encoder's weights and
the tokenizer as `from_pretrained` reads them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import decode_json, parse_json
from bsmeta.models.exporting import write_model
from bsmeta.tasks.classification.config import POOLINGS

if TYPE_CHECKING:  # slow to import, and method=linear needs no encoder
    from transformers import PreTrainedModel

CONFIG_ENTRY = "text_classifier"
"""The entry of `config.json` in an exported folder that describes the classifier."""

# Values of transformers' `problem_type`.
SINGLE_LABEL_TYPE = "single_label_classification"
MULTI_LABEL_TYPE = "multi_label_classification"

# Files of an exported folder.
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "classifier.safetensors"
NGRAMS_FILE = "ngrams.json"

ENCODER_PREFIX = "encoder."
"""Prefix of the encoder's weights in a classifier."""
LOGIT_WEIGHTS = frozenset({"head.weight", "head.bias", "words.weight", "words.bias"})
"""The linear weights of a classifier whose first dimension is that of the logits."""
MAX_WORD_LOGITS = 1 << 22
"""Maximum number of logits of word features that are computed at a time."""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry `text_classifier` of `config.json`."""

    method: str  # the value of the key `method` by which it was trained; not auto
    labels: list[str]  # in the order of the logits
    pooling: str | None  # how the vectors of a chunk's tokens are reduced to one; None: no encoder
    has_words: bool  # whether there are word features
    thresholds: list[float] | None = None
    """Minimum probability of each label to be predicted; None: a text has exactly one label."""

    def __post_init__(self) -> None:
        if self.pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling={self.pooling}: expected one of {', '.join(POOLINGS)}")
        check_labels(self.labels, len(self.labels), has_several=self.thresholds is not None)
        if self.thresholds is not None:
            check_thresholds(self.thresholds, len(self.labels))


def check_labels(labels: Sequence[object], logit_count: int, *, has_several: bool) -> None:
    """Checks the labels of a saved model.

    Args:
        logit_count: The number of logits that the model computes for a text.
        has_several: Whether a text may have several labels.

    Raises:
        ValueError: If they are not one distinct text for each logit, or if every text would have
            the same label.
    """
    if not all(isinstance(label, str) and label.strip() for label in labels):
        raise ValueError("labels: one of them is empty or no text; expected texts")
    if len(set(labels)) < len(labels):
        repeated = next(label for label, count in Counter(labels).items() if count > 1)
        raise ValueError(f"labels: {repeated!r} occurs more than once; expected distinct labels")
    if len(labels) != logit_count:
        raise ValueError(f"labels: found {len(labels)}, expected {logit_count}, one for each logit")
    if len(labels) < 2 and not has_several:
        raise ValueError(f"labels: found {len(labels)}, expected two or more")


def check_thresholds(thresholds: Sequence[float], label_count: int) -> None:
    """Checks the thresholds of a saved model.

    Raises:
        ValueError: If they are not one probability for each label.
    """
    if len(thresholds) != label_count or not all(0 <= value <= 1 for value in thresholds):
        raise ValueError(f"thresholds: expected {label_count} values from 0 to 1")


class NgramModel(nn.Module):
    """Linear functions of the TF-IDF of word unigrams and bigrams (Wang and Manning 2012).

    Args:
        ngrams: The unigrams and bigrams of the features; may be empty.
        idf: float64 [features], inverse document frequencies.
        weight: [labels, features].
        bias: [labels].
    """

    idf: torch.Tensor

    def __init__(
        self, ngrams: Sequence[str], idf: np.ndarray, weight: np.ndarray, bias: np.ndarray
    ) -> None:
        super().__init__()
        self.ngrams = [*ngrams]
        self.register_buffer("idf", torch.from_numpy(np.asarray(idf, np.float64)))
        self.weight = nn.Parameter(torch.from_numpy(np.asarray(weight, np.float32)))
        self.bias = nn.Parameter(torch.from_numpy(np.asarray(bias, np.float32)))
        self._vectorizer: Any = None

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the logits of whole texts, float64 [texts, labels]."""
        bias = self.bias.detach().cpu().double().numpy()
        logits = np.tile(bias, (len(texts), 1))
        if not self.ngrams:
            return logits

        if self._vectorizer is None:
            self._vectorizer = make_vectorizer(vocabulary=self.ngrams)
            self._vectorizer.idf_ = self.idf.cpu().numpy()
        features = self._vectorizer.transform(texts)

        weight = self.weight.detach().cpu().double().numpy().T
        batch_size = max(MAX_WORD_LOGITS // len(bias), 1)
        for start in range(0, len(texts), batch_size):
            batch = slice(start, start + batch_size)
            logits[batch] += features[batch] @ weight
        return logits


def make_vectorizer(**settings: Any) -> Any:
    """Makes scikit-learn's TF-IDF vectorizer of word unigrams and bigrams, with sublinear counts.

    Args:
        settings: Further arguments of the vectorizer, such as its vocabulary.
    """
    # Imported here because importing scikit-learn takes seconds.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **settings
    )


class Classifier(nn.Module):
    """An encoder with a linear head, linear word features, or both.

    Args:
        encoder: A model without a pooler; None: only words are used.
        head: Computes logits from pooled vectors.
        words: Computes logits from the words of the whole text.
        dropout: Dropout probability of the pooled vectors in training.
    """

    def __init__(
        self,
        description: Description,
        encoder: PreTrainedModel | None = None,
        head: nn.Linear | None = None,
        words: NgramModel | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.description = description
        self.encoder = encoder
        self.head = head
        self.words = words
        self.dropout = nn.Dropout(dropout)

    def set_thresholds(self, thresholds: Sequence[float]) -> None:
        """Sets the minimum probability of each label to be predicted."""
        self.description = msgspec.structs.replace(self.description, thresholds=[*thresholds])

    @property
    def config(self) -> Any:
        """The encoder's configuration; None without an encoder."""
        return None if self.encoder is None else self.encoder.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """Computes the logits of chunks by the encoder and the head, without words.

        Returns:
            A namespace with `logits`, float [chunks, labels], like the models of transformers.
        """
        assert self.head is not None
        vectors = self.dropout(self.vectors(input_ids, attention_mask))
        return SimpleNamespace(logits=self.head(vectors))

    def vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Computes the pooled vectors of chunks, float [chunks, hidden size]."""
        assert self.encoder is not None
        assert self.description.pooling is not None
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return pool_vectors(hidden.last_hidden_state, attention_mask, self.description.pooling)

    def save(
        self,
        folder: Path,
        weights: Mapping[str, torch.Tensor] | None = None,
        export_dtype: str | None = None,
    ) -> None:
        """Exports the classifier to a folder, without the tokenizer.

        Args:
            weights: The weights to export by name; None: the current ones.
            export_dtype: Name of the dtype of the exported encoder; None: as in `weights`. The
                linear layers, which are small, keep their dtype.

        Raises:
            ConfigurationError: If a weight is too large for `export_dtype`.
        """
        weights = self.state_dict() if weights is None else weights
        folder.mkdir(parents=True, exist_ok=True)
        if self.encoder is not None:
            encoder_weights = {
                name.removeprefix(ENCODER_PREFIX): weight
                for name, weight in weights.items()
                if name.startswith(ENCODER_PREFIX)
            }
            write_model(self.encoder, encoder_weights, folder, export_dtype)
        self.save_linear(folder, weights)

    def save_linear(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Exports all parts except the encoder to an existing folder; see `save`."""
        weights = self.state_dict() if weights is None else weights

        file = folder / CONFIG_FILE
        config = parse_json(file.read_text(encoding="utf-8")) if file.exists() else {}
        config[CONFIG_ENTRY] = msgspec.to_builtins(self.description)
        if self.description.thresholds is not None:
            config["problem_type"] = MULTI_LABEL_TYPE
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

        linear_weights = {
            name: weight.detach().cpu().contiguous()
            for name, weight in weights.items()
            if not name.startswith(ENCODER_PREFIX)
        }
        save_file(linear_weights, folder / WEIGHTS_FILE)
        if self.words is not None:
            ngrams = json.dumps(self.words.ngrams, ensure_ascii=False)
            (folder / NGRAMS_FILE).write_text(ngrams, encoding="utf-8")


def pool_vectors(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduces the vectors of tokens to one vector for each chunk.

    Args:
        hidden: float [chunks, tokens, size], the vectors of the tokens.
        mask: int64 [chunks, tokens], 0 for padding, which may be on either side.
        pooling: One of `POOLINGS`.

    Returns:
        float [chunks, size].
    """
    if pooling == "mean":
        shares = mask / mask.sum(1, keepdim=True)
        return (hidden * shares[..., None].to(hidden.dtype)).sum(1)
    if pooling == "max":
        return hidden.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)

    if pooling == "cls":
        positions = mask.argmax(1)  # the first token that is not padding
    else:
        numbers = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        positions = (numbers * mask).argmax(1)  # the last one
    return hidden[torch.arange(len(hidden), device=hidden.device), positions]


def measure_depths(encoder: nn.Module) -> dict[str, int]:
    """Returns the depth of each parameter by name: the number of layers above its own.

    The embeddings count as the lowest layer; parameters after the layers, such as a final norm,
    belong to the highest layer.
    """
    from bsmeta.models.layers import list_encoder_layers  # slow to import

    layers = list_encoder_layers(encoder)
    prefixes = {id(module): f"{name}." for name, module in encoder.named_modules()}
    layer_prefixes = [prefixes[id(layer)] for layer in layers]

    depths: dict[str, int] = {}
    outside_depth = len(layers)  # of parameters outside of the layers: first below, then above them
    for name, _ in encoder.named_parameters():
        layer = next(
            (n for n, prefix in enumerate(layer_prefixes) if name.startswith(prefix)), None
        )
        if layer is None:
            depths[name] = outside_depth
        else:
            depths[name] = len(layers) - 1 - layer
            outside_depth = 0
    return depths


def freeze_below(encoder: PreTrainedModel, train_layers: int | None) -> None:
    """Freezes all parameters below the last `train_layers` layers.

    Args:
        train_layers: Number of trainable layers; None: all of them and the embeddings.

    Raises:
        ConfigurationError: If the encoder has fewer layers.
    """
    if train_layers is None:
        return

    from bsmeta.models.layers import list_encoder_layers  # slow to import

    count = len(list_encoder_layers(encoder))
    if train_layers > count:
        raise ConfigurationError(
            f"train_layers={train_layers}: expected at most {count}, the layers of the encoder"
            + ("" if count else " that have weights of their own"),
            ["train_layers"],
        )

    depths = measure_depths(encoder)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(train_layers > 0 and depths[name] < train_layers)


def load_linear(folder: Path, encoder: PreTrainedModel | None) -> Classifier:
    """Loads an exported classifier, around an encoder that the caller has loaded.

    Returns:
        The classifier in evaluation mode.

    Raises:
        DataError: If a file is missing or damaged.
    """
    description = read_description(folder)
    try:
        weights = load_file(folder / WEIGHTS_FILE)
        words = _load_words(folder, weights) if description.has_words else None
        head = None
        if description.pooling is not None:
            label_count, size = weights["head.weight"].shape
            head = nn.Linear(size, label_count)

        for name in LOGIT_WEIGHTS & weights.keys():
            check_labels(
                description.labels,
                len(weights[name]),
                has_several=description.thresholds is not None,
            )

        model = Classifier(description, encoder, head, words)
        state = model.state_dict()
        expected_names = {name for name in state if not name.startswith(ENCODER_PREFIX)}
        if expected_names != weights.keys():
            raise ValueError(
                f"{WEIGHTS_FILE} has {sorted(weights)}, expected {sorted(expected_names)}"
            )
        model.load_state_dict({**state, **weights})
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder}: the classifier cannot be loaded: {error}") from error

    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise DataError(f"{folder / WEIGHTS_FILE}: has values that are not finite")
    return model.eval()


def is_classifier(folder: Path) -> bool:
    """Returns whether an exported folder has a `Classifier`, not a model of transformers."""
    try:
        return CONFIG_ENTRY in parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_description(folder: Path) -> Description:
    """Reads the description of an exported folder.

    Raises:
        DataError: If there is none.
    """
    try:
        config = parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return msgspec.convert(config[CONFIG_ENTRY], Description)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / CONFIG_FILE}: has no valid entry {CONFIG_ENTRY!r} ({error}); expected the "
            "model/ of a run or checkpoint of task=classification"
        ) from error


def _load_words(folder: Path, weights: Mapping[str, torch.Tensor]) -> NgramModel:
    """Loads the word features; raises ValueError if the files do not have the same ones."""
    ngrams = decode_json((folder / NGRAMS_FILE).read_bytes(), list[str])
    idf = weights["words.idf"]
    weight = weights["words.weight"]
    bias = weights["words.bias"]
    if not weight.shape[1] == len(idf) == len(set(ngrams)) == len(ngrams):
        raise ValueError(f"{NGRAMS_FILE} and {WEIGHTS_FILE} do not have the same features")
    return NgramModel(ngrams, idf.numpy(), weight.numpy(), bias.numpy())

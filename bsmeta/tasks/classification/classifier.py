"""A classifier that is a sum of linear functions: of an encoder's pooled vectors, and of words.

The logits of a text are the mean over its chunks of `head(pooled vector)`, plus the logits from the
TF-IDF features of the whole text. Either part may be absent. Because the head is linear,
fine-tuning can begin with a solution that was fitted on frozen vectors (`systems`), and both have
one form. If a text may have several labels, the sigmoid of a logit is the probability of its label,
and the description has a threshold for each label.

An exported folder has `config.json` (the encoder's, with the entry `text_classifier`),
`classifier.safetensors`, `ngrams.json` if there are word features, and the encoder's weights and
the tokenizer as `from_pretrained` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.parsing import decode_json, parse_json
from bsmeta.models.layers import list_encoder_layers
from bsmeta.tasks.classification.config import POOLINGS

ENTRY = "text_classifier"
"""The entry of `config.json` in an exported folder that describes the classifier."""

# Values of transformers' `problem_type`.
ONE_TYPE = "single_label_classification"
SEVERAL_TYPE = "multi_label_classification"

# Files of an exported folder.
CONFIG = "config.json"
WEIGHTS = "classifier.safetensors"
NGRAMS = "ngrams.json"

ENCODER = "encoder."  # prefix of the encoder's weights in a classifier
DECISIONS_AT_ONCE = 1 << 22  # limit on the logits by word features in memory at one time


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry `text_classifier` of `config.json`."""

    method: str  # how the classifier was made: a value of the key `method`, except auto
    labels: list[str]  # in the order of the logits
    pooling: str | None  # how the vectors of a chunk's tokens become one; None: no encoder
    has_words: bool  # whether there are word features
    thresholds: list[float] | None = None
    """Probability from which a text has each label; None: a text has exactly one label."""

    def __post_init__(self) -> None:
        if self.pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling={self.pooling}: expected one of {', '.join(POOLINGS)}")
        if self.thresholds is not None:
            check_thresholds(self.thresholds, len(self.labels))


def check_thresholds(thresholds: Sequence[float], label_count: int) -> None:
    """Refuses thresholds of a saved model that are no probabilities, or not one for each label.

    Raises:
        ValueError: If they cannot be used.
    """
    if len(thresholds) != label_count or not all(0 <= value <= 1 for value in thresholds):
        raise ValueError(f"thresholds: expected {label_count} values from 0 to 1")


class Words(nn.Module):
    """Linear functions of the TF-IDF of words and pairs of words (Wang and Manning 2012).

    Args:
        ngrams: The words and pairs of words of the features; there may be none.
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
        """Computes the logits of texts, float64 [texts, labels]."""
        bias = self.bias.detach().cpu().double().numpy()
        logits = np.tile(bias, (len(texts), 1))
        if not self.ngrams:
            return logits

        if self._vectorizer is None:
            self._vectorizer = make_vectorizer(vocabulary=self.ngrams)
            self._vectorizer.idf_ = self.idf.cpu().numpy()
        features = self._vectorizer.transform(texts)

        weight = self.weight.detach().cpu().double().numpy().T
        at_once = max(DECISIONS_AT_ONCE // len(bias), 1)
        for start in range(0, len(texts), at_once):
            logits[start : start + at_once] += features[start : start + at_once] @ weight
        return logits


def make_vectorizer(**settings: Any) -> Any:
    """Makes scikit-learn's vectorizer of words and pairs of words, sublinear in their counts."""
    # Imported here because scikit-learn takes seconds.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **settings
    )


class Classifier(nn.Module):
    """An encoder with a linear head, linear word features, or both.

    Args:
        encoder: Without a pooler of its own; None: only the words are used.
        head: From the pooled vectors to the logits.
        words: Linear functions of the words of the whole text.
        dropout: Of the pooled vectors, in training.
    """

    def __init__(
        self,
        description: Description,
        encoder: PreTrainedModel | None = None,
        head: nn.Linear | None = None,
        words: Words | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.description = description
        self.encoder = encoder
        self.head = head
        self.words = words
        self.dropout = nn.Dropout(dropout)

    def set_thresholds(self, thresholds: Sequence[float]) -> None:
        """Sets the probability from which a text has each label."""
        self.description = msgspec.structs.replace(self.description, thresholds=[*thresholds])

    @property
    def config(self) -> Any:
        """The encoder's configuration; None without an encoder."""
        return None if self.encoder is None else self.encoder.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """Computes the logits of chunks by the encoder alone: `logits`, float [chunks, labels]."""
        assert self.head is not None
        vectors = self.dropout(self.vectors(input_ids, attention_mask))
        return SimpleNamespace(logits=self.head(vectors))

    def vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Computes the pooled vectors of chunks, float [chunks, hidden size]."""
        assert self.encoder is not None
        assert self.description.pooling is not None
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return pool_vectors(hidden.last_hidden_state, attention_mask, self.description.pooling)

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Writes the folder, without the tokenizer, with the current weights or those given."""
        weights = self.state_dict() if weights is None else weights
        folder.mkdir(parents=True, exist_ok=True)
        if self.encoder is not None:
            encoder_weights = {
                name.removeprefix(ENCODER): weight
                for name, weight in weights.items()
                if name.startswith(ENCODER)
            }
            self.encoder.save_pretrained(folder, state_dict=encoder_weights)
        self.save_linear(folder, weights)

    def save_linear(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Writes all but the encoder into an existing folder."""
        weights = self.state_dict() if weights is None else weights

        file = folder / CONFIG
        config = parse_json(file.read_text(encoding="utf-8")) if file.exists() else {}
        config[ENTRY] = msgspec.to_builtins(self.description)
        if self.description.thresholds is not None:
            config["problem_type"] = SEVERAL_TYPE
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

        linear_weights = {
            name: weight.detach().cpu().contiguous()
            for name, weight in weights.items()
            if not name.startswith(ENCODER)
        }
        save_file(linear_weights, folder / WEIGHTS)
        if self.words is not None:
            ngrams = json.dumps(self.words.ngrams, ensure_ascii=False)
            (folder / NGRAMS).write_text(ngrams, encoding="utf-8")


def pool_vectors(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduces the vectors of tokens to one vector for each chunk.

    Args:
        hidden: float [chunks, tokens, size], the vectors of the tokens.
        mask: int64 [chunks, tokens], 0 at the padding, which may be on either side.
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
        positions = mask.argmax(1)
    else:
        numbers = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        positions = (numbers * mask).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), positions]


def measure_depths(encoder: nn.Module) -> dict[str, int]:
    """Counts the layers above each parameter; the embeddings count as the lowest layer.

    Parameters after the layers, such as a last norm, belong to the highest one.

    Returns:
        The number of layers above, by the name of the parameter.
    """
    layers = list_encoder_layers(encoder)
    prefixes = {id(module): f"{name}." for name, module in encoder.named_modules()}
    layer_prefixes = [prefixes[id(layer)] for layer in layers]

    depths: dict[str, int] = {}
    depth_outside = len(layers)  # of parameters outside of the layers: first below, then above them
    for name, _ in encoder.named_parameters():
        layer = next(
            (n for n, prefix in enumerate(layer_prefixes) if name.startswith(prefix)), None
        )
        if layer is None:
            depths[name] = depth_outside
        else:
            depths[name] = len(layers) - 1 - layer
            depth_outside = 0
    return depths


def freeze_below(encoder: PreTrainedModel, train_layers: int | None) -> None:
    """Freezes all parameters below the last layers.

    Args:
        train_layers: Number of layers that stay trainable; None: all of them and the embeddings.

    Raises:
        ConfigurationError: If the encoder has fewer layers.
    """
    if train_layers is None:
        return

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
    """Loads the classifier of a folder on an encoder that the caller has loaded.

    Returns:
        The classifier in evaluation mode.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    description = read_description(folder)
    try:
        weights = load_file(folder / WEIGHTS)
        words = _load_words(folder, weights) if description.has_words else None
        head = None
        if description.pooling is not None:
            labels, size = weights["head.weight"].shape
            head = nn.Linear(size, labels)

        model = Classifier(description, encoder, head, words)
        state = model.state_dict()
        expected_names = {name for name in state if not name.startswith(ENCODER)}
        if expected_names != weights.keys():
            raise ValueError(f"{WEIGHTS} has {sorted(weights)}, expected {sorted(expected_names)}")
        model.load_state_dict({**state, **weights})
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder}: the classifier cannot be loaded: {error}") from error

    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise DataError(f"{folder / WEIGHTS}: has values that are not finite")
    return model.eval()


def is_classifier(folder: Path) -> bool:
    """Whether an exported folder holds a `Classifier`, not a model of transformers."""
    try:
        return ENTRY in parse_json((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_description(folder: Path) -> Description:
    """Reads the description of an exported folder.

    Raises:
        DataError: If there is none.
    """
    try:
        config = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
        return msgspec.convert(config[ENTRY], Description)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / CONFIG}: has no valid entry {ENTRY!r} ({error}); expected the model/ of a "
            "run or checkpoint of task=classification"
        ) from error


def _load_words(folder: Path, weights: Mapping[str, torch.Tensor]) -> Words:
    ngrams = decode_json((folder / NGRAMS).read_bytes(), list[str])
    idf = weights["words.idf"]
    weight = weights["words.weight"]
    bias = weights["words.bias"]
    if not weight.shape[1] == len(idf) == len(set(ngrams)) == len(ngrams):
        raise ValueError(f"{NGRAMS} and {WEIGHTS} do not have the same features")
    return Words(ngrams, idf.numpy(), weight.numpy(), bias.numpy())

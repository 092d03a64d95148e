"""p(metadata | text) by Bayes' rule over candidates, and the accuracy of its best guess.

    p(value | text) = p(text | value) p(value) / sum over the candidates

Source: "source attribution" of CTRL (Keskar et al. 2019, section 5), here over any metadata type.
A candidate has a label, the class to infer (a host, a year), and a record, which presents it to a
model that was trained on full values (`https://host/`). Prefixes differ in length, and so would the
chunks after them: texts are cut to the room that the longest prefix leaves, so that all candidates
are compared over the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument, Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.scoring import (
    Window,
    max_batch_tokens,
    plan_batches,
    scoring,
)


class Likelihoods:
    """Scores texts after the prefix of each candidate.

    Args:
        all_pieces: Whether to score all chunks of a text, or only its first chunk.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        candidates: Sequence[Record],
        *,
        all_pieces: bool,
        rows: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._device = device
        self._all_pieces = all_pieces
        self._encoder = DocumentEncoder(tokenizer, config)
        renderer = Renderer(config.metadata_config)
        self._heads = [_head(renderer, candidate) for candidate in candidates]
        encoded = self._encoder.encode(self._heads)
        self._prefixes = [candidate.prefix_ids for candidate in encoded]
        length = config.metadata_config.max_seq_len
        self._room = length - max(map(len, self._prefixes))
        self._max_tokens = max_batch_tokens(len(tokenizer), rows, length)

    @property
    def prefixes(self) -> list[str]:
        """The rendered prefix of each candidate."""
        return [head.prefix for head in self._heads]

    def of(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """log p(text | candidate) in nats, and the number of scored tokens of each text.

        Returns:
            float64 [texts, candidates]; int64 [texts], number of scored tokens (all but the first
            of each chunk, which has no loss in training).

        Raises:
            DataError: A log-probability is not finite.
        """
        lead = self._heads[0].lead
        encoded = self._encoder.encode([Rendered(text, lead=lead, body=text) for text in texts])
        windows: list[Window] = []
        owners: list[tuple[int, int]] = []
        for number, document in enumerate(encoded):
            for chunk in self._chunks(document):
                for candidate, prefix in enumerate(self._prefixes):
                    windows.append(_window(prefix, chunk))
                    owners.append((number, candidate))
        sums = np.zeros((len(texts), len(self._prefixes)))
        tokens = np.zeros(len(texts), np.int64)
        batches = plan_batches([len(window.ids) for window in windows], self._max_tokens)
        with scoring(self._model, self._device) as scorer:
            scores = scorer.score([[windows[i] for i in batch] for batch in batches])
        for batch, values in zip(batches, scores, strict=True):
            for index, value in zip(batch, values, strict=True):
                if not np.isfinite(value).all():
                    raise DataError(
                        "checkpoint: the model's log-probabilities are not finite under "
                        f"{self.prefixes[owners[index][1]]!r}, for a text that begins with "
                        f"{texts[owners[index][0]][:40]!r}; expected a checkpoint with finite "
                        "weights, or precision=float32"
                    )
                sums[owners[index]] += value.sum()
                tokens[owners[index][0]] += len(value) if owners[index][1] == 0 else 0
        return sums, tokens

    def _chunks(self, encoded: EncodedDocument) -> list[np.ndarray]:
        """The text's tokens in chunks; leaves out single-token chunks, which have no score."""
        ids = encoded.ids[:-1]
        chunks = [ids[start : start + self._room] for start in range(0, len(ids), self._room)]
        chunks = [chunk for chunk in chunks if len(chunk) > 1]
        return chunks if self._all_pieces else chunks[:1]


def _head(renderer: Renderer, record: Record) -> Rendered:
    assert record.key is not None
    rendered = renderer.render(Document("", None, {record.key: [record]}), (record.key,))
    return replace(rendered, suffix="")


def _window(prefix: np.ndarray, chunk: np.ndarray) -> Window:
    ids = np.concatenate((prefix, chunk))
    scored = np.ones(len(ids), bool)
    scored[: len(prefix) + 1] = False
    nowhere = np.zeros(len(ids), np.int32)  # text positions are not used
    return Window(ids, nowhere, nowhere, scored, len(prefix))


class Labels:
    """Labels of one metadata type."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type, self._config = type_of(key), config

    def of(self, document: Document) -> str | None:
        """The label of a document's first global record of the type; None if it has none."""
        for record in document.records(self.key):
            if not record.is_local():
                try:
                    return self._type.group(str(record.value), self._config)
                except BadDocument as error:
                    raise DataError(f"metadata_{self.key}: {error}") from error
        return None

    def given(self, text: str) -> str:
        """The label of a candidate that a user gave (such as a host or a complete URL).

        Raises:
            ConfigurationError: It has no label of this type.
        """
        try:
            label = self._type.group(text, self._config)
        except BadDocument as error:
            raise ConfigurationError(f"candidates: {text} is no {self.key}: {error}") from error
        if label is None:
            raise ConfigurationError(f"candidates: {text} is no {self.key}")
        return label

    def record(self, label: str) -> Record:
        """The record that presents the label to the model."""
        value = self._type.value_of_group(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """The candidates that texts are attributed to.

    Attributes:
        labels: The labels of the candidates, the most frequent first.
        counts: int64 [candidates], number of held-out documents with each label.
        truths: int64 [documents], index of each held-out document's label; -1 if that is not a
            candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Prior log-probabilities float64 [candidates].

        `empirical` uses the counts in the held-out documents, without the document itself and with
        one added to each (Laplace smoothing).
        """
        if kind == "uniform":
            return np.full(len(self.labels), -np.log(len(self.labels)))
        counts = self.counts + 1.0
        if document is not None and self.truths[document] >= 0:
            counts[self.truths[document]] -= 1
        return np.log(counts / counts.sum())


def find_candidates(
    labels: Labels, given: Sequence[str], documents: HeldOutDocuments | None
) -> Candidates:
    """The given candidates; if there are none, all labels of the held-out documents.

    Raises:
        ConfigurationError: There are fewer than two candidates.
    """
    found: list[str | None] = []
    if documents is not None:
        found = [labels.of(documents[index]) for index in range(len(documents))]
    counts = Counter(label for label in found if label is not None)
    names = [labels.given(label) for label in given] or list(counts)
    names = sorted(dict.fromkeys(names), key=lambda name: (-counts[name], name))
    if len(names) < 2:
        raise ConfigurationError(
            f"candidates={names}: expected at least two values of {labels.key}, given or in the "
            "held-out file"
        )
    place = {name: number for number, name in enumerate(names)}
    return Candidates(
        labels=names,
        counts=np.array([counts[name] for name in names]),
        truths=np.array([place.get(label or "", -1) for label in found], dtype=np.int64),
    )


@dataclass(frozen=True)
class Attribution:
    """The result of an attribution.

    Attributes:
        candidates: The candidates that the texts could be attributed to.
        posterior: float64 [documents, candidates], log p(candidate | text).
        tokens: int64 [documents], number of scored tokens of each text.
        documents: Index of each document among the held-out documents.
    """

    candidates: Candidates
    posterior: np.ndarray
    tokens: np.ndarray
    names: list[str]
    documents: list[int]

    @property
    def truths(self) -> np.ndarray:
        """int64 [documents], index of the correct candidate of each document."""
        return self.candidates.truths[self.documents]

    @property
    def ranks(self) -> np.ndarray:
        """int64 [documents], the 1-based rank of the correct candidate; ties count against it."""
        right = np.take_along_axis(self.posterior, self.truths[:, None], axis=1)
        return (self.posterior >= right).sum(axis=1)


def posterior(likelihoods: np.ndarray, log_priors: np.ndarray) -> np.ndarray:
    """Posterior log-probabilities float64 [texts, candidates], each row normalized.

    Args:
        likelihoods: float64 [texts, candidates], log p(text | candidate).
        log_priors: float64 [texts, candidates].
    """
    joint = likelihoods + log_priors
    return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)

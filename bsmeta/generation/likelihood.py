"""Log-probabilities of texts after each candidate's prefix, over identical tokens.

Prefixes differ in length, and so would the chunks after them. Texts are therefore cut to the room
that the longest prefix leaves, so that all candidates are compared over the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import DataError
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.evaluation.batches import plan_batches
from bsmeta.evaluation.scoring import Window, max_batch_tokens, scoring
from bsmeta.metadata.records import Document, Record
from bsmeta.metadata.rendering import Rendered, Renderer


class Likelihoods:
    """Scores texts after the prefix of each candidate.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        config: How its training data was rendered and encoded.
        candidates: The record of each candidate.
        all_pieces: Whether to score all chunks of a text, or only its first chunk.
        rows: Number of full sequences in a batch.
        device: The device of the model.
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
        self._prefixes = [one.prefix_ids for one in encoded]
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
        for number, one in enumerate(encoded):
            for chunk in self._chunks(one):
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

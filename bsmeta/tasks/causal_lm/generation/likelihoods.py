"""Computes the likelihood of texts after the prefix of each candidate.

Prefixes differ in length. Texts are cut into chunks that fit after the longest prefix, so that all
candidates are compared over the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.text.characters import measure_utf8_lengths
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.data.text.lost_share import describe_lost_bytes
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks.causal_lm.evaluation.batches import limit_batch_tokens, plan_batches
from bsmeta.tasks.causal_lm.evaluation.scorer import open_scorer
from bsmeta.tasks.causal_lm.evaluation.windows import Window, cut_continuations


class _Owner(NamedTuple):
    """The text and the candidate that a window belongs to, by index."""

    text: int
    candidate: int


class Likelihoods:
    """Scores texts (all their chunks, or only the first) after the prefix of each candidate.

    Attributes:
        prefixes: The rendered prefix of each candidate.
        text_bytes: UTF-8 bytes of all texts that were scored.
        lost_bytes: Number of these bytes that the tokenizer loses; their tokens are not scored.
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
        renderings = []
        for record in candidates:
            assert record.key is not None
            rendered = renderer.render(Document("", None, {record.key: [record]}), (record.key,))
            renderings.append(replace(rendered, suffix=""))
        self.prefixes = [rendered.prefix for rendered in renderings]
        self._lead = renderings[0].lead
        self._prefix_ids = [encoded.prefix_ids for encoded in self._encoder.encode(renderings)]

        length = config.metadata_config.max_seq_len
        self._max_chunk_tokens = length - max(len(ids) for ids in self._prefix_ids)
        self._max_tokens = limit_batch_tokens(len(tokenizer), rows, length)
        self.text_bytes = 0
        self.lost_bytes = 0

    def score(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Computes log p(text | candidate) in nats.

        Returns:
            float64 [texts, candidates], and the number of scored tokens: int64 [texts]. The first
            text token of each chunk and tokens that lose text are not scored.

        Raises:
            DataError: If a log-probability is not finite.
        """
        windows, owners = self._cut_windows(texts)
        index_batches = plan_batches([len(window.ids) for window in windows], self._max_tokens)
        batches = []
        for indices in index_batches:
            batches.append([windows[index] for index in indices])
        with open_scorer(self._model, self._device) as scorer:
            scores = scorer.score(batches)

        sums = np.zeros((len(texts), len(self._prefix_ids)))
        tokens = np.zeros(len(texts), np.int64)
        window_indices = chain.from_iterable(index_batches)
        for index, values in zip(window_indices, chain.from_iterable(scores), strict=True):
            text, candidate = owners[index]
            if not np.isfinite(values).all():
                raise DataError(
                    "checkpoint: the model's log-probabilities are not finite under "
                    f"{self.prefixes[candidate]!r}, for a text that begins with "
                    f"{texts[text][:40]!r}; expected a checkpoint with finite weights, or "
                    "precision=float32"
                )
            sums[text, candidate] += values.sum()
            if candidate == 0:  # all candidates score the same tokens
                tokens[text] += len(values)
        return sums, tokens

    def _cut_windows(self, texts: Sequence[str]) -> tuple[list[Window], list[_Owner]]:
        """Cuts texts into windows with each prefix; also returns the owner of each window."""
        encoded = self._encoder.encode(
            [Rendered(text, lead=self._lead, body=text) for text in texts]
        )
        windows: list[Window] = []
        owners: list[_Owner] = []
        for number, document in enumerate(encoded):
            self._count_lost_bytes(texts[number], document)
            chunks = cut_continuations(document, self._prefix_ids, self._max_chunk_tokens)
            if not self._all_pieces:
                chunks = chunks[:1]
            for chunk in chunks:
                for candidate, window in enumerate(chunk):
                    if window.scored.any():
                        windows.append(window)
                        owners.append(_Owner(number, candidate))
        return windows, owners

    def _count_lost_bytes(self, text: str, document: EncodedDocument) -> None:
        """Adds the bytes of a text to `text_bytes` and `lost_bytes`."""
        lengths = measure_utf8_lengths(text)
        self.text_bytes += int(lengths.sum())
        if document.lost is not None:
            self.lost_bytes += int(lengths[document.lost].sum())

    def describe_lost_text(self) -> str:
        """Describes the bytes that are left out of all scores."""
        return describe_lost_bytes(self.lost_bytes, self.text_bytes)

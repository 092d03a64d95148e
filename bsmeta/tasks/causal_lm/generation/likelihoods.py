"""The likelihoods of texts after the prefix of each candidate.

Prefixes differ in length, and so would the chunks after them: texts are cut to the room that the
longest prefix leaves, so that all candidates are compared over the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

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


class Likelihoods:
    """Scores texts (all their chunks, or only the first) after the prefix of each candidate.

    Attributes:
        prefixes: The rendered prefix of each candidate.
        text_bytes: UTF-8 bytes of all texts that were scored.
        lost_bytes: Of these, bytes that the tokenizer loses, whose tokens are left out.
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
        heads = []
        for record in candidates:
            assert record.key is not None
            rendered = renderer.render(Document("", None, {record.key: [record]}), (record.key,))
            heads.append(replace(rendered, suffix=""))
        self.prefixes = [head.prefix for head in heads]
        self._lead = heads[0].lead
        self._prefixes = [head.prefix_ids for head in self._encoder.encode(heads)]

        length = config.metadata_config.max_seq_len
        self._room = length - max(map(len, self._prefixes))
        self._max_tokens = limit_batch_tokens(len(tokenizer), rows, length)
        self.text_bytes = 0
        self.lost_bytes = 0

    def score(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Computes log p(text | candidate) in nats.

        Returns:
            float64 [texts, candidates]; int64 [texts], number of scored tokens (all but the first
            text token of each chunk, and tokens that lose text).

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

        sums = np.zeros((len(texts), len(self._prefixes)))
        tokens = np.zeros(len(texts), np.int64)
        for index, values in zip(chain(*index_batches), chain(*scores), strict=True):
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

    def _cut_windows(self, texts: Sequence[str]) -> tuple[list[Window], list[tuple[int, int]]]:
        """Cuts texts after each prefix; also returns the text and candidate of each window."""
        encoded = self._encoder.encode(
            [Rendered(text, lead=self._lead, body=text) for text in texts]
        )
        windows: list[Window] = []
        owners: list[tuple[int, int]] = []
        for number, document in enumerate(encoded):
            self._count_lost_bytes(texts[number], document)
            chunks = cut_continuations(document, self._prefixes, self._room)
            for chunk in chunks if self._all_pieces else chunks[:1]:
                for candidate, window in enumerate(chunk):
                    if window.scored.any():
                        windows.append(window)
                        owners.append((number, candidate))
        return windows, owners

    def _count_lost_bytes(self, text: str, document: EncodedDocument) -> None:
        lengths = measure_utf8_lengths(text)
        self.text_bytes += int(lengths.sum())
        if document.lost is not None:
            self.lost_bytes += int(lengths[document.lost].sum())

    def describe_lost_text(self) -> str:
        """Describes the bytes that are left out of all scores."""
        return describe_lost_bytes(self.lost_bytes, self.text_bytes)

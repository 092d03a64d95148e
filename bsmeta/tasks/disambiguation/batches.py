"""Rows of the store become tensors: the texts of mentions, their candidates, and what is masked.

In training, a mention is compared with the candidates of all mentions of its micro-batch (or its
own); the text of an entity is encoded once, however many mentions have it as a candidate. Whether
a mention or a title is masked follows from (seed, epoch, row), so that it depends neither on the
processes nor on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.batch import MicroBatch
from bsmeta.data.seeds import derive
from bsmeta.tasks.disambiguation.candidates import Candidates, DocumentCounts, candidates_of
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.embeddings import Frozen
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.texts import EntityTexts, Mentions, MentionTexts, Row, mask_of, pad

Neighbors = Callable[[np.ndarray], np.ndarray]
"""The entities with the most similar texts, int64 [entities, n], -1 for none."""


class TrainingBatches:
    """Makes the micro-batches of the training.

    Args:
        config: The run.
        table: The entities.
        tokenizer: With the special tokens of the task.
        texts: The texts of the entities.
        popularity: float64 [entities], from 0 to 1.
        counts: Of the training data, if the prior leaves the own document out.
        frozen: What the frozen layers of the entities' encoder make of texts; None: there are none.
        neighbors: Finds hard negatives; None: there are none.
    """

    def __init__(
        self,
        config: DisambiguationConfig,
        table: EntityTable,
        tokenizer: PreTrainedTokenizerBase,
        texts: EntityTexts,
        popularity: np.ndarray,
        counts: DocumentCounts | None,
        frozen: Frozen | None,
        neighbors: Neighbors | None,
    ) -> None:
        self._config = config
        self._table = table
        self._tokenizer = tokenizer
        self._texts = texts
        self._counts = counts
        self._frozen = frozen
        self._neighbors = neighbors
        self._mention_texts = MentionTexts(tokenizer, config)
        data = config.data_config
        rarest, most = data.mask_rarest, data.mask_most_frequent
        self._mask_probability = rarest + (most - rarest) * popularity

    def micro_batch(self, rows: Sequence[Row], epoch: int) -> MicroBatch:
        """The mentions of some rows (at least one), gold and weak alike."""
        mentions = Mentions.of(rows)
        candidates = candidates_of(
            self._table, mentions.aliases, mentions.entities, mentions.documents, self._counts
        )
        if self._config.max_train_candidates is not None:
            candidates = candidates.first(self._config.max_train_candidates)
        draws = [_Draws(self._config.seed, epoch, row.number) for row in rows]
        masked = [
            draw.mentions(self._mask_probability[row.entities[:, 0]])
            for row, draw in zip(rows, draws, strict=True)
        ]
        tensors, tokens = self._mention_texts.tensors(rows, masked)
        compared = self._compared(mentions, candidates, draws)
        entity_tensors, entity_tokens = self._entity_tensors(compared.entities, compared.is_masked)
        tensors |= entity_tensors
        targets = compared.targets
        tensors |= {
            "targets": torch.from_numpy(targets),
            "allowed": torch.from_numpy(compared.allowed),
        }
        if self._config.log_prior != "none":
            tensors["prior"] = torch.from_numpy(compared.prior)
        sizes = [tensors[name].numel() for name in ("input_ids", "entity_ids") if name in tensors]
        trained = int(targets.any(1).sum())
        weak = sum(int((~row.is_gold).sum()) for row in rows)
        return MicroBatch(
            tensors=tensors,
            weight=float(trained),
            tokens=tokens + entity_tokens,
            padding=sum(sizes) - tokens - entity_tokens,
            documents=mentions.names,
            counts={
                "mentions": float(len(targets)),
                "weak_labels": float(weak),
                "without_candidate": float(len(targets) - trained),
                "entities": float(len(compared.entities)),
            },
        )

    def _compared(
        self, mentions: Mentions, candidates: Candidates, draws: Sequence[_Draws]
    ) -> _Compared:
        """The entities of a micro-batch, and which of them each mention is compared with."""
        own, is_gold = candidates.entities, candidates.is_gold
        if self._neighbors is not None:
            more = self._neighbors(mentions.entities[:, 0])
            more[(more[:, :, None] == mentions.entities[:, None, :]).any(2)] = -1
            own = np.concatenate([own, more], axis=1)
            is_gold = np.concatenate([is_gold, np.zeros(more.shape, bool)], axis=1)
        masked = np.zeros(own.shape, bool)
        for number, draw in enumerate(draws):
            of_row = mentions.rows == number
            masked[of_row] = draw.titles(own[of_row], self._mask_probability)
        # The same entity with and without its title are two columns.
        keys, columns = np.unique(np.where(own >= 0, own * 2 + masked, -1), return_inverse=True)
        columns = columns.reshape(own.shape)
        if keys[0] < 0:
            keys, columns = keys[1:], columns - 1
        if not len(keys):  # no mention has any candidate; the step needs a column all the same
            keys = np.zeros(1, np.int64)
        entities = keys // 2
        shape = (len(own), len(keys))
        targets, is_own = _marked(shape, columns, is_gold), _marked(shape, columns, columns >= 0)
        if self._config.negatives == "own":
            allowed = is_own
        else:  # all but the mention's entities in another form
            is_meant = (entities[None, :, None] == mentions.entities[:, None, :]).any(2)
            allowed = ~is_meant | targets
        prior = np.repeat(candidates.floor[:, None], len(keys), axis=1)
        width = candidates.entities.shape[1]
        present = np.nonzero(columns[:, :width] >= 0)
        prior[present[0], columns[:, :width][present]] = candidates.prior[present]
        if not self._config.train_in_candidates:  # column 0 is NIL
            targets = np.concatenate([~targets.any(1, keepdims=True), targets], axis=1)
        return _Compared(entities, (keys % 2).astype(bool), targets, allowed, prior)

    def _entity_tensors(
        self, entities: np.ndarray, is_masked: np.ndarray
    ) -> tuple[dict[str, torch.Tensor], int]:
        if self._frozen is not None:
            return self._frozen.inputs(entities, is_masked), 0
        pairs = zip(entities.tolist(), is_masked.tolist(), strict=True)
        tokens = [self._texts.tokens(entity, masked) for entity, masked in pairs]
        ids = pad(tokens, self._tokenizer.pad_token_id)
        lengths = [len(own) for own in tokens]
        return {
            "entity_ids": torch.from_numpy(ids),
            "entity_mask": torch.from_numpy(mask_of(lengths)),
        }, sum(lengths)


@dataclass(frozen=True)
class _Compared:
    """The candidates that the mentions of a micro-batch are compared with.

    Attributes:
        entities: int64 [columns].
        is_masked: bool [columns]: whether the title is masked.
        targets: bool [mentions, columns (+1)]: those of the mention's entities; with NIL as an
            answer, it is the first column. A mention without any is not trained on.
        allowed: bool [mentions, columns].
        prior: float32 [mentions, columns, 2].
    """

    entities: np.ndarray
    is_masked: np.ndarray
    targets: np.ndarray
    allowed: np.ndarray
    prior: np.ndarray


def _marked(shape: tuple[int, int], columns: np.ndarray, which: np.ndarray) -> np.ndarray:
    """bool [mentions, columns]: the chosen ones of each mention's columns."""
    marked = np.zeros(shape, bool)
    chosen = np.nonzero(which)
    marked[chosen[0], columns[chosen]] = True
    return marked


class _Draws:
    """The random choices about a row in an epoch."""

    def __init__(self, seed: int, epoch: int, row: int) -> None:
        self._key = (seed, "mask", epoch, row)

    def mentions(self, probability: np.ndarray) -> np.ndarray:
        """bool: which mentions are masked."""
        return self._uniform("mentions", len(probability)) < probability

    def titles(self, entities: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """bool: whether the title of each candidate is masked, alike for all mentions of the row.

        Args:
            entities: int64 [mentions, candidates]; -1: none.
            probability: float64 [entities of the table].
        """
        is_candidate = entities >= 0  # the rest is padding, which depends on other rows
        distinct, places = np.unique(entities[is_candidate], return_inverse=True)
        found = np.zeros(entities.shape, bool)
        found[is_candidate] = (self._uniform("titles", len(distinct)) < probability[distinct])[
            places
        ]
        return found

    def _uniform(self, what: str, count: int) -> np.ndarray:
        words = np.random.PCG64(derive(*self._key, what)).random_raw(count)
        return words / 2.0**64

"""Scores the gold mentions of a split with a model, in training or trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.disambiguation.batches import MentionTexts, Row
from bsmeta.tasks.disambiguation.candidates import candidates_of
from bsmeta.tasks.disambiguation.data import Data
from bsmeta.tasks.disambiguation.embeddings import (
    EntityEncoder,
    FrozenVectors,
    split_embeddings,
)
from bsmeta.tasks.disambiguation.scoring import Scorer, ranks_of
from bsmeta.tasks.disambiguation.slices import Scored, own_slices


class Evaluator:
    """Scores rows of held-out data.

    Args:
        config: The run.
        data: Its data, whose training counts place each mention in a band.
    """

    def __init__(self, config: DisambiguationConfig, data: Data) -> None:
        self._config = config
        self._data = data

    def score(
        self,
        model: nn.Module,
        rows: Sequence[Row],
        frozen: FrozenVectors | None,
        context: EvaluationContext,
    ) -> Scored:
        """Scores the mentions of some rows; every process calls it and gets the same.

        Args:
            model: The bi-encoder, wrapped or not, in evaluation mode.
            rows: At least one, each with a mention, all of them gold.
            frozen: The vectors of the entities' encoder, if it is not trained.
            context: The processes.
        """
        data, config = self._data, self._config
        aliases = np.concatenate([row.aliases for row in rows])
        entities = np.concatenate([row.entities for row in rows])
        candidates = candidates_of(data.table, aliases, entities)
        distinct = np.unique(candidates.entities)
        distinct = distinct[distinct >= 0] if (distinct >= 0).any() else np.zeros(1, np.int64)
        encoder = EntityEncoder(
            model, data.texts, data.tokenizer, context.device, config.mixed_precision
        )
        scorer = Scorer(
            model,
            not config.train_in_candidates,
            data.table,
            MentionTexts(data.tokenizer, config),
            split_embeddings(distinct, encoder, frozen, model, context),
            context.device,
            config.mixed_precision,
        )
        batch_size = config.data_config.per_device_eval_batch_size
        ranks, losses = ranks_of(scorer, rows, batch_size, context)
        return Scored(
            rank=ranks,
            place=candidates.gold,
            candidates=(candidates.entities >= 0).sum(1),
            counts=data.counts[entities],
            documents=np.repeat(
                np.array([row.document for row in rows]), [len(row.aliases) for row in rows]
            ),
            own=own_slices([own for row in rows for own in row.slices]),
            loss=losses,
        )

"""Embeddings for tokens that a pretrained model has not been trained on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bsmeta.models.pretrained import count_vocabulary

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def add_embeddings(model: PreTrainedModel, num_tokens: int, num_trained: int | None) -> None:
    """Initializes embeddings and output rows of new tokens with the mean of the trained rows.

    transformers draws them from a normal distribution with the mean of all rows and 1e-9 of their
    covariance, so that new tokens hardly change the probabilities of the others (Hewitt 2021,
    https://nlp.stanford.edu/~johnhew/vocab-expansion.html). Rows that pad a vocabulary have never
    been trained on a token. If new tokens take some of them, all of them are dropped and added
    again, so that they begin with this mean, too.

    Under ZeRO-3, all ranks call it, and the new embeddings are whole until an engine takes them.

    Args:
        num_tokens: Number of tokens of the tokenizer.
        num_trained: Number of tokens that the model was trained with; None: one for each row.
    """
    num_rows = count_vocabulary(model)
    num_trained = num_rows if num_trained is None else min(num_trained, num_rows)
    if num_tokens <= num_trained:
        return

    num_reused = num_rows - num_trained
    if num_reused:
        model.resize_token_embeddings(num_trained)
    model.resize_token_embeddings(max(num_tokens, num_rows))
    logger.info(
        "embeddings: %d tokens are new to the model: their rows, from %d on, begin with the mean "
        "of the others (%d rows before, %d of them padding; %d rows now)",
        num_tokens - num_trained,
        num_trained,
        num_rows,
        num_reused,
        max(num_tokens, num_rows),
    )

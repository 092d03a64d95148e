"""The logits of a split: of each chunk, and their mean for each source text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import mean_loss
from bsmeta.tasks.classification.scores import confusion, scores
from bsmeta.tasks.classification.stream import pad


@dataclass(frozen=True)
class Scored:
    """The logits of a split.

    Attributes:
        chunk_logits: float32 [chunks, labels], of all chunks, text by text.
        chunk_labels: int64 [chunks].
        sources: int64 [texts], the source rows, ascending.
        logits: float64 [texts, labels], the mean over the chunks of a text.
        first_logits: float32 [texts, labels], of the first chunk: as if texts were truncated.
        labels: int64 [texts].
        chunks: int64 [texts], the number of chunks.
    """

    chunk_logits: np.ndarray
    chunk_labels: np.ndarray
    sources: np.ndarray
    logits: np.ndarray
    first_logits: np.ndarray
    labels: np.ndarray
    chunks: np.ndarray

    @classmethod
    def of(cls, chunks: Sequence[Chunk], logits: np.ndarray) -> Scored:
        """Groups the logits of chunks by text; the chunks of a text are in their order."""
        sources = np.array([chunk.source for chunk in chunks])
        labels = np.array([chunk.label for chunk in chunks])
        numbers, first, place, counts = np.unique(
            sources, return_index=True, return_inverse=True, return_counts=True
        )
        sums = np.zeros((len(numbers), logits.shape[1]))
        np.add.at(sums, place, logits)
        return cls(
            logits, labels, numbers, sums / counts[:, None], logits[first], labels[first], counts
        )

    def scores(self, weights: Sequence[float], smoothing: float) -> dict[str, float]:
        """The loss over the chunks, as in training, and the scores of the texts."""
        count = self.logits.shape[1]
        matrix = confusion(self.labels, self.logits.argmax(1), count)
        of_chunks = confusion(self.chunk_labels, self.chunk_logits.argmax(1), count)
        return {
            "loss": mean_loss(self.chunk_logits, self.chunk_labels, weights, smoothing),
            **{name: float(value) for name, value in scores(matrix).items()},
            "chunk_accuracy": float(scores(of_chunks)["accuracy"]),
        }


def score(
    model: nn.Module,
    chunks: Sequence[Chunk],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    context: EvaluationContext,
) -> Scored:
    """Runs the model on chunks; every rank calls it and gets the same result."""
    logits = logits_of(model, [chunk.ids for chunk in chunks], tokenizer, batch_size, context)
    return Scored.of(chunks, logits)


def logits_of(
    model: nn.Module,
    ids: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    context: EvaluationContext,
) -> np.ndarray:
    """The logits of chunks, float32 [chunks, labels], equal on every rank.

    The batches depend on the chunks only, not on the number of processes, and each rank runs the
    model equally often: under ZeRO-3 the ranks gather the weights together.

    Args:
        model: The model, wrapped or not, in evaluation mode.
        ids: The tokens of each chunk; at least one chunk.
        tokenizer: Pads them.
        batch_size: Chunks of a batch.
        context: The processes.
    """
    order = np.argsort([len(chunk) for chunk in ids], kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    rounds = -(-len(batches) // context.world_size)
    own: dict[int, np.ndarray] = {}
    for number in range(rounds):
        turn = number * context.world_size + context.rank
        batch = pad(tokenizer, [ids[place] for place in batches[min(turn, len(batches) - 1)]])
        with torch.no_grad():
            inputs = {name: tensor.to(context.device) for name, tensor in batch.items()}
            logits = model(**inputs).logits.float().cpu().numpy()
        if turn < len(batches):
            own[turn] = logits
    everyone: dict[int, np.ndarray] = {}
    for part in context.gather(own):
        everyone |= part
    found = np.concatenate([everyone[turn] for turn in range(len(batches))])
    return found[np.argsort(order, kind="stable")]

"""The logits of a split, and the scores that follow from them, with bootstrap intervals.

The logits of a source text are the mean over its chunks. The resampled units are source texts, or
the groups that no split divides: texts of one author are not independent. All systems are scored on
the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.evaluation.statistics import Interval, central, resampled
from bsmeta.tasks.base import EvaluationContext
from bsmeta.tasks.batches import batches_of, spread
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import mean_loss, pad

SCORES = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")


def confusion(truth: np.ndarray, predicted: np.ndarray, labels: int) -> np.ndarray:
    """Counts int64 [labels, labels]; a row is a true label, a column a predicted one."""
    cells = np.bincount(truth * labels + predicted, minlength=labels * labels)
    return cells.reshape(labels, labels)


def scores(matrix: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of confusion matrices, as scikit-learn defines them.

    Labels that do not occur are left out of the means: of balanced accuracy those without a text,
    of macro F1 those without a text and a prediction. MCC (Gorodkin 2004) is 0 where it is
    undefined: with one label only.

    Args:
        matrix: float or int [..., labels, labels], in any unit.

    Returns:
        Each of `SCORES`, float64 [...].
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    true, guessed = matrix.sum(-1), matrix.sum(-2)
    right = np.diagonal(matrix, axis1=-2, axis2=-1)
    total = matrix.sum((-2, -1))
    recall = _ratio(right, true)
    f1 = _ratio(2 * right, true + guessed)
    covariance = right.sum(-1) * total - (true * guessed).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (guessed**2).sum(-1))
    return {
        "accuracy": _ratio(right.sum(-1), total),
        "balanced_accuracy": _ratio(recall.sum(-1), (true > 0).sum(-1)),
        "macro_f1": _ratio(f1.sum(-1), (true + guessed > 0).sum(-1)),
        "mcc": _ratio(covariance, np.sqrt(np.maximum(spread, 0.0))),
    }


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.broadcast_shapes(np.shape(top), np.shape(bottom)))
    return np.divide(top, bottom, out=zeros, where=np.asarray(bottom) > 0)


@dataclass(frozen=True)
class Compared:
    """The scores of a system on the test set.

    Attributes:
        name: The system.
        matrix: Its confusion matrix, int64 [labels, labels].
        values: Each of `SCORES`.
        intervals: Their 95% bootstrap intervals.
        differences: This system minus the first one, with its paired interval; {} for the first.
    """

    name: str
    matrix: np.ndarray
    values: dict[str, float]
    intervals: dict[str, Interval]
    differences: dict[str, tuple[float, Interval]]


def compare(
    truth: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    units: np.ndarray,
    labels: int,
    *,
    resamples: int,
    seed: int,
) -> list[Compared]:
    """Scores several systems on the same texts.

    Args:
        truth: int [texts], the true labels.
        predicted: The labels that each system predicts; the others are compared with the first.
        units: int [texts], the resampled unit that each text belongs to.
        labels: Number of labels.
        resamples: Number of resamples.
        seed: Seed of the resamples; they are the same for every system.
    """
    first_values: dict[str, float] = {}
    first_draws: dict[str, np.ndarray] = {}
    found = []
    for name, guesses in predicted.items():
        matrix = confusion(truth, guesses, labels)
        values = {score: float(value) for score, value in scores(matrix).items()}
        draws = _resampled_scores(truth, guesses, units, labels, resamples=resamples, seed=seed)
        differences = {
            score: (values[score] - first_values[score], central(draws[score] - draw))
            for score, draw in first_draws.items()
        }
        intervals = {score: central(draw) for score, draw in draws.items()}
        found.append(Compared(name, matrix, values, intervals, differences))
        first_values, first_draws = first_values or values, first_draws or draws
    return found


def _resampled_scores(
    truth: np.ndarray,
    predicted: np.ndarray,
    units: np.ndarray,
    labels: int,
    *,
    resamples: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Each of `SCORES` for each resample of the units, float64 [resamples]."""
    _, place = np.unique(units, return_inverse=True)
    count = int(place.max()) + 1
    cells = np.zeros((count, labels * labels))
    np.add.at(cells, (place, truth * labels + predicted), 1.0)
    # Divided by the number of units, which does not change a score.
    means = resampled(cells.T, np.ones_like(cells.T), resamples=resamples, seed=seed)
    return scores(means.reshape(-1, labels, labels))


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

    Args:
        model: The model, wrapped or not, in evaluation mode.
        ids: The tokens of each chunk; at least one chunk.
        tokenizer: Pads them.
        batch_size: Chunks of a batch.
        context: The processes.
    """

    def run(batch: np.ndarray) -> np.ndarray:
        inputs = pad(tokenizer, [ids[number] for number in batch])
        with torch.no_grad():
            inputs = {name: tensor.to(context.device) for name, tensor in inputs.items()}
            logits: np.ndarray = model(**inputs).logits.float().cpu().numpy()
        return logits

    return np.stack(spread(batches_of(list(map(len, ids)), batch_size), run, context))

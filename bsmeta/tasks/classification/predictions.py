"""Predictions of a model for a split, and the scores of predicted labels.

Of the logits, only the labels, losses and probabilities are kept. Those of a source text are the
mean over its chunks, and of a model with word features those of the words of the whole text beside
them. Those of many texts and labels would not fit into memory, so they are computed for some texts
at a time.

Scores follow from the number of texts of each label (true, predicted, and both), so that thousands
of labels need no matrix of labels x labels.

The resampled units are source texts, or the groups that no split divides: texts of one author are
not independent. All systems are scored on the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.special import softmax
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.report.inference import Estimate, Interval, central, draws
from bsmeta.tasks.classification.classifier import Classifier
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import cross_entropies, pad
from bsmeta.training.task import EvaluationContext, batches_of, spread

SCORES = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")

_COUNTS_AT_ONCE = 1 << 22  # of labels in resamples, in memory at one time

MOST_PROBABILITIES = 100
"""Labels up to which a prediction has the probability of each; else that of the predicted one."""

LOGITS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Confusion:
    """The cells of a confusion matrix that are not 0, by true and then by predicted label.

    Attributes:
        true, predicted: int64 [cells], the labels.
        counts: int64 [cells], the number of texts.
        labels: The number of labels.
    """

    true: np.ndarray
    predicted: np.ndarray
    counts: np.ndarray
    labels: int

    @classmethod
    def of(cls, truth: np.ndarray, predicted: np.ndarray, labels: int) -> Confusion:
        """Counts the texts with each pair of labels: int [texts], both."""
        cells, counts = np.unique(truth * labels + predicted, return_counts=True)
        return cls(cells // labels, cells % labels, counts, labels)

    @property
    def texts(self) -> int:
        """The number of texts."""
        return int(self.counts.sum())

    def totals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Texts of each label that have it, are predicted to, and both: float64 [labels] each."""
        right = self.true == self.predicted
        return (
            np.bincount(self.true, self.counts, self.labels),
            np.bincount(self.predicted, self.counts, self.labels),
            np.bincount(self.true[right], self.counts[right], self.labels),
        )

    def matrix(self, shown: Sequence[int]) -> np.ndarray:
        """The matrix of some labels, int64 [shown + 1, shown + 1]; the last ones are all others."""
        places = np.full(self.labels, len(shown))
        places[list(shown)] = np.arange(len(shown))
        found = np.zeros((len(shown) + 1, len(shown) + 1), np.int64)
        np.add.at(found, (places[self.true], places[self.predicted]), self.counts)
        return found


def scores(true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of counts of texts, as scikit-learn defines them.

    Labels that do not occur are left out of the means: of balanced accuracy those without a text,
    of macro F1 those without a text and a prediction. MCC (Gorodkin 2004) is 0 where it is
    undefined: with one label only.

    Args:
        true: float64 [..., labels], the texts that have a label.
        predicted: float64 [..., labels], those that are predicted to have it.
        right: float64 [..., labels], those of which both are true.

    Returns:
        Each of `SCORES`, float64 [...].
    """
    recall = _ratio(right, true)
    f1 = _ratio(2 * right, true + predicted)
    total = true.sum(-1)
    covariance = right.sum(-1) * total - (true * predicted).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return {
        "accuracy": _ratio(right.sum(-1), total),
        "balanced_accuracy": _ratio(recall.sum(-1), (true > 0).sum(-1)),
        "macro_f1": _ratio(f1.sum(-1), (true + predicted > 0).sum(-1)),
        "mcc": _ratio(covariance, np.sqrt(np.maximum(spread, 0.0))),
    }


def by_label(confusion: Confusion) -> dict[str, np.ndarray]:
    """Precision, recall, F1 and number of texts of each label, float64 [labels] each."""
    true, predicted, right = confusion.totals()
    return {
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, true),
        "f1": _ratio(2 * right, true + predicted),
        "texts": true,
    }


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.broadcast_shapes(np.shape(top), np.shape(bottom)))
    return np.divide(top, bottom, out=zeros, where=np.asarray(bottom) > 0)


@dataclass(frozen=True)
class Compared:
    """The scores of a system on the test set.

    Attributes:
        name: The system.
        confusion: Its true and predicted labels.
        values: Each of `SCORES`.
        intervals: Their 95% bootstrap intervals.
        differences: This system minus the first one, with its paired interval; {} for the first.
    """

    name: str
    confusion: Confusion
    values: dict[str, float]
    intervals: dict[str, Interval]
    differences: dict[str, Estimate]


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
        confusion = Confusion.of(truth, guesses, labels)
        values = {score: float(value) for score, value in scores(*confusion.totals()).items()}
        own = _resampled_scores(truth, guesses, units, resamples=resamples, seed=seed)
        differences = {
            score: Estimate(values[score] - first_values[score], central(own[score] - draw))
            for score, draw in first_draws.items()
        }
        intervals = {score: central(draw) for score, draw in own.items()}
        found.append(Compared(name, confusion, values, intervals, differences))
        first_values, first_draws = first_values or values, first_draws or own
    return found


def _resampled_scores(
    truth: np.ndarray, predicted: np.ndarray, units: np.ndarray, *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Each of `SCORES` for each resample of the units, float64 [resamples].

    The memory grows with the texts, never with the number of labels of the table.
    """
    names, columns = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    true, guessed = np.split(columns, 2)
    _, place = np.unique(units, return_inverse=True)
    shape = (int(place.max()) + 1, len(names))
    counts = [
        csr_array((np.ones(len(rows)), (rows, labels)), shape)
        for rows, labels in (
            (place, true), (place, guessed), (place[true == guessed], true[true == guessed]),
        )
    ]  # fmt: skip
    at_once = max(_COUNTS_AT_ONCE // len(names), 1)
    parts = [
        scores(*(times[start : start + at_once] @ count for count in counts))
        for times in draws(shape[0], resamples=resamples, seed=seed)
        for start in range(0, len(times), at_once)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in SCORES}


@dataclass(frozen=True)
class Scored:
    """What a model predicts for a split.

    Attributes:
        chunk_labels: int64 [chunks], of all chunks, text by text.
        chunk_predicted: int64 [chunks].
        chunk_losses: float64 [chunks], cross-entropies in nats, with label smoothing.
        sources: int64 [texts], the source rows, ascending.
        labels: int64 [texts].
        predicted: int64 [texts], by the mean logits over the chunks of a text.
        first_predicted: int64 [texts], by the first chunk: as if texts were truncated.
        probabilities: float64 [texts, labels], the softmax of the mean logits; of more than
            `MOST_PROBABILITIES` labels only that of the predicted one, [texts, 1].
        chunks: int64 [texts], the number of chunks.
    """

    chunk_labels: np.ndarray
    chunk_predicted: np.ndarray
    chunk_losses: np.ndarray
    sources: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    first_predicted: np.ndarray
    probabilities: np.ndarray
    chunks: np.ndarray

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        logits: np.ndarray,
        smoothing: float = 0.0,
        text_logits: np.ndarray | None = None,
    ) -> Scored:
        """What the logits of chunks predict.

        Args:
            chunks: Text by text, in the order of the source rows.
            logits: float [chunks, labels].
            smoothing: Share of the target that is spread over all labels, for the losses.
            text_logits: float [texts, labels]; None: the mean over the chunks of each text.
        """
        labels = np.array([chunk.label for chunk in chunks])
        sources, first, counts = texts_of(chunks)
        exact = logits.astype(np.float64)
        losses = cross_entropies(torch.from_numpy(exact), torch.from_numpy(labels), smoothing)
        means = means_over_chunks(exact, first, counts) if text_logits is None else text_logits
        return cls(
            chunk_labels=labels,
            chunk_predicted=logits.argmax(1),
            chunk_losses=losses.numpy(),
            sources=sources,
            labels=labels[first],
            predicted=means.argmax(1),
            first_predicted=logits[first].argmax(1),
            probabilities=_probabilities(means),
            chunks=counts,
        )

    def scores(self, weights: Sequence[float]) -> dict[str, float]:
        """The loss over the chunks, weighted by label as in training; the scores of the texts."""
        own = np.asarray(weights)[self.chunk_labels]
        confusion = Confusion.of(self.labels, self.predicted, len(weights))
        return {
            "loss": float((self.chunk_losses * own).sum() / own.sum()),
            **{name: float(value) for name, value in scores(*confusion.totals()).items()},
            "chunk_accuracy": float(np.mean(self.chunk_labels == self.chunk_predicted)),
        }


def texts_of(chunks: Sequence[Chunk]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The source row of each text, its first chunk, and the number of its chunks, int [texts].

    Args:
        chunks: Text by text, in the order of the source rows.
    """
    return np.unique([chunk.source for chunk in chunks], return_index=True, return_counts=True)


def means_over_chunks(values: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The means over the chunks of each text, float [texts, n].

    Args:
        values: float [chunks, n], text by text.
        first: int [texts], the first chunk of each text.
        counts: int [texts], the number of its chunks.
    """
    return np.add.reduceat(values, first, axis=0) / counts[:, None].astype(values.dtype)


def _probabilities(logits: np.ndarray) -> np.ndarray:
    shares = softmax(logits, axis=1)
    return shares if shares.shape[1] <= MOST_PROBABILITIES else shares.max(1, keepdims=True)


def named_probabilities(shares: np.ndarray | None, labels: Sequence[str]) -> dict[str, Any]:
    """A row of `Scored.probabilities` as a part of a record; None: without values."""
    if len(labels) > MOST_PROBABILITIES:
        return {"probability": None if shares is None else float(shares[0])}
    values = [None] * len(labels) if shares is None else shares.tolist()
    return {"probabilities": dict(zip(labels, values, strict=True))}


def predictions(scored: Scored, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the predicted label, the probabilities and the number of chunks of each text."""
    rows = zip(scored.predicted.tolist(), scored.probabilities, scored.chunks.tolist(), strict=True)
    for number, shares, chunks in rows:
        yield {
            "prediction": labels[number], **named_probabilities(shares, labels), "chunks": chunks
        }  # fmt: skip


def score(
    model: nn.Module,
    chunks: Sequence[Chunk],
    labels: int,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    context: EvaluationContext,
    smoothing: float = 0.0,
) -> Scored:
    """Runs the model on chunks; every rank calls it and gets the same result.

    Args:
        model: The model, wrapped or not, in evaluation mode.
        chunks: At least one, text by text, in the order of the source rows.
        labels: The number of labels.
        tokenizer: Pads the chunks.
        batch_size: Chunks of a batch.
        context: The processes.
        smoothing: Share of the target that is spread over all labels, for the losses.
    """
    _, _, counts = texts_of(chunks)
    found: dict[str, np.ndarray] = {}
    filled: Counter[str] = Counter()
    for part in parts_of(counts, labels):
        own = chunks[part]
        logits, text_logits = _logits(model, own, labels, tokenizer, batch_size, context)
        for name, values in vars(Scored.of(own, logits, smoothing, text_logits)).items():
            # Copied to where they stay: arrays kept from each part would divide the free memory
            # between them, so that the next logits would not fit in.
            if name not in found:
                rows = len(chunks) if name.startswith("chunk_") else len(counts)
                found[name] = np.empty((rows, *values.shape[1:]), values.dtype)
            found[name][filled[name] : filled[name] + len(values)] = values
            filled[name] += len(values)
    return Scored(**found)


def _logits(
    model: nn.Module, chunks: Sequence[Chunk], labels: int, tokenizer: PreTrainedTokenizerBase,
    batch_size: int, context: EvaluationContext,
) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """The logits of chunks, [chunks, labels], and of texts if they are not the means over those."""

    def run(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
        return found

    plain = getattr(model, "module", model)
    words = plain.words if isinstance(plain, Classifier) else None
    if words is not None and plain.encoder is None:
        logits = np.zeros((len(chunks), labels))
    else:
        ids = [chunk.ids for chunk in chunks]
        logits = outputs_of(run, ids, tokenizer, batch_size, context)
    if words is None:
        return logits, None
    _, first, counts = texts_of(chunks)
    texts = [
        "".join(chunk.text for chunk in chunks[start : start + count])
        for start, count in zip(first.tolist(), counts.tolist(), strict=True)
    ]
    of_texts = means_over_chunks(logits.astype(np.float64), first, counts) + words.logits(texts)
    return logits + words.logits([chunk.text for chunk in chunks]), of_texts


def parts_of(counts: Sequence[int] | np.ndarray, labels: int) -> Iterator[slice]:
    """Yields the chunks of consecutive texts whose logits fit in memory together.

    Args:
        counts: The number of chunks of each text.
        labels: The number of labels.
    """
    begin = end = 0
    for count in map(int, counts):
        if end > begin and (end + count - begin) * labels > LOGITS_AT_ONCE:
            yield slice(begin, end)
            begin = end
        end += count
    if end > begin:
        yield slice(begin, end)


def outputs_of(
    function: Callable[..., torch.Tensor],
    ids: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    context: EvaluationContext,
) -> np.ndarray:
    """What a model computes for chunks, float32 [chunks, n], equal on every rank.

    Args:
        function: Takes `input_ids` and `attention_mask`, and returns [chunks, n]; its model is in
            evaluation mode.
        ids: The tokens of each chunk; at least one chunk.
        tokenizer: Pads them.
        batch_size: Chunks of a batch.
        context: The processes.
    """

    def run(batch: np.ndarray) -> np.ndarray:
        inputs = pad(tokenizer, [ids[number] for number in batch])
        with torch.no_grad():
            inputs = {name: tensor.to(context.device) for name, tensor in inputs.items()}
            found: np.ndarray = function(**inputs).float().cpu().numpy()
        return found

    return np.stack(spread(batches_of(list(map(len, ids)), batch_size), run, context))

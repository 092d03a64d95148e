"""A small language model that predicts a word from the words before and after it.

It is a log-bilinear model (Mnih and Hinton, 2007) of both sides: the embeddings of the neighbors,
each scaled by weights of its distance, are added, pass through a layer, and are compared with the
embedding of each candidate. So a sentence takes one pass. It is trained on the counted texts, with
a sampled softmax, and its scores are features of the ranker, which learns their weight on other
texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_progress
from bsmeta.data.io.array_archives import ArrayForm, read_array_archive
from bsmeta.tasks.spelling.lexicon import BOUNDARY, NUMBER, read_word_blocks

CONTEXT_FILE = "context.npz"
"""File of the model in the folder of a small model."""

OTHER = 0
"""The number of all words without an embedding."""
NEIGHBORS = 4
"""Words that are read on each side."""
MAX_CONTEXT_WORDS = 20_000
"""Words with an embedding: the most frequent; all others share one."""
MIN_CONTEXT_COUNT = 3
"""Minimum count in the texts of a word with an embedding."""
MAX_TRAINING_WORDS = 10_000_000
"""Words of text that the model is trained on, from the first."""

_EPOCHS = 2
_BATCH_WORDS = 8192  # words of a step
_MIN_EPOCH_STEPS = 100  # a small corpus has smaller steps
_NEGATIVES = 512  # sampled words of a batch, with which each of its words competes
_HIDDEN_SHARE = 0.1  # of the neighbors in training, which are replaced by `OTHER`
_LEARNING_RATE = 5e-3
_SEED = 0


@dataclass(frozen=True)
class _Weights:
    """The parameters, float32."""

    inputs: np.ndarray  # [words, width], the embedding of a neighbor
    distances: np.ndarray  # [2 NEIGHBORS, width], the weights of a neighbor by its position
    layer: np.ndarray  # [width, width]
    layer_bias: np.ndarray  # [width]
    outputs: np.ndarray  # [words, width], the embedding of a predicted word
    output_bias: np.ndarray  # [words]


_FORMS = {
    "words": ArrayForm(np.uint8, ("",)),
    "inputs": ArrayForm(np.float32, ("words", "width")),
    "distances": ArrayForm(np.float32, (2 * NEIGHBORS, "width")),
    "layer": ArrayForm(np.float32, ("width", "width")),
    "layer_bias": ArrayForm(np.float32, ("width",)),
    "outputs": ArrayForm(np.float32, ("words", "width")),
    "output_bias": ArrayForm(np.float32, ("words",)),
}
"""The arrays of `CONTEXT_FILE`: the words in UTF-8, separated by spaces, and `_Weights`."""


class ContextModel:
    """Scores words between their neighbors.

    Args:
        words: The words with an embedding, in their counted form (`fold_word`), from number 1 on.
        weights: The parameters; row 0 of the embeddings is for all other words.
    """

    def __init__(self, words: Sequence[str], weights: _Weights) -> None:
        self._words = list(words)
        self._weights = weights
        self._numbers = {word: number for number, word in enumerate(words, start=1)}

    def find_numbers(self, words: Sequence[str]) -> np.ndarray:
        """Returns the numbers of words in their counted form: int64 [words]; 0 for other words."""
        return np.array([self._numbers.get(word, OTHER) for word in words], np.int64)

    def predict(self, sequence: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Predicts the words at positions of a sequence, to be compared by `score`.

        Args:
            sequence: Numbers of words and boundaries, int64 [sequence], with at least one boundary
                at both ends.
            positions: int64 [positions].

        Returns:
            float32 [positions, width].
        """
        neighbors = find_neighbors(sequence, positions, self._numbers[BOUNDARY])
        weights = self._weights
        hidden = np.zeros((len(positions), weights.distances.shape[1]), np.float32)
        for words, scale in zip(neighbors.T, weights.distances, strict=True):
            hidden += weights.inputs[words] * scale  # one neighbor at a time, to save memory
        hidden += np.maximum(hidden @ weights.layer.T + weights.layer_bias, 0)
        return hidden

    def score(self, predictions: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the logit of each row: float32 [rows].

        Args:
            predictions: Of `predict`.
            rows: The position of each row: int64 [rows], the index in `predictions`.
            numbers: The word of each row: int64 [rows].
        """
        weights = self._weights
        logits = np.einsum("rw,rw->r", predictions[rows], weights.outputs[numbers])
        return logits + weights.output_bias[numbers]

    def write(self, folder: Path) -> None:
        """Writes the model to the folder of a small model."""
        arrays = {field.name: getattr(self._weights, field.name) for field in fields(_Weights)}
        words = np.frombuffer(" ".join(self._words).encode(), np.uint8)
        np.savez(folder / CONTEXT_FILE, words=words, **arrays)

    @classmethod
    def read(cls, folder: Path) -> ContextModel:
        """Reads the model from the folder of a small model.

        Raises:
            DataError: If the file is missing or damaged.
        """
        file = folder / CONTEXT_FILE
        arrays = read_array_archive(file, _FORMS)
        words = arrays.pop("words").tobytes().decode(errors="replace").split(" ")
        if BOUNDARY not in words or len(arrays["inputs"]) != 1 + len(words):
            raise DataError(
                f"{file}: has {len(words):,} words for {len(arrays['inputs']):,} embeddings; "
                "expected one word less, and the boundary among them; copy the model again"
            )
        return cls(words, _Weights(**arrays))


def find_neighbors(sequence: np.ndarray, positions: np.ndarray, boundary: int) -> np.ndarray:
    """Returns the neighbors of positions in a sequence: int64 [positions, 2 NEIGHBORS].

    They are the words before a position, from the nearest, and then the words after it. From the
    end of the sentence on, they are boundaries.
    """
    columns: list[np.ndarray] = []
    for step in (-1, 1):
        is_over = np.zeros(len(positions), bool)
        for distance in range(1, NEIGHBORS + 1):
            indices = np.clip(positions + step * distance, 0, len(sequence) - 1)
            neighbors = np.where(is_over, boundary, sequence[indices])
            is_over = neighbors == boundary
            columns.append(neighbors)
    return np.stack(columns, 1)


class _Network(nn.Module):
    """The model while it is trained; see `_Weights`."""

    def __init__(self, counts: np.ndarray, width: int) -> None:
        super().__init__()
        self.inputs = nn.Embedding(len(counts), width)
        self.distances = nn.Parameter(torch.full((2 * NEIGHBORS, width), 1 / NEIGHBORS))
        self.layer = nn.Linear(width, width)
        self.outputs = nn.Embedding(len(counts), width)
        shares = torch.from_numpy(counts / counts.sum())
        self.output_bias = nn.Parameter(shares.clamp(min=1e-9).log().float())
        nn.init.normal_(self.inputs.weight, std=0.1)
        nn.init.normal_(self.outputs.weight, std=0.1)

    def forward(
        self, neighbors: torch.Tensor, targets: torch.Tensor, negatives: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits of the targets, [words], and of the negatives, [words, negatives].

        Args:
            neighbors: int64 [words, 2 NEIGHBORS].
            targets: int64 [words].
            negatives: int64 [negatives].
        """
        hidden = (self.inputs(neighbors) * self.distances).sum(1)
        hidden = hidden + functional.relu(self.layer(hidden))
        positive = (hidden * self.outputs(targets)).sum(1) + self.output_bias[targets]
        others = hidden @ self.outputs(negatives).T + self.output_bias[negatives]
        return positive, others

    def copy_weights(self) -> _Weights:
        """Returns the parameters."""
        return _Weights(
            inputs=self.inputs.weight.detach().numpy(),
            distances=self.distances.detach().numpy(),
            layer=self.layer.weight.detach().numpy(),
            layer_bias=self.layer.bias.detach().numpy(),
            outputs=self.outputs.weight.detach().numpy(),
            output_bias=self.output_bias.detach().numpy(),
        )


def train_context_model(texts: Iterable[str], width: int) -> ContextModel:
    """Trains a model on correct texts.

    Args:
        texts: Read once, up to `MAX_TRAINING_WORDS` words.
        width: Numbers in an embedding.
    """
    names, all_numbers = _read_sequence(texts)
    occurrences = np.bincount(all_numbers, minlength=len(names))
    by_count = np.argsort(-occurrences, kind="stable")[:MAX_CONTEXT_WORDS]
    frequent = by_count[occurrences[by_count] >= MIN_CONTEXT_COUNT]
    markers = [names.index(BOUNDARY), names.index(NUMBER)]
    kept = np.unique(np.concatenate([frequent, markers]))

    renumbered = np.full(len(names), OTHER)
    renumbered[kept] = np.arange(1, len(kept) + 1)
    sequence = renumbered[all_numbers]
    words = [names[number] for number in kept.tolist()]
    network = _train_network(sequence, 1 + words.index(BOUNDARY), 1 + len(words), width)
    return ContextModel(words, network.copy_weights())


def _read_sequence(texts: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """Returns the distinct words of texts, and the number of each word: int64 [sequence]."""
    numbers: dict[str, int] = {}
    blocks: list[np.ndarray] = []
    total = 0
    for block in read_word_blocks(texts, numbers):
        blocks.append(block.words)
        total += len(block.words)
        if total >= MAX_TRAINING_WORDS:
            break
    return [*numbers], np.concatenate(blocks)[:MAX_TRAINING_WORDS]


def _train_network(sequence: np.ndarray, boundary: int, size: int, width: int) -> _Network:
    """Trains the parameters with a sampled softmax (Jean et al. 2015).

    Args:
        sequence: Numbers of words and boundaries.
        boundary: The number of a boundary, which is not predicted.
        size: The number of words with an embedding, and one more.
    """
    generator = torch.Generator().manual_seed(_SEED)
    counts = np.bincount(sequence, minlength=size).astype(np.float64)
    counts[boundary] = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = _Network(np.maximum(counts, 0.1), width)

    positions = np.flatnonzero(sequence != boundary)
    if not len(positions):
        return network

    noise = torch.from_numpy(counts**0.75 / (counts**0.75).sum())
    log_noise = (noise * _NEGATIVES).clamp(min=1e-9).log().float()
    batch_words = min(max(len(positions) // _MIN_EPOCH_STEPS, 1), _BATCH_WORDS)
    steps = _EPOCHS * (len(positions) // batch_words)
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    for _ in range(_EPOCHS):
        order = torch.randperm(len(positions), generator=generator).numpy()
        for start in range(0, len(order) - batch_words + 1, batch_words):
            batch = positions[order[start : start + batch_words]]
            neighbors = torch.from_numpy(find_neighbors(sequence, batch, boundary))
            is_hidden = torch.rand(neighbors.shape, generator=generator) < _HIDDEN_SHARE
            neighbors = neighbors.masked_fill(is_hidden, OTHER)
            targets = torch.from_numpy(sequence[batch])
            negatives = torch.multinomial(noise, _NEGATIVES, True, generator=generator)

            positive, others = network(neighbors, targets, negatives)
            # A word competes with the sampled words in proportion to their rates.
            others = others - log_noise[negatives]
            others = others.masked_fill(negatives[None] == targets[:, None], -1e4)
            loss = functional.cross_entropy(
                torch.cat([positive[:, None], others], 1), torch.zeros_like(targets)
            )

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            report_progress()
    return network

"""Decodes continuations of contexts token by token, in batches, with a key-value cache.

With guidance g, the next token is drawn from `null + g (metadata - null)`, in log-probabilities
(classifier-free guidance; Sanchez et al. 2023, equation 7; Fan et al. 2025 use it with URLs). A
text then has two rows in the batch, one for each context. Rows are padded on the left.

`generate()` of transformers is not used: its settings and its random numbers are those of a batch,
where here each text has its own, so that a text does not depend on the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bsmeta.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Draw:
    """A text to generate.

    Attributes:
        context: Token ids to continue.
        null_context: Token ids of the context that guidance leads away from.
        guidance: 1 uses only the context; 0 only the null context.
        temperature: Sampling temperature; 0 takes the most likely token.
        top_p: Probability mass of the tokens to draw from (nucleus; Holtzman et al. 2020).
        max_new_tokens: Maximum length of the continuation.
        seed: Seed of the draws, which do not depend on the other texts of the batch.
    """

    context: Sequence[int]
    null_context: Sequence[int] = ()
    guidance: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 100
    seed: int = 42


@dataclass(slots=True)
class Continuation:
    """A generated continuation.

    Attributes:
        ids: The new token ids, without the end-of-text token.
        finished: Why it ended: `eos`, `max_new_tokens`, or `max_seq_len` (no more room).
    """

    ids: list[int] = field(default_factory=list)
    finished: str = ""


class Decoder:
    """Continues contexts with one model.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        eos: Id of the end-of-text token.
        vocabulary: Number of tokens in the vocabulary (a model may have more embeddings).
        max_length: Maximum sequence length of the model input, in tokens.
    """

    def __init__(
        self, model: nn.Module, *, eos: int, vocabulary: int, max_length: int, device: torch.device
    ) -> None:
        self._model = model
        self._eos = eos
        self._vocabulary = vocabulary
        self._max_length = max_length
        self._device = device
        forward = inspect.signature(model.forward).parameters
        self._arguments = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}

    @torch.no_grad()
    def run(self, draws: Sequence[Draw]) -> list[Continuation]:
        """Generate a continuation per draw; their contexts must be shorter than `max_length`.

        Raises:
            DataError: The model's probabilities are NaN.
        """
        batch = _Batch(draws, self._device)
        longest = [max(map(len, _rows_of(draw))) for draw in draws]
        room = [
            min(draw.max_new_tokens, self._max_length - length)
            for draw, length in zip(draws, longest, strict=True)
        ]
        written = [Continuation() for _ in draws]
        sequence = _Sequence(batch.rows, self._eos, self._max_length, self._device)
        ids = sequence.ids
        while True:
            logits, sequence.cache = self._next(ids, sequence)
            chosen = batch.choose(logits).tolist()
            for continuation, token, draw, most in zip(written, chosen, draws, room, strict=True):
                _record(continuation, token, self._eos, draw, most)
            if all(continuation.finished for continuation in written):
                return written
            ids = batch.for_rows(chosen)
            sequence.extend()

    def _next(self, ids: torch.Tensor, sequence: _Sequence) -> tuple[torch.Tensor, Any]:
        """Logits [rows, vocabulary] after `ids` [rows, n], and the cache, now including `ids`."""
        output = self._model(
            input_ids=ids,
            attention_mask=sequence.mask,
            position_ids=sequence.positions(ids.shape[1]),
            past_key_values=sequence.cache,
            use_cache=True,
            **self._arguments,
        )
        return output.logits[:, -1, : self._vocabulary].double(), output.past_key_values


def _record(continuation: Continuation, token: int, eos: int, draw: Draw, room: int) -> None:
    if continuation.finished:
        return
    if token == eos:
        continuation.finished = "eos"
        return
    continuation.ids.append(token)
    if len(continuation.ids) >= room:
        continuation.finished = "max_new_tokens" if room == draw.max_new_tokens else "max_seq_len"


class _Sequence:
    """The model inputs of the rows so far: initial ids, attention mask, positions and cache."""

    def __init__(
        self, rows: Sequence[Sequence[int]], filler: int, max_length: int, device: torch.device
    ) -> None:
        width = max(map(len, rows))
        padded = [[filler] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        self.ids = torch.tensor(padded, device=device)
        self.mask = torch.tensor(mask, device=device)
        self.cache: Any = None
        self._last = max_length - 1

    def positions(self, width: int) -> torch.Tensor:
        """Positions [rows, width] of the last tokens; each row begins at 0 after its padding.

        A finished row continues while other rows are unfinished, but its positions stay below
        `max_length`.
        """
        return (self.mask.cumsum(1) - 1).clamp(0, self._last)[:, -width:]

    def extend(self) -> None:
        """Extend the attention mask by a token in every row."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)


def _rows_of(draw: Draw) -> list[Sequence[int]]:
    """The contexts that affect a text, its own first."""
    if draw.guidance == 1 or list(draw.context) == list(draw.null_context):
        return [draw.context]
    return [draw.null_context] if draw.guidance == 0 else [draw.context, draw.null_context]


class _Batch:
    """Maps texts to rows of the model input, and chooses tokens from the logits of the rows."""

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        self.rows: list[Sequence[int]] = []
        self._main: list[int] = []  # for each text: its row, and the row of the null context
        self._null: list[int] = []  # (the same row if only one context affects the text)
        self._owner: list[int] = []
        for number, draw in enumerate(draws):
            rows = _rows_of(draw)
            self._main.append(len(self.rows))
            self._null.append(len(self.rows) + len(rows) - 1)
            self._owner += [number] * len(rows)
            self.rows += rows
        self._generators = [torch.Generator().manual_seed(draw.seed) for draw in draws]

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        guided = [main != null for main, null in zip(self._main, self._null, strict=True)]
        self._is_guided = torch.tensor(guided, device=device)[:, None]
        self._guidance = column([draw.guidance for draw in draws])
        self._temperature = column([draw.temperature for draw in draws])
        self._top_p = column([draw.top_p for draw in draws])
        self._device = device

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each text (int64 [texts]), from the logits [rows, vocabulary]."""
        scores = torch.log_softmax(logits, dim=-1)
        if scores.isnan().any():
            raise DataError(
                "checkpoint: the model's probabilities of the next token are not numbers (NaN); "
                "its weights, or what it computes in this precision, are not finite. Expected "
                "another checkpoint, or precision=float32"
            )
        main, null = scores[self._main], scores[self._null]
        guided = torch.where(self._is_guided, null + self._guidance * (main - null), main)
        numbers = [
            torch.rand(1, generator=generator, dtype=torch.float64)
            for generator in self._generators
        ]
        drawn = torch.cat(numbers)[:, None].to(self._device)
        return pick(guided, self._temperature, self._top_p, drawn)

    def for_rows(self, tokens: Sequence[int]) -> torch.Tensor:
        """The new token of each row (int64 [rows, 1])."""
        return torch.tensor([[tokens[owner]] for owner in self._owner], device=self._device)


def pick(
    scores: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, drawn: torch.Tensor
) -> torch.Tensor:
    """Draw a token per row from unnormalized log-probabilities.

    Args:
        scores: float64 [n, vocabulary].
        temperature: float64 [n, 1]; 0 takes the most likely token.
        top_p: float64 [n, 1], above 0.
        drawn: float64 [n, 1], uniform in [0, 1): the point in the cumulative distribution of the
            tokens, sorted by descending probability.

    Returns:
        Token ids, int64 [n].
    """
    is_greedy = temperature == 0
    if is_greedy.all():
        return scores.argmax(dim=-1)
    scaled = scores / torch.where(is_greedy, 1.0, temperature)
    probabilities, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = torch.where(before < top_p, probabilities, 0.0).cumsum(dim=-1)
    place = torch.searchsorted(kept, drawn * kept[:, -1:], right=True)
    last = (before < top_p).sum(dim=-1, keepdim=True) - 1
    place = torch.where(is_greedy, 0, torch.minimum(place, last))
    return order.gather(1, place)[:, 0]

"""Decodes the continuations of contexts, token by token.

With guidance g, the next token is drawn from `null + g (metadata - null)`, in log-probabilities
(classifier-free guidance; Sanchez et al. 2023, equation 7; Fan et al. 2025 use it with URLs). A
text then has two rows in the batch, one for each context. Rows are padded on the left.

`generate()` of transformers is not used, because it has one setting and one random generator for a
whole batch. Here each text has its own, so a text does not depend on the others in its batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
        self._forward_arguments = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}

    def continue_texts(self, draws: Sequence[Draw]) -> list[Continuation]:
        """Generates a continuation for each draw, whose context must be shorter than `max_length`.

        Raises:
            DataError: If the model's probabilities are NaN.
        """
        *_, continuations = self.extend_texts(draws)
        return continuations

    @torch.no_grad()
    def extend_texts(self, draws: Sequence[Draw]) -> Iterator[list[Continuation]]:
        """Yields the continuations after each new token: the same objects, updated in place.

        Raises:
            DataError: If the model's probabilities are NaN.
        """
        batch = _Batch(draws, self._device)
        limits = [self._limit_new_tokens(draw) for draw in draws]
        continuations = [Continuation() for _ in draws]
        ids, mask = self._pad_rows(batch.rows)
        cache = None

        while True:
            # Each row begins at 0 after its padding. A finished row continues while other rows are
            # unfinished, but its positions stay below `max_length`.
            positions = (mask.cumsum(1) - 1).clamp(0, self._max_length - 1)
            output = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions[:, -ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                **self._forward_arguments,
            )
            cache = output.past_key_values
            tokens = batch.choose_tokens(output.logits[:, -1, : self._vocabulary].double())

            rows = zip(continuations, tokens.tolist(), draws, limits, strict=True)
            for continuation, token, draw, limit in rows:
                if not continuation.finished:
                    self._add_token(continuation, token, draw, limit)
            yield continuations
            if all(continuation.finished for continuation in continuations):
                return

            ids = tokens[batch.owners, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)

    def _limit_new_tokens(self, draw: Draw) -> int:
        """Returns the maximum length of a continuation, which also has to fit after the context."""
        longest_context = max(len(row) for row in _list_context_rows(draw))
        return min(draw.max_new_tokens, self._max_length - longest_context)

    def _add_token(self, continuation: Continuation, token: int, draw: Draw, limit: int) -> None:
        """Adds a token to a continuation, or ends the continuation."""
        if token == self._eos:
            continuation.finished = "eos"
            return
        continuation.ids.append(token)
        if len(continuation.ids) >= limit:
            is_requested = limit == draw.max_new_tokens
            continuation.finished = "max_new_tokens" if is_requested else "max_seq_len"

    def _pad_rows(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads rows on the left; returns ids and mask (0: padding), both int64 [rows, width]."""
        width = max(len(row) for row in rows)
        ids = [[self._eos] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(ids, device=self._device), torch.tensor(mask, device=self._device)


def _list_context_rows(draw: Draw) -> list[Sequence[int]]:
    """Returns the contexts that affect a text, the null context last."""
    if draw.guidance == 1 or list(draw.context) == list(draw.null_context):
        return [draw.context]
    if draw.guidance == 0:
        return [draw.null_context]
    return [draw.context, draw.null_context]


class _Batch:
    """Maps texts to rows of the model input, and chooses tokens from the logits of the rows.

    Attributes:
        rows: The contexts to continue, one or two for each text.
        owners: The index of the text of each row.
    """

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        self.rows: list[Sequence[int]] = []
        self.owners: list[int] = []
        # For each text: its row, and the row of the null context (the same row if only one context
        # affects the text).
        self._main_rows: list[int] = []
        self._null_rows: list[int] = []
        for number, draw in enumerate(draws):
            rows = _list_context_rows(draw)
            self._main_rows.append(len(self.rows))
            self._null_rows.append(len(self.rows) + len(rows) - 1)
            self.owners += [number] * len(rows)
            self.rows += rows
        self._generators = [torch.Generator().manual_seed(draw.seed) for draw in draws]

        def make_column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        row_pairs = zip(self._main_rows, self._null_rows, strict=True)
        is_guided = [main_row != null_row for main_row, null_row in row_pairs]
        self._is_guided = torch.tensor(is_guided, device=device)[:, None]
        self._guidance = make_column([draw.guidance for draw in draws])
        self._temperature = make_column([draw.temperature for draw in draws])
        self._top_p = make_column([draw.top_p for draw in draws])
        self._device = device

    def choose_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        """Chooses the next token of each text (int64 [texts]) by the logits [rows, vocabulary]."""
        scores = torch.log_softmax(logits, dim=-1)
        if scores.isnan().any():
            raise DataError(
                "checkpoint: the model's probabilities of the next token are not numbers (NaN); "
                "its weights, or what it computes in this precision, are not finite. Expected "
                "another checkpoint, or precision=float32"
            )

        main_scores = scores[self._main_rows]
        null_scores = scores[self._null_rows]
        guided_scores = null_scores + self._guidance * (main_scores - null_scores)
        guided_scores = torch.where(self._is_guided, guided_scores, main_scores)

        points = [
            torch.rand(1, generator=generator, dtype=torch.float64)
            for generator in self._generators
        ]
        column = torch.cat(points)[:, None].to(self._device)
        return draw_tokens(guided_scores, self._temperature, self._top_p, column)


def draw_tokens(
    scores: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, points: torch.Tensor
) -> torch.Tensor:
    """Draws a token per row from unnormalized log-probabilities.

    Args:
        scores: float64 [n, vocabulary].
        temperature: float64 [n, 1]; 0 takes the most likely token.
        top_p: float64 [n, 1], above 0.
        points: float64 [n, 1], uniform in [0, 1): the point in the cumulative distribution of the
            tokens, sorted by descending probability.

    Returns:
        Token ids, int64 [n].
    """
    is_greedy = temperature == 0
    if is_greedy.all():
        return scores.argmax(dim=-1)

    scaled = scores / torch.where(is_greedy, 1.0, temperature)
    probabilities, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)

    # The nucleus: the tokens that begin below top_p in the cumulative distribution.
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    is_in_nucleus = mass_before < top_p
    cumulative = torch.where(is_in_nucleus, probabilities, 0.0).cumsum(dim=-1)

    position = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    last_position = is_in_nucleus.sum(dim=-1, keepdim=True) - 1
    position = torch.where(is_greedy, 0, torch.minimum(position, last_position))
    return order.gather(1, position)[:, 0]

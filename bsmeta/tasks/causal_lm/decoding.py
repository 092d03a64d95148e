"""Builds the contexts that a model continues, and decodes the continuations token by token.

Metadata becomes records, which the renderer and encoder of the training data process; so
granularity, templates, buckets and separators apply here as well.

With guidance g, the next token is drawn from `null + g (metadata - null)`, in log-probabilities
(classifier-free guidance; Sanchez et al. 2023, equation 7; Fan et al. 2025 use it with URLs). A
text then has two rows in the batch, one for each context. Rows are padded on the left.

`generate()` of transformers is not used, because it has one setting and one random generator for a
whole batch. Here each text has its own, so a text does not depend on the others in its batch.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import column_keys, type_of
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.metadata.rendering import Rendered, Renderer


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
        """Generates a continuation per draw; their contexts must be shorter than `max_length`.

        Raises:
            DataError: The model's probabilities are NaN.
        """
        batch = _Batch(draws, self._device)
        limits = [
            min(draw.max_new_tokens, self._max_length - max(map(len, _rows_of(draw))))
            for draw in draws
        ]
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
                **self._arguments,
            )
            cache = output.past_key_values
            tokens = batch.choose(output.logits[:, -1, : self._vocabulary].double())

            states = zip(continuations, tokens.tolist(), draws, limits, strict=True)
            for continuation, token, draw, limit in states:
                if continuation.finished:
                    continue
                if token == self._eos:
                    continuation.finished = "eos"
                    continue
                continuation.ids.append(token)
                if len(continuation.ids) >= limit:
                    is_requested = limit == draw.max_new_tokens
                    continuation.finished = "max_new_tokens" if is_requested else "max_seq_len"
            if all(continuation.finished for continuation in continuations):
                return continuations

            ids = tokens[batch.owners, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)

    def _pad_rows(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads rows on the left; returns their ids and the mask of the padding, [rows, width]."""
        width = max(map(len, rows))
        ids = [[self._eos] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(ids, device=self._device), torch.tensor(mask, device=self._device)


def _rows_of(draw: Draw) -> list[Sequence[int]]:
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
        owners: The number of the text of each row.
    """

    def __init__(self, draws: Sequence[Draw], device: torch.device) -> None:
        self.rows: list[Sequence[int]] = []
        self.owners: list[int] = []
        # For each text: its row, and the row of the null context (the same row if only one context
        # affects the text).
        self._main: list[int] = []
        self._null: list[int] = []
        for number, draw in enumerate(draws):
            rows = _rows_of(draw)
            self._main.append(len(self.rows))
            self._null.append(len(self.rows) + len(rows) - 1)
            self.owners += [number] * len(rows)
            self.rows += rows
        self._generators = [torch.Generator().manual_seed(draw.seed) for draw in draws]

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        is_guided = [main != null for main, null in zip(self._main, self._null, strict=True)]
        self._is_guided = torch.tensor(is_guided, device=device)[:, None]
        self._guidance = column([draw.guidance for draw in draws])
        self._temperature = column([draw.temperature for draw in draws])
        self._top_p = column([draw.top_p for draw in draws])
        self._device = device

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Chooses the next token of each text (int64 [texts]) by the logits [rows, vocabulary]."""
        scores = torch.log_softmax(logits, dim=-1)
        if scores.isnan().any():
            raise DataError(
                "checkpoint: the model's probabilities of the next token are not numbers (NaN); "
                "its weights, or what it computes in this precision, are not finite. Expected "
                "another checkpoint, or precision=float32"
            )

        main = scores[self._main]
        null = scores[self._null]
        guided = torch.where(self._is_guided, null + self._guidance * (main - null), main)

        numbers = [
            torch.rand(1, generator=generator, dtype=torch.float64)
            for generator in self._generators
        ]
        points = torch.cat(numbers)[:, None].to(self._device)
        return draw_tokens(guided, self._temperature, self._top_p, points)


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
    before = probabilities.cumsum(dim=-1) - probabilities
    is_in_nucleus = before < top_p
    cumulative = torch.where(is_in_nucleus, probabilities, 0.0).cumsum(dim=-1)

    position = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    last = is_in_nucleus.sum(dim=-1, keepdim=True) - 1
    position = torch.where(is_greedy, 0, torch.minimum(position, last))
    return order.gather(1, position)[:, 0]


@dataclass(frozen=True, slots=True)
class Context:
    """The input that a model continues.

    Attributes:
        prefix: The rendered metadata; "" without any.
        ids: Token ids of the prefix and the prompt; never empty.
        joint: The remainder of the separator between prefix and text, with which the continuation
            begins; it is not part of the text.
    """

    prefix: str
    ids: list[int]
    joint: str


class Contexts:
    """Builds contexts in the same way as training builds the beginnings of documents."""

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config = config.metadata_config
        self._renderer = Renderer(config.metadata_config)
        self._encoder = DocumentEncoder(tokenizer, config)
        self._tokenizer = tokenizer
        self._is_apart = config.row_budget == BY_TEXT  # the separator merges with no word

    def make(self, metadata: Mapping[str, Any], prompt: str) -> Context:
        """Builds the context of metadata followed by a prompt.

        If both are empty, the context is an end-of-text token.

        Args:
            metadata: A value or a list of values by type; None leaves a type out; True announces
                a local type.
            prompt: The text to continue; may be empty.
        """
        head = self._render(metadata)
        rendered = Rendered(
            prompt,
            prefix=head.prefix,
            prefix_spans=head.prefix_spans,
            prefix_token_types=head.prefix_token_types,
            prefix_own=head.prefix_own,
            lead=head.lead,
            body=prompt,
        )
        (encoded,) = self._encoder.encode([rendered])

        joint = ""
        body = encoded.ids[:-1].tolist()
        if not prompt and not self._is_apart:
            body, joint = self._split_lead(head.lead)
        ids = [*encoded.prefix_ids.tolist(), *body]
        return Context(head.prefix, ids or [int(self._tokenizer.eos_token_id)], joint)

    def _render(self, metadata: Mapping[str, Any]) -> Rendered:
        """Renders metadata without a text.

        Raises:
            ConfigurationError: The metadata cannot be in the prefix of this model.
        """
        values = {key: value for key, value in metadata.items() if value is not None}
        check_metadata(values, self._config)
        records = {key: _make_records(key, value) for key, value in values.items()}
        try:
            rendered = self._renderer.render(Document("", None, records), tuple(values))
        except BadDocument as error:
            raise ConfigurationError(f"metadata={values}: {error}") from error
        if values and not rendered.prefix:
            raise ConfigurationError(f"metadata={values}: nothing of it can be rendered")
        return rendered

    def _split_lead(self, lead: str) -> tuple[list[int], str]:
        """Splits the separator between prefix and text, for a context without a prompt.

        Some of it merges with the first word: a space, for example, is part of the token of the
        word after it.

        Returns:
            The tokens that do not merge, and the characters that do.
        """
        if not lead:
            return [], ""
        with_word = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(with_word, body=with_word)])
        is_inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][is_inside].max(initial=0))
        return encoded.ids[:-1][is_inside].tolist(), lead[end:]


def _make_records(key: str, value: Any) -> list[Record]:
    if type_of(key).is_local:  # only announced in the prefix: its insertion is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=value, key=key, type="global") for value in values]


def check_metadata(metadata: Mapping[str, Any], config: MetadataConfig) -> None:
    """Rejects metadata that cannot be in the prefix of this model; None leaves a type out.

    Raises:
        ConfigurationError: A type or a value is not possible.
    """
    for key, value in metadata.items():
        if value is None:
            continue
        check_type(key, f"metadata.{key}", config)
        problem = _value_problem(key, value, config)
        if problem is not None:
            raise ConfigurationError(f"metadata.{key}={problem}")


def _value_problem(key: str, value: Any, config: MetadataConfig) -> str | None:
    """Returns the value with the reason why it cannot be in the prefix; None if it can."""
    kind = type_of(key)
    if kind.is_local:
        announced = is_announced(key, config)
        if value is True and announced:
            return None
        problem = (
            f"{value}: {key} is a local type; it stands at places in the text and cannot be "
            "given as a value before it; "
        )
        if announced:
            return problem + f"the prefix only announces it: metadata.{key}=true"
        return problem + f"and training did not announce it in the prefix: leave out metadata.{key}"

    if kind.always_present:
        return None if value is True else f"{value}: expected true, they have no value"

    values = value if isinstance(value, list) else [value]
    if values and all(_is_text_or_number(entry) for entry in values):
        return None
    return f"{value!r}: expected a string or a number"


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def check_type(key: str, name: str, config: MetadataConfig) -> None:
    """Rejects a metadata type that cannot be in the prefix of this model.

    Args:
        name: The setting of the user, for the message.

    Raises:
        ConfigurationError: The model was not trained with the type, or not with a prefix.
    """
    trained_types = config.metadata_list
    kind = type_of(key)
    if key not in trained_types:
        close = difflib.get_close_matches(key, trained_types, n=1)
        suggestion = column_keys().get(key) or next(iter(close), None)
        hint = f"; did you mean {suggestion}?" if suggestion in trained_types else ""
        possible = [other for other in trained_types if not type_of(other).is_local]
        raise ConfigurationError(
            f"{name}: the model was not trained with this type; expected any of {possible}{hint}"
        )

    if config.metadata_position == "append" and not kind.is_local and not kind.always_present:
        raise ConfigurationError(
            f"{name}: the model was trained with metadata_position=append: it reads metadata after "
            "the text, so none can be given before it"
        )


def is_announced(key: str, config: MetadataConfig) -> bool:
    """Whether the prefix names a local type that a document has."""
    has_name = (config.local_metadata_special_tokens or {}).get(key, key) != ""
    return config.add_local_metadata_special_tokens_in_prefix and has_name

"""Builds the contexts that a model continues, and decodes the continuations token by token.

Metadata becomes records, which the renderer and encoder of the training data process; so
granularity, templates, buckets and separators apply here as well.

With guidance g, the next token is drawn from `null + g (metadata - null)`, in log-probabilities
(classifier-free guidance; Sanchez et al. 2023, equation 7; Fan et al. 2025 use it with URLs). A
text then has two rows in the batch, one for each context. Rows are padded on the left.

`generate()` of transformers is not used: its settings and its random numbers are those of a batch,
where here each text has its own, so that a text does not depend on the others.
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
        """Generate a continuation per draw; their contexts must be shorter than `max_length`.

        Raises:
            DataError: The model's probabilities are NaN.
        """
        batch = _Batch(draws, self._device)
        room = [
            min(draw.max_new_tokens, self._max_length - max(map(len, _rows_of(draw))))
            for draw in draws
        ]
        written = [Continuation() for _ in draws]
        width, cache = max(map(len, batch.rows)), None
        padded = [[self._eos] * (width - len(row)) + list(row) for row in batch.rows]
        ids = torch.tensor(padded, device=self._device)
        used = [[0] * (width - len(row)) + [1] * len(row) for row in batch.rows]
        mask = torch.tensor(used, device=self._device)
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
            for own, token, draw, most in zip(written, tokens.tolist(), draws, room, strict=True):
                if own.finished:
                    continue
                if token == self._eos:
                    own.finished = "eos"
                    continue
                own.ids.append(token)
                if len(own.ids) >= most:
                    is_asked = most == draw.max_new_tokens
                    own.finished = "max_new_tokens" if is_asked else "max_seq_len"
            if all(continuation.finished for continuation in written):
                return written
            ids = tokens[batch.owners, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)


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
        self.owners: list[int] = []
        for number, draw in enumerate(draws):
            rows = _rows_of(draw)
            self._main.append(len(self.rows))
            self._null.append(len(self.rows) + len(rows) - 1)
            self.owners += [number] * len(rows)
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
        """Build the context of metadata followed by a prompt.

        If both are empty, the context is an end-of-text token.

        Args:
            metadata: A value or a list of values by type; None leaves a type out; True announces
                a local type.
            prompt: The text to continue; may be empty.
        """
        head = self._rendered(metadata)
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
        body, joint = encoded.ids[:-1].tolist(), ""
        if not prompt and not self._is_apart:
            body, joint = self._begun(head.lead)
        ids = [*encoded.prefix_ids.tolist(), *body]
        return Context(head.prefix, ids or [int(self._tokenizer.eos_token_id)], joint)

    def _rendered(self, metadata: Mapping[str, Any]) -> Rendered:
        given = {key: value for key, value in metadata.items() if value is not None}
        check_metadata(given, self._config)
        records = {key: _records(key, value) for key, value in given.items()}
        try:
            rendered = self._renderer.render(Document("", None, records), tuple(given))
        except BadDocument as error:
            raise ConfigurationError(f"metadata={given}: {error}") from error
        if given and not rendered.prefix:
            raise ConfigurationError(f"metadata={given}: nothing of it can be rendered")
        return rendered

    def _begun(self, lead: str) -> tuple[list[int], str]:
        """The tokens of the separator that do not merge with the first word, and its remainder.

        A space, for example, is part of the token of the word after it.
        """
        if not lead:
            return [], ""
        followed = f"{lead}A"
        (encoded,) = self._encoder.encode([Rendered(followed, body=followed)])
        inside = encoded.text_ends[:-1] <= len(lead)
        end = int(encoded.text_ends[:-1][inside].max(initial=0))
        return encoded.ids[:-1][inside].tolist(), lead[end:]


def _records(key: str, value: Any) -> list[Record]:
    if type_of(key).is_local:  # only announced in the prefix: its insertion is not used
        return [Record(value="", key=key, type="local", char_start_idx=0, char_end_idx=0)]
    values = value if isinstance(value, list) else [value]
    return [Record(value=value, key=key, type="global") for value in values]


def check_metadata(metadata: Mapping[str, Any], config: MetadataConfig) -> None:
    """Reject metadata that cannot be in the prefix of this model; None leaves a type out."""
    for key, value in metadata.items():
        if value is None:
            continue
        check_type(key, f"metadata.{key}", config)
        kind, values = type_of(key), value if isinstance(value, list) else [value]
        are_values = [
            isinstance(one, (str, int, float)) and not isinstance(one, bool) for one in values
        ]
        problem = None
        if kind.is_local and not (value is True and is_announced(key, config)):
            problem = (
                f"{value}: {key} is a local type; it stands at places in the text and cannot be "
                "given as a value before it; "
            )
            problem += (
                f"the prefix only announces it: metadata.{key}=true"
                if is_announced(key, config)
                else f"and training did not announce it in the prefix: leave out metadata.{key}"
            )
        elif kind.always_present and not kind.is_local and value is not True:
            problem = f"{value}: expected true, they have no value"
        elif not (kind.is_local or kind.always_present) and not (values and all(are_values)):
            problem = f"{value!r}: expected a string or a number"
        if problem is not None:
            raise ConfigurationError(f"metadata.{key}={problem}")


def check_type(key: str, name: str, config: MetadataConfig) -> None:
    """Reject a metadata type that cannot be in the prefix of this model.

    Args:
        name: What the user set, for the message.
    """
    known, kind = config.metadata_list, type_of(key)
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        near = column_keys().get(key) or next(iter(close), None)
        hint = f"; did you mean {near}?" if near in known else ""
        given = [key for key in known if not type_of(key).is_local]
        raise ConfigurationError(
            f"{name}: the model was not trained with this type; expected any of {given}{hint}"
        )
    if config.metadata_position == "append" and not kind.is_local and not kind.always_present:
        raise ConfigurationError(
            f"{name}: the model was trained with metadata_position=append: it reads metadata after "
            "the text, so none can be given before it"
        )


def is_announced(key: str, config: MetadataConfig) -> bool:
    """Whether the prefix names a local type that a document has."""
    named = (config.local_metadata_special_tokens or {}).get(key, key) != ""
    return config.add_local_metadata_special_tokens_in_prefix and named

"""Generates the texts of requests with one model, in batches, in the order of the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.generation.contexts import Context, Contexts
from bsmeta.tasks.causal_lm.generation.decoding import Continuation, Decoder, Draw
from bsmeta.tasks.causal_lm.generation.requests import Request, apply_steps


class Sample(msgspec.Struct, frozen=True):
    """One generated text, after the prompt.

    Attributes:
        tokens: Its length in tokens, without the end-of-text token.
        finished: Why it ended: `eos`, `max_new_tokens`, or `max_seq_len`.
        seed: The seed that reproduces this sample on its own.
    """

    text: str
    tokens: int
    finished: str
    seed: int


class Result(msgspec.Struct, frozen=True):
    """The result of a request; `prefix` is its rendered metadata."""

    request: Request
    prefix: str
    samples: list[Sample]


class _PreparedRequest(NamedTuple):
    """A request with its context, and the context that guidance leads away from."""

    request: Request
    context: Context
    null_context: Context


class Writer:
    """Generates texts with one model, `batch_size` at a time."""

    def __init__(self, opened: OpenedModel, *, batch_size: int) -> None:
        config = opened.run_config.data_config
        tokenizer = opened.tokenizer
        self._contexts = Contexts(config, tokenizer)
        self._tokenizer = tokenizer
        self._max_length = config.metadata_config.max_seq_len
        self._batch_size = batch_size
        self._decoder = Decoder(
            opened.model,
            eos=int(tokenizer.eos_token_id),
            vocabulary=len(tokenizer),
            max_length=self._max_length,
            device=opened.device,
        )

    def write(self, requests: Sequence[Request]) -> Iterator[Result]:
        """Checks all requests, and returns an iterator that generates the result of each.

        Raises:
            ConfigurationError: If a request is invalid; the message lists the problems of all.
        """
        return self._generate_results(apply_steps(requests, self._prepare_request))

    def write_pieces(self, request: Request) -> Iterator[str]:
        """Checks a request for one sample, and returns an iterator over the pieces of its text.

        A piece has the characters that the last token completes. The joined pieces are the text of
        the sample.

        Raises:
            ConfigurationError: If the request is invalid.
        """
        (prepared,) = apply_steps([request], self._prepare_request)
        return self._generate_pieces(prepared)

    def _generate_pieces(self, prepared: _PreparedRequest) -> Iterator[str]:
        """Yields the characters that each new token completes."""
        yielded_text = ""
        draws = list(_list_draws([prepared]))
        for (continuation,) in self._decoder.extend_texts(draws):
            text = self._decode(continuation, prepared.context)
            if not continuation.finished:
                # Bytes of an incomplete character, which the next tokens may complete.
                text = text.rstrip("\N{REPLACEMENT CHARACTER}")
            if len(text) > len(yielded_text):
                yield text[len(yielded_text) :]
                yielded_text = text

    def _decode(self, continuation: Continuation, context: Context) -> str:
        """Returns the text of a continuation, after the prompt."""
        text = self._tokenizer.decode(
            continuation.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text.removeprefix(context.joint)

    def _generate_results(self, prepared_requests: Sequence[_PreparedRequest]) -> Iterator[Result]:
        """Yields the result of each request as soon as it is complete."""
        continuations = self._generate(_list_draws(prepared_requests))
        for request, context, _ in prepared_requests:
            samples = []
            for number, continuation in enumerate(islice(continuations, request.num_samples)):
                samples.append(
                    Sample(
                        text=self._decode(continuation, context),
                        tokens=len(continuation.ids),
                        finished=continuation.finished,
                        seed=request.seed + number,
                    )
                )
            yield Result(request, context.prefix, samples)

    def _prepare_request(self, request: Request) -> _PreparedRequest:
        """Makes the contexts of a request.

        Raises:
            ConfigurationError: If the metadata is invalid, or a context is too long.
        """
        context = self._contexts.make_context(request.metadata, request.prompt)
        null_context = self._contexts.make_context(request.null_metadata, request.prompt)
        longest = max(len(context.ids), len(null_context.ids))
        if longest >= self._max_length:
            raise ConfigurationError(
                f"prompt: with its metadata it has {longest} tokens, but the model was trained on "
                f"sequences of {self._max_length}; expected fewer, so that there is room to write"
            )
        return _PreparedRequest(request, context, null_context)

    def _generate(self, draws: Iterator[Draw]) -> Iterator[Continuation]:
        """Yields the continuations of all draws, generated in batches."""
        while batch := list(islice(draws, self._batch_size)):
            yield from self._decoder.continue_texts(batch)


def _list_draws(prepared_requests: Sequence[_PreparedRequest]) -> Iterator[Draw]:
    """Yields a draw for each sample of each request; the samples have consecutive seeds."""
    for request, context, null_context in prepared_requests:
        for number in range(request.num_samples):
            yield Draw(
                context=context.ids,
                null_context=null_context.ids,
                guidance=request.guidance,
                temperature=request.temperature,
                top_p=request.top_p,
                max_new_tokens=request.max_new_tokens,
                seed=request.seed + number,
            )

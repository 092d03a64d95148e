"""Generates texts for requests, in batches, and yields results in the order of the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.generation.contexts import Context, Contexts
from bsmeta.generation.decoding import Continuation, Decoder, Draw
from bsmeta.generation.requests import Request


class Sample(msgspec.Struct, frozen=True):
    """One generated text.

    Attributes:
        text: The text generated after the prompt.
        tokens: Its length in tokens, without the end-of-text token.
        finished: Why it ended: `eos`, `max_new_tokens`, or `max_seq_len`.
        seed: The seed that reproduces this sample on its own.
    """

    text: str
    tokens: int
    finished: str
    seed: int


class Result(msgspec.Struct, frozen=True):
    """The result of a request.

    Attributes:
        request: The request.
        prefix: Its rendered metadata.
        samples: The generated texts.
    """

    request: Request
    prefix: str
    samples: list[Sample]


class Writer:
    """Generates texts with one model.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        config: How its training data was rendered and encoded.
        batch_size: Number of texts that are generated at one time.
        device: The device of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        *,
        batch_size: int,
        device: torch.device,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size}: expected at least 1")
        self._contexts = Contexts(config, tokenizer)
        self._tokenizer = tokenizer
        self._max_length = config.metadata_config.max_seq_len
        self._batch_size = batch_size
        self._decoder = Decoder(
            model,
            eos=int(tokenizer.eos_token_id),
            vocabulary=len(tokenizer),
            max_length=self._max_length,
            device=device,
        )

    def write(self, requests: Sequence[Request]) -> Iterator[Result]:
        """Yield the result of each request as soon as it is complete.

        All requests are checked before the first text is generated.

        Raises:
            ConfigurationError: A request is invalid; the message lists the problems of all.
        """
        contexts = self._checked(requests)
        draws = (
            draw
            for request, pair in zip(requests, contexts, strict=True)
            for draw in _draws(request, *pair)
        )
        written = self._batches(draws)
        for request, (context, _) in zip(requests, contexts, strict=True):
            samples = [
                self._sample(one, context, request.seed + number)
                for number, one in enumerate(islice(written, request.num_samples))
            ]
            yield Result(request, context.prefix, samples)

    def _checked(self, requests: Sequence[Request]) -> list[tuple[Context, Context]]:
        """The context and the null context of each request."""
        contexts, problems = [], []
        for number, request in enumerate(requests, start=1):
            try:
                contexts.append(self._pair(request))
            except ConfigurationError as error:
                where = f"request {request.id or number}: " if len(requests) > 1 else ""
                problems.append(f"{where}{error}")
        if problems:
            raise ConfigurationError("\n".join(problems))
        return contexts

    def _pair(self, request: Request) -> tuple[Context, Context]:
        pair = (
            self._contexts.make(request.metadata, request.prompt),
            self._contexts.make(request.null_metadata, request.prompt),
        )
        longest = max(len(context.ids) for context in pair)
        if longest >= self._max_length:
            raise ConfigurationError(
                f"prompt: with its metadata it has {longest} tokens, but the model was trained on "
                f"sequences of {self._max_length}; expected fewer, so that there is room to write"
            )
        return pair

    def _batches(self, draws: Iterator[Draw]) -> Iterator[Continuation]:
        while batch := list(islice(draws, self._batch_size)):
            yield from self._decoder.run(batch)

    def _sample(self, one: Continuation, context: Context, seed: int) -> Sample:
        text = self._tokenizer.decode(
            one.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return Sample(text.removeprefix(context.joint), len(one.ids), one.finished, seed)


def _draws(request: Request, context: Context, null: Context) -> Iterator[Draw]:
    for number in range(request.num_samples):
        yield Draw(
            context=context.ids,
            null_context=null.ids,
            guidance=request.guidance,
            temperature=request.temperature,
            top_p=request.top_p,
            max_new_tokens=request.max_new_tokens,
            seed=request.seed + number,
        )

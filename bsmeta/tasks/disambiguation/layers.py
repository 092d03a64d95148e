"""Runs an encoder's first layers and its last ones apart, whatever its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """The layers of an encoder, first to last."""
    lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList))
    return next(found for found in lists if len(found) == encoder.config.num_hidden_layers)


def states_before(
    encoder: PreTrainedModel, last: int, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The states of all tokens before the last layers, float [texts, tokens, hidden].

    Args:
        encoder: The encoder.
        last: The number of last layers, which are not run; at least 1.
        ids, mask: int64 [texts, tokens].
    """
    found = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        raise _Reached

    hook = layers_of(encoder)[-last].register_forward_pre_hook(stop, with_kwargs=True)
    with hook, suppress(_Reached):
        encoder(input_ids=ids, attention_mask=mask)
    return found[0]


def after_states(
    encoder: PreTrainedModel, last: int, states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """What the last layers make of the states before them, float [texts, tokens, hidden].

    Args:
        encoder: The encoder.
        last: The number of last layers; at least 1.
        states: float [texts, tokens, hidden].
        mask: int64 [texts, tokens].
    """

    def replace(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    layers = layers_of(encoder)
    hook = layers[-last].register_forward_pre_hook(replace, with_kwargs=True)
    with hook, _skipped(layers[: len(layers) - last], states):
        # The encoder makes masks and positions for its layers; its tokens are not used.
        output = encoder(input_ids=torch.zeros_like(mask), attention_mask=mask)
    return output.last_hidden_state


class _Reached(Exception):
    """The first of the last layers has got its input."""


@contextmanager
def _skipped(layers: nn.ModuleList, states: torch.Tensor) -> Iterator[None]:
    """The layers return these states instead of running.

    Encoders that expect a tuple of a layer take its first part, which the next layer ignores.
    """
    for layer in layers:
        layer.forward = lambda *_, **__: states
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward

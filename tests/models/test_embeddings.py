"""New tokens of pretrained models begin with the mean of the trained rows."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from bsmeta.models.embeddings import add_embeddings
from tests.models.architectures import ARCHITECTURES

SHAPES = {architecture.name: architecture for architecture in ARCHITECTURES}
ROWS = 4096


def make_model(name: str, *, tied: bool) -> PreTrainedModel:
    torch.manual_seed(1)
    shape = SHAPES[name].shape()
    shape.tie_word_embeddings = tied
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    model.get_input_embeddings().weight.data += 1  # so that the mean is not about 0
    return model


def check_rows(weight: torch.Tensor, before: torch.Tensor, num_trained: int, rows: int) -> None:
    """Checks that the trained rows are unchanged, and that the others are their mean."""
    assert len(weight) == rows
    assert torch.equal(weight[:num_trained], before[:num_trained])
    mean = before[:num_trained].mean(0).expand(rows - num_trained, *before.shape[1:])
    torch.testing.assert_close(weight[num_trained:], mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "gemma2", "mixtral", "mamba"])
@pytest.mark.parametrize(
    ("num_tokens", "num_trained", "rows"),
    [(4100, 4096, 4100), (4100, 4000, 4100), (4010, 4000, 4096)],
)
def test_rows_of_new_tokens_begin_with_the_mean(
    name: str, tied: bool, num_tokens: int, num_trained: int, rows: int
) -> None:
    """Whether they are added, or padded the vocabulary before."""
    model = make_model(name, tied=tied)
    embeddings = model.get_input_embeddings().weight.detach().clone()
    output = model.get_output_embeddings()
    outputs = output.weight.detach().clone()
    biases = None if output.bias is None else output.bias.detach().clone()

    add_embeddings(model, num_tokens, num_trained)
    output = model.get_output_embeddings()
    check_rows(model.get_input_embeddings().weight, embeddings, num_trained, rows)
    check_rows(output.weight, outputs, num_trained, rows)
    if biases is not None:
        check_rows(output.bias, biases, num_trained, rows)
    assert (output.weight is model.get_input_embeddings().weight) is tied
    assert model.config.vocab_size == rows
    assert model(torch.tensor([[num_tokens - 1]])).logits.shape == (1, 1, rows)


@pytest.mark.parametrize(("num_tokens", "num_trained"), [(4000, 4000), (3990, 4000), (4096, None)])
def test_a_model_that_knows_all_tokens_is_unchanged(
    num_tokens: int, num_trained: int | None
) -> None:
    model = make_model("llama", tied=True)
    before = model.get_input_embeddings().weight.detach().clone()
    add_embeddings(model, num_tokens, num_trained)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_the_new_rows_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    add_embeddings(make_model("llama", tied=True), 4100, 4090)
    assert caplog.messages[-1] == (
        "embeddings: 10 tokens are new to the model: their rows, from 4090 on, begin with the mean "
        "of the others (4096 rows before, 6 of them padding; 4100 rows now)"
    )

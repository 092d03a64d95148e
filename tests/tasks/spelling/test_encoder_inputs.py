"""The inputs and the words of an encoder of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.tasks.spelling.detector import sequence_logit, sequence_losses, word_logits
from bsmeta.tasks.spelling.inputs import TokenInputs

TOKENIZER = Path(__file__).resolve().parents[3] / "examples" / "tokenizer"


class IdAsLogit(nn.Module):
    """The logit of a token is its id."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=input_ids.float()[:, :, None])


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    found = AutoTokenizer.from_pretrained(TOKENIZER, add_prefix_space=True)
    found.pad_token = found.eos_token
    return found


@pytest.mark.parametrize(
    "texts",
    [[["The", "cat"]], [["The", "unbelievable", "cat"], ["cat"]], [["cat", "\x00\x00"], ["The"]]],
)
def test_a_word_has_the_mean_of_its_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: list[list[str]]
) -> None:
    inputs = TokenInputs(tokenizer, None)
    logits = word_logits(IdAsLogit(), inputs.tensors(texts))
    assert logits.shape == (len(texts), max(map(len, texts)))
    for row, words in enumerate(texts):
        for place, word in enumerate(words):
            ids = tokenizer([word], is_split_into_words=True)["input_ids"]
            assert logits[row, place] == pytest.approx(np.mean(ids) if ids else 0.0)


def test_long_texts_are_read_in_windows(tokenizer: PreTrainedTokenizerBase) -> None:
    words = ["unbelievable", "cat"] * 20
    inputs = TokenInputs(tokenizer, 16)
    windows = inputs.windows(words)
    assert [word for window in windows for word in window] == words
    assert len(windows) > 1
    for window in windows:
        assert len(tokenizer(window, is_split_into_words=True)["input_ids"]) <= 16
    assert inputs.windows([]) == TokenInputs(tokenizer, None).windows([]) == []
    assert inputs.lengths([]).tolist() == []


def test_a_text_has_an_error_if_any_word_has_one() -> None:
    logits = torch.tensor([[0.0, -1.0, 9.0], [-3.0, 0.0, 0.0]])
    is_word = torch.tensor([[True, True, False], [True, False, False]])
    losses = sequence_losses(logits, is_word, torch.tensor([1.0, 0.0]))
    none_wrong = 0.5 * (1 - 1 / (1 + np.e))
    assert losses.tolist() == pytest.approx([-np.log(1 - none_wrong), np.log(1 + np.exp(-3))])
    logit = sequence_logit(np.array([0.0, -1.0]))
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(1 - none_wrong)

"""Batched log-probabilities against the plainest way to get them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from bsmeta.config.errors import ConfigurationError
from bsmeta.evaluation import scoring
from bsmeta.evaluation.scoring import Window, evaluation_mode, log_probabilities

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def window(length: int, seed: int) -> Window:
    generator = np.random.default_rng(seed)
    scored = generator.random(length) < 0.7
    scored[0] = False
    starts = np.arange(length, dtype=np.int32)
    ids = generator.integers(0, 61, length).astype(np.int32)
    return Window(ids, starts, starts + 1, scored, 0)


def plain_scores(model: GPT2LMHeadModel, one: Window) -> list[float]:
    logits = model(torch.from_numpy(one.ids.astype(np.int64))[None]).logits[0].double()
    return [float(logits[j - 1].log_softmax(-1)[one.ids[j]]) for j in np.flatnonzero(one.scored)]


def test_batches_agree_with_one_window_at_a_time(
    model: GPT2LMHeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "LOGITS_PER_CHUNK", 61 * 7)  # several chunks
    windows = [window(length, length) for length in (60, 3, 31, 2, 17)]
    with evaluation_mode(model):
        batched = log_probabilities(model, windows, CPU)
        for one, scores in zip(windows, batched, strict=True):
            np.testing.assert_allclose(scores, plain_scores(model, one), atol=1e-5)


def test_a_wrapped_model_gives_the_same(model: GPT2LMHeadModel) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, **inputs: torch.Tensor) -> object:
            return self.module(**inputs)

    wrapped = Wrapper(model)
    with evaluation_mode(wrapped):
        expected = log_probabilities(model, [window(9, 1)], CPU)
        np.testing.assert_array_equal(log_probabilities(wrapped, [window(9, 1)], CPU), expected)


def test_windows_without_a_scored_token_and_dummy_calls(model: GPT2LMHeadModel) -> None:
    empty = window(5, 2)
    empty.scored[:] = False
    with evaluation_mode(model):
        scoring.dummy_forward(model, CPU)
        assert [len(scores) for scores in log_probabilities(model, [empty, empty], CPU)] == [0, 0]
        assert len(model.get_output_embeddings()._forward_pre_hooks) == 0


def test_evaluation_mode_restores_training(model: GPT2LMHeadModel) -> None:
    model.train()
    with evaluation_mode(model):
        assert not model.training
        assert not torch.is_grad_enabled()
    assert model.training
    model.eval()


def test_logits_bound_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scoring.max_batch_tokens(61, 8, 64) == 512
    monkeypatch.setattr(scoring, "LOGITS_PER_BATCH", 61 * 128)
    assert scoring.max_batch_tokens(61, 8, 64) == 128


def test_a_model_without_output_embedding_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Linear has no output embedding"):
        scoring.output_embedding_of(nn.Linear(2, 2))

"""Batched log-probabilities against the plainest way to get them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.evaluation import scorer as scorer_module
from bsmeta.tasks.causal_lm.evaluation.batches import SIZE_DIGITS
from bsmeta.tasks.causal_lm.evaluation.scorer import find_output_embedding, open_scorer
from bsmeta.tasks.causal_lm.evaluation.windows import Window

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config).eval()


def window(length: int, seed: int) -> Window:
    generator = np.random.default_rng(seed)
    scored = generator.random(length) < 0.7
    scored[0] = False
    starts = np.arange(length, dtype=np.int32)
    ids = generator.integers(0, 61, length).astype(np.int32)
    return Window(ids, starts, starts + 1, scored, 0)


@torch.no_grad()
def compute_scores(model: GPT2LMHeadModel, window: Window) -> list[float]:
    logits = model(torch.from_numpy(window.ids.astype(np.int64))[None]).logits[0].double()
    return [
        float(logits[j - 1].log_softmax(-1)[window.ids[j]]) for j in np.flatnonzero(window.scored)
    ]


def check(model: nn.Module, plain: GPT2LMHeadModel, batches: list[list[Window]]) -> None:
    with open_scorer(model, CPU) as scorer:
        found = scorer.score(batches)
    for batch, scores in zip(batches, found, strict=True):
        for one, own in zip(batch, scores, strict=True):
            np.testing.assert_allclose(own, compute_scores(plain, one), atol=1e-5)


def test_batches_give_the_scores_of_single_windows(
    model: GPT2LMHeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "ROWS_PER_CHUNK", 7)
    monkeypatch.setitem(scorer_module.LOGITS_PER_CHUNK, "cpu", 61 * 7)  # several chunks
    check(model, model, [[window(length, length) for length in (60, 3, 31, 2, 17)]])


def test_padding_does_not_change_the_scores(
    model: GPT2LMHeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; no batch is wider than the 64 positions of the model."""
    monkeypatch.setitem(SIZE_DIGITS, "cpu", 3)
    shapes: list[tuple[int, ...]] = []

    def record(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        shapes.append(tuple(inputs["input_ids"].shape))

    lengths = [[60, 3, 31], [63], [17] * 9, [9] * 11, [12]]
    batches = [[window(n, seed) for seed, n in enumerate(batch)] for batch in lengths]
    check(model, model, batches)
    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with open_scorer(model, CPU) as scorer:
            scorer.score(batches)
    finally:
        handle.remove()
    assert sorted(shapes) == [(1, 2), (1, 12), (1, 64), (3, 64), (10, 20), (12, 10)]


def test_planned_attention_is_disabled_while_scoring(model: GPT2LMHeadModel) -> None:
    seen: list[bool] = []
    handle = model.register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    # A program that ran before in this process may have turned it off for good.
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with open_scorer(model, CPU) as scorer:
            scorer.score([[window(9, 1)], [window(8, 1)]])
        assert torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        handle.remove()
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
    assert seen == [False] * 3  # the first call compares the head with the logits


def test_threads_share_the_batches(model: GPT2LMHeadModel) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        check(model, model, [[window(n, n), window(n, n + 1)] for n in range(5, 25)])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Wrapper(nn.Module):
    """A wrapper like those of DDP and DeepSpeed."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: torch.Tensor) -> object:
        return self.module(**inputs)


def test_a_wrapped_model_gives_the_same_scores(model: GPT2LMHeadModel) -> None:
    check(Wrapper(model).eval(), model, [[window(9, 1), window(8, 2)], [window(3, 4)]])


class Capped(GPT2LMHeadModel):
    """A model that changes the output of its head, like Gemma 2."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = torch.tanh(output.logits)
        return output


def test_logits_that_a_model_changes_after_its_head_are_scored(model: GPT2LMHeadModel) -> None:
    capped = Capped(model.config)
    capped.load_state_dict(model.state_dict())
    check(capped.eval(), capped, [[window(20, 1), window(18, 2)]])


def test_windows_without_scored_tokens_and_dummy_calls_are_accepted(model: GPT2LMHeadModel) -> None:
    empty = window(5, 2)
    empty.scored[:] = False
    with open_scorer(model, CPU) as scorer:
        scorer.call_dummy()
        assert [len(scores) for scores in scorer.score([[empty, empty]])[0]] == [0, 0]
    assert len(model.get_output_embeddings()._forward_pre_hooks) == 0


def test_training_mode_is_restored(model: GPT2LMHeadModel) -> None:
    model.train()
    with open_scorer(model, CPU):
        assert not model.training
    assert model.training
    model.eval()


def test_a_model_without_output_embedding_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Linear has no output embedding"):
        find_output_embedding(nn.Linear(2, 2))

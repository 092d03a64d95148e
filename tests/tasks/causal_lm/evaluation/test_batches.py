"""Batches: every window once, whatever the number of processes, within the limit of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.causal_lm.evaluation import batches as batches_module
from bsmeta.tasks.causal_lm.evaluation.batches import limit_batch_tokens, plan_batches, round_up


@given(st.lists(st.integers(1, 64), max_size=80), st.integers(64, 512))
def test_batches_hold_every_window_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = plan_batches(lengths, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= limit


def test_a_window_beyond_the_limit_forms_a_batch_alone() -> None:
    assert plan_batches([100, 100], 64) == [[1], [0]]


def test_padding_is_avoided_only_if_it_costs_more_than_a_call() -> None:
    assert plan_batches([10, 12, 11], 4096) == [[1, 2, 0]]
    assert plan_batches([1000, 10, 10], 8192) == [[0], [2, 1]]


def test_sizes_have_three_binary_digits() -> None:
    assert [round_up(n, 3) for n in (1, 7, 8, 9, 10, 11, 57, 64, 65, 1000, 1024)] == [
        1, 7, 8, 10, 10, 12, 64, 64, 80, 1024, 1024,
    ]  # fmt: skip
    assert [round_up(n, 64) for n in (0, 1, 9, 1000)] == [0, 1, 9, 1000]


@given(st.integers(1, 10**6))
def test_a_padded_size_is_at_most_a_quarter_larger(size: int) -> None:
    padded = round_up(size, 3)
    assert size <= padded <= 1.25 * size
    assert round_up(padded, 3) == padded


def test_the_number_of_logits_limits_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit_batch_tokens(61, 8, 64) == 512
    monkeypatch.setattr(batches_module, "MAX_LOGITS_PER_BATCH", 61 * 128)
    assert limit_batch_tokens(61, 8, 64) == 128

"""The learning rate as a function of the step, and which parameters are decayed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.engines import build_optimizer, learning_rate


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
    ],
)
def test_rate_of_each_update(kind: str, expected: list[float]) -> None:
    config = CausalLMConfig(
        learning_rate=1.0, lr_scheduler_type=kind, num_warmup_steps=2, max_train_steps=6
    )
    assert [learning_rate(config, 6, step) for step in range(1, 7)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "falling"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("1-sqrt", [1.0, 0.5, 0.2928932188134524, 0.1339745962155614]),
        ("cosine", [1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
    ],
)
def test_the_rate_is_stable_until_the_decay(shape: str, falling: list[float]) -> None:
    """By a number of steps or a share of them; to a tenth of the peak, if told so."""
    config = CausalLMConfig(
        learning_rate=1.0, lr_scheduler_type="wsd", num_warmup_steps=2, decay_shape=shape,
        num_decay_steps=4,
    )  # fmt: skip
    expected = [0.5, 1.0, 1.0, 1.0, *falling]
    assert [learning_rate(config, 8, step) for step in range(1, 9)] == pytest.approx(expected)
    config = replace(config, num_decay_steps=None, decay_share=0.5, min_learning_rate_ratio=0.1)
    lifted = [*expected[:4], *(0.1 + 0.9 * rate for rate in falling)]
    lifted[0] = 0.5
    assert [learning_rate(config, 8, step) for step in range(1, 9)] == pytest.approx(lifted)


def test_the_warm_up_may_be_a_share_of_the_run() -> None:
    config = CausalLMConfig(learning_rate=1.0, num_warmup_steps=1000, warmup_share=0.4)
    rates = [learning_rate(config, 5, step) for step in range(1, 6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 2 / 3, 1 / 3])


def test_without_warm_up_the_first_update_has_the_peak() -> None:
    config = CausalLMConfig(learning_rate=0.1, num_warmup_steps=0, max_train_steps=10)
    assert learning_rate(config, config.max_train_steps, 1) == 0.1


def test_only_matrices_are_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = build_optimizer(model, CausalLMConfig(weight_decay=0.1))
    shapes = {
        group["weight_decay"]: [p.shape for p in group["params"]]
        for group in optimizer.param_groups
    }
    assert shapes == {0.1: [(4, 3)], 0.0: [(4,), (4,), (4,)]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8681980515339464, 0.55, 0.2318019484660536]),
    ],
)
def test_the_rate_falls_to_a_share_of_the_peak(kind: str, expected: list[float]) -> None:
    config = CausalLMConfig(
        learning_rate=2.0,
        lr_scheduler_type=kind,
        min_learning_rate_ratio=0.1,
        num_warmup_steps=2,
        max_train_steps=6,
    )
    found = [learning_rate(config, 6, step) / 2 for step in range(1, 7)]
    assert found == pytest.approx(expected)
    if kind != "constant":
        assert learning_rate(config, 6, 7) == pytest.approx(0.2)

"""The loss scalers of DeepSpeed continue where they were saved; their settings are the run's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaleConfig, LossScaler

from bsmeta.training.engines.values import LossScale
from bsmeta.training.engines.zero_scaler import capture_loss_scale, restore_loss_scale


def make_dynamic(window: int = 3) -> DynamicLossScaler:
    return DynamicLossScaler(
        init_scale=2.0**16,
        scale_window=window,
        min_scale=1.0,
        delayed_shift=2,
        consecutive_hysteresis=False,
    )


def make_config() -> LossScaleConfig:
    settings = {"init_scale": 2.0**16, "scale_window": 3, "min_scale": 1.0}
    return LossScaleConfig(torch.float16, True, 1.0, settings)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda: 1)  # of a rank that logs nothing


def test_a_dynamic_scaler_continues_with_the_same_scales() -> None:
    overflows = [False, True, True, False, True, False, False, False, False, False]
    uninterrupted, scaler = make_dynamic(), make_dynamic()
    for overflow in overflows[:5]:
        uninterrupted.update_scale(overflow)
        scaler.update_scale(overflow)
    saved = capture_loss_scale(scaler)
    assert saved == LossScale(
        2.0**14,
        "DynamicLossScaler",
        {"cur_scale": 2.0**14, "cur_iter": 5, "last_overflow_iter": 4, "cur_hysteresis": 1},
    )
    resumed = make_dynamic()
    restore_loss_scale(resumed, saved)
    for overflow in overflows[5:]:
        uninterrupted.update_scale(overflow)
        resumed.update_scale(overflow)
        assert resumed.cur_scale == uninterrupted.cur_scale
    assert vars(resumed) == vars(uninterrupted)


def test_the_settings_of_the_run_stay() -> None:
    resumed = make_dynamic(window=1000)
    restore_loss_scale(resumed, capture_loss_scale(make_dynamic(window=3)))
    assert resumed.scale_window == 1000


def test_the_scaler_without_zero_is_restored() -> None:
    scaler, resumed = make_config(), make_config()
    scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = 512.0, 9, 7
    saved = capture_loss_scale(scaler)
    restore_loss_scale(resumed, saved)
    assert vars(resumed) == vars(scaler)
    assert saved.values == {"cur_scale": 512.0, "cur_iter": 9, "last_overflow_iter": 7}


def test_from_another_scaler_the_scale_is_taken() -> None:
    resumed = make_dynamic()
    restore_loss_scale(resumed, LossScale(128.0, "GradScaler", {"growth_tracker": 5}))
    assert (resumed.cur_scale, resumed.cur_iter, resumed.last_overflow_iter) == (128.0, 0, -1)


@pytest.mark.parametrize(
    "scaler", [LossScaler(4.0), LossScaleConfig(torch.float16, False, 4.0, None)]
)
def test_a_constant_scale_stays(scaler: Any) -> None:
    restore_loss_scale(scaler, LossScale(128.0, type(scaler).__name__, {"cur_scale": 128.0}))
    assert scaler.cur_scale == 4.0

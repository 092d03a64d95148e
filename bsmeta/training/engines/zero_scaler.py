"""The loss scaler of DeepSpeed (fp16) in a checkpoint.

Only what changes in training is saved and restored; the settings are those of the run.
"""

from __future__ import annotations

from typing import Any

from bsmeta.training.engines.values import LossScale

# Attributes of DeepSpeed's dynamic scalers, some of which have only the first three.
_CHANGING = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def get_loss_scaler(engine: Any) -> Any:
    """Returns the loss scaler of DeepSpeed's engine, which has one in fp16."""
    optimizer = engine.optimizer
    return optimizer.loss_scaler if engine.zero_optimization() else optimizer.loss_scale_config


def capture_loss_scale(scaler: Any) -> LossScale:
    """Returns the state of a loss scaler."""
    values = {key: getattr(scaler, key) for key in _CHANGING if hasattr(scaler, key)}
    return LossScale(scaler.cur_scale, type(scaler).__name__, values)


def restore_loss_scale(scaler: Any, saved: LossScale) -> None:
    """Restores a dynamic loss scaler; from a scaler of another class, it takes the scale.

    A constant scale is a setting, and stays.

    Raises:
        KeyError: If a value is missing.
    """
    if getattr(scaler, "last_overflow_iter", None) is None:
        return
    if saved.scaler != type(scaler).__name__:
        scaler.cur_scale = saved.scale
        return
    for key in _CHANGING:
        if hasattr(scaler, key):
            setattr(scaler, key, saved.values[key])

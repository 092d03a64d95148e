"""The content of `trainer_state.json` in a checkpoint."""

from __future__ import annotations

from typing import Any, TypedDict


class GuardsState(TypedDict, total=False):
    """Types of the keys that the guards save in `trainer_state.json`."""

    consecutive_skips: int
    last_losses: list[float]
    rollbacks: dict[str, int]
    early_stopping: dict[str, Any]


class TrainerState(GuardsState, total=False):
    """Types of the keys of `trainer_state.json`."""

    progress: dict[str, Any]
    phase: int
    world_size: int
    global_batch: int | None  # of a task whose steps vary in size
    engine: str
    parameters: dict[str, list[int]]
    evaluation: list[dict[str, Any]]
    base: dict[str, Any] | None  # the model whose frozen weights are not in `state/`

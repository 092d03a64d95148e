"""What can be trained. A task is one module (see `base.Task`), one function and one line here."""

from __future__ import annotations

from collections.abc import Callable

from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import Task


def _causal_lm(config: TrainConfig) -> Task:
    # Imported here: transformers takes seconds, and a task name is checked before anything loads.
    from bsmeta.tasks.causal_lm import CausalLanguageModel

    return CausalLanguageModel(config)


TASKS: dict[str, Callable[[TrainConfig], Task]] = {"causal_lm": _causal_lm}

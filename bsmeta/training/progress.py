"""How far a run has come: its counters, and where each stream of its data stands.

Both are saved with every checkpoint: what was trained on, never what was only fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bsmeta.tasks.base import MicroBatch
from bsmeta.training.distributed import Processes


@dataclass
class Progress:
    """What a run has done so far; saved with every checkpoint.

    Attributes:
        step: Completed updates.
        tokens: Tokens fed to the model, without padding.
        targets: Tokens that loss was taken on.
        counts: Sums of what the micro-batches count, since the phase of the data began.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0
    counts: dict[str, float] = field(default_factory=dict)

    def count(self, counts: dict[str, float]) -> None:
        """Adds what the micro-batches of a step count."""
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0.0) + value


class StreamStates:
    """Where the streams of all ranks stand behind what was trained on."""

    def __init__(self) -> None:
        # States of all streams where the run resumed, and of this rank's streams since then.
        self._resumed: dict[int, dict[str, Any]] = {}
        self._own: dict[int, dict[str, Any]] = {}

    def resumed(self, states: dict[Any, dict[str, Any]]) -> None:
        """Takes the states of a checkpoint (their keys are numbers, in JSON as text)."""
        self._resumed = {int(stream): state for stream, state in states.items()}

    def trained_on(self, batches: Sequence[MicroBatch]) -> None:
        """Notes where the streams stand behind these micro-batches of this rank."""
        for batch in batches:
            self._own.update(batch.states)

    def gathered(self, processes: Processes) -> dict[int, dict[str, Any]]:
        """The states of the streams of all ranks, in their order; all ranks call it."""
        states = dict(self._resumed)
        for part in processes.gather(self._own):
            states.update(part)
        return dict(sorted(states.items()))

"""The batches of training, for a training loop of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bsmeta.api.documents import Configuration, check, configuration
from bsmeta.core.errors import ConfigurationError, naming_extras
from bsmeta.data.batch import MicroBatch
from bsmeta.tasks import TASKS
from bsmeta.training.task import Task


def stream(
    config: Configuration,
    overrides: Sequence[str] = (),
    *,
    rank: int = 0,
    world_size: int = 1,
) -> BatchStream:
    """Opens the training data of a configuration, of any task: the batches that `train.py` gets.

    Args:
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`.
        overrides: `key=value` as on the command line.
        rank: The number of this process, from 0.
        world_size: Processes that share the batches of a step.

    Raises:
        UserError: If the configuration or the data is invalid.
    """
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < size")
    found = configuration(config, overrides)
    check(found)
    with naming_extras():
        task = TASKS[found.task].make(found)
        return BatchStream(task, rank, world_size, found.gradient_accumulation_steps)


class BatchStream:
    """An endless iterator over the micro-batches of one process, in the order of training.

    Every `gradient_accumulation_steps` of them make a step. A `MicroBatch` has the inputs of the
    model in `tensors` (of a language model `input_ids`, `position_ids`, `loss_mask` and others,
    each [rows, length]), and the number of its targets in `weight`: the loss of a step is the sum
    of its losses, divided by the sum of the weights over all processes.

    Attributes:
        step: Complete steps that have been taken from it.
    """

    def __init__(self, task: Task, rank: int, world_size: int, accumulation: int) -> None:
        self._task = task
        self._rank = rank
        self._world_size = world_size
        self._accumulation = accumulation
        self.step = 0
        self._open(None)

    def _open(self, saved: dict[str, Any] | None) -> None:
        self._saved = saved
        self._stream = self._task.train_stream(self._rank, self._world_size, saved)
        self._steps = iter(self._stream)
        self._batches: Iterator[MicroBatch] = iter(())
        self._state = self._stream.state  # after the last complete step
        self._next_state = self._state
        self._taken = 0  # batches of the step that follows it

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> MicroBatch:
        if not self._taken:
            step = next(self._steps)
            self._batches, self._next_state = iter(step.micro_batches), step.state
        batch = next(self._batches)
        self._taken += 1
        if self._taken == self._accumulation:
            self._state, self._taken = self._next_state, 0
            self.step += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that were taken so far, as values for JSON.

        Several processes save one each, and load the list of all.
        """
        return {
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "taken": self._taken,
            "opened_at": self._saved,
            "data": self._state,
            "fingerprint": self._stream.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues after a saved place: the next batches are those that came after it.

        At the end of a step, a stream of another number of processes may continue it.

        Args:
            state: What `state_dict` returned; of several processes the list of all of theirs.

        Raises:
            UserError: If the state is of other data, or that of a process is missing.
        """
        states = [state] if isinstance(state, Mapping) else [*state]
        first = self._checked(states)
        if first["opened_at"] != self._saved:
            self._open(first["opened_at"])  # which the states of the processes continue
        merged = self._stream.merge([one["data"] for one in states])
        self._open({"fingerprint": first["fingerprint"], **merged})
        self.step = first["step"]
        for _ in itertools.islice(self, first["taken"]):
            pass

    def _checked(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The first of the states of all processes, which are at the same place."""
        expected = self.state_dict().keys()
        if not all(isinstance(state, Mapping) and expected == state.keys() for state in states):
            raise ConfigurationError("state: expected what state_dict() returned, or a list of it")
        size = states[0]["world_size"] if states else 0
        ranks = sorted(state["rank"] for state in states)
        if not states or ranks != list(range(size)):
            raise ConfigurationError(
                f"state: found those of processes {ranks}; expected a list with the state of each "
                f"of the {size} processes that shared the batches"
            )
        places = {(state["step"], state["taken"]) for state in states}
        if len(places) > 1:
            raise ConfigurationError(f"state: the processes are at different places: {places}")
        if states[0]["taken"] and size != self._world_size:
            raise ConfigurationError(
                f"state: saved in the middle of a step by {size} processes, but there are now "
                f"{self._world_size}; expected the same number, or a state from the end of a step"
            )
        return states[0]

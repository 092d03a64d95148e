"""Streams the micro-batches of training as a torch data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from bsmeta.api.configuration import (
    Configuration,
    Overrides,
    check_configuration,
    compose_configuration,
)
from bsmeta.config.schema import RunConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError, name_missing_extras
from bsmeta.core.keys import list_key_names
from bsmeta.data.batch import MicroBatch, Stream
from bsmeta.tasks import TASKS
from bsmeta.training.task import Task

WORKERS_KEY = "data_config.num_workers"
"""Configuration key of the number of worker processes of a stream."""


def stream(
    config: Configuration,
    overrides: Overrides | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
) -> BatchStream:
    """Opens the training data of a configuration of any task, in the micro-batches of `train.py`.

    Args:
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`.
        overrides: Keys to change: `{"data_config.num_workers": 0}`, or nested.
        rank: Index of this process, from 0.
        world_size: Number of processes that share the micro-batches of a step.

    Raises:
        UserError: If the configuration or the data is invalid.
    """
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < size")

    run_config = compose_configuration(config, overrides)
    check_configuration(run_config)
    batches = BatchStream(run_config, rank, world_size)
    batches.open()
    return batches


class _OpenedData:
    """The stream of one rank, with its position within the current step.

    Args:
        saved: The merged state of all ranks from which the stream starts; None: the beginning.

    Attributes:
        process_id: The process that opened the stream; forked processes cannot use it.
        stream: The stream of the task.
        state: The state of the stream after the last complete step.
    """

    def __init__(
        self, task: Task, rank: int, world_size: int, saved: dict[str, Any] | None
    ) -> None:
        self.process_id = os.getpid()
        self.stream = task.train_stream(rank, world_size, saved)
        self.state = self.stream.state
        self._steps = iter(self.stream)
        self._batches: Iterator[MicroBatch] = iter(())  # of the current step
        self._next_state = self.state  # after the current step
        self._taken = 0  # batches taken from the current step

    def take_batch(self, accumulation: int) -> MicroBatch:
        """Takes the next micro-batch.

        Args:
            accumulation: Number of micro-batches in a step.
        """
        if not self._taken:
            step = next(self._steps)
            self._batches = iter(step.micro_batches)
            self._next_state = step.state

        batch = next(self._batches)
        self._taken += 1
        if self._taken == accumulation:
            self.state = self._next_state
            self._taken = 0
        return batch


# Streams that a parent process opened before a fork. They are never freed here, because that would
# stop the parent's loaders.
_PARENT_DATA: list[_OpenedData] = []


class BatchStream(IterableDataset[MicroBatch]):
    """An endless iterator over the micro-batches of one process, in the order of training.

    `gradient_accumulation_steps` micro-batches make a step. A `MicroBatch` has the model's inputs
    in `tensors` (for a language model `input_ids`, `position_ids`, `loss_mask` and others, each
    [rows, length]), and the number of its targets in `weight`. The loss of a step is the sum of the
    losses of its micro-batches, divided by the sum of their weights over all processes.

    It is a data set of torch: `DataLoader(stream, batch_size=None)` yields the same batches, with
    `num_workers` of 0 or 1; further workers are set with `data_config.num_workers`. The stateful
    loader of torchdata saves and loads the position, and so does pickling.
    """

    def __init__(self, config: RunConfig, rank: int, world_size: int) -> None:
        self._config = config
        self._rank = rank
        self._world_size = world_size
        self._accumulation = config.gradient_accumulation_steps
        self._set_position(None, 0, 0)

    def _set_position(
        self, opened_from: dict[str, Any] | None, opened_step: int, taken: int
    ) -> None:
        """Sets the position; the data is opened there when it is first used.

        Args:
            opened_from: The merged state of all processes from which the data is opened; None: the
                beginning.
            opened_step: Number of steps before this state.
            taken: Number of micro-batches that this process has taken since this state.
        """
        self._opened_from = opened_from
        self._opened_step = opened_step
        self._taken = taken
        self._data: _OpenedData | None = None

    @property
    def step(self) -> int:
        """Number of complete steps taken from the stream."""
        return self._opened_step + self._taken // self._accumulation

    def open(self) -> Stream:
        """Opens the data in this process, if it is not open yet.

        Raises:
            UserError: If the data is invalid.
        """
        return self._open_data().stream

    def _open_data(self) -> _OpenedData:
        """Returns the data opened in this process; opens it at the position if necessary."""
        data = self._data
        if data is not None and data.process_id != os.getpid():
            _PARENT_DATA.append(data)
            data = None
        if data is None:
            data = _OpenedData(self._make_task(), self._rank, self._world_size, self._opened_from)
            for _ in range(self._taken):
                data.take_batch(self._accumulation)
            self._data = data
        return data

    def _make_task(self) -> Task:
        """Makes the task; in a worker of a `DataLoader`, its stream has no workers of its own.

        Torch does not allow worker processes to start other processes.

        Raises:
            UserError: If the `DataLoader` has several workers, or a library is missing.
        """
        config = self._config
        worker = get_worker_info()
        if worker is not None:
            if worker.num_workers > 1:
                raise ConfigurationError(
                    f"DataLoader(num_workers={worker.num_workers}): each worker would yield all "
                    f"batches; expected 0 or 1, and {WORKERS_KEY} for more processes"
                )
            if WORKERS_KEY in list_key_names(type(config)):
                config = replace_values(config, {WORKERS_KEY: 0})
        with name_missing_extras():
            return TASKS[config.task].make(config)

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> MicroBatch:
        batch = self._open_data().take_batch(self._accumulation)
        self._taken += 1
        return batch

    def rows(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields each row of the micro-batches, as tensors by name.

        Usage: `datasets.IterableDataset.from_generator(stream.rows)`.

        Raises:
            UserError: If the tensors of a micro-batch have different numbers of rows.
        """
        for batch in self:
            sizes = {name: len(tensor) for name, tensor in batch.tensors.items()}
            if len(set(sizes.values())) != 1:
                raise ConfigurationError(
                    f"rows: the tensors of task={self._config.task} have different numbers of "
                    f"rows: {sizes}; use the batches"
                )
            (num_rows,) = set(sizes.values())
            for row in range(num_rows):
                yield {name: tensor[row] for name, tensor in batch.tensors.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the current position as JSON-serializable values.

        Each of several processes saves its own state, and loads the list of all states.
        """
        data = self._open_data()
        return {
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "taken": self._taken % self._accumulation,
            "opened_at": self._opened_from,
            "data": data.state,
            "fingerprint": data.stream.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Moves to a saved position.

        States saved at the end of a step may be loaded with another number of processes.

        Args:
            state: The result of `state_dict`; for several processes, the list of their results.

        Raises:
            UserError: If the state belongs to other data, or the state of a process is missing.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        self._check_states(states)
        first = states[0]

        # Only a stream that was opened at the same position can merge the states.
        if first["opened_at"] != self._opened_from:
            self._set_position(first["opened_at"], 0, 0)
        merged = self.open().merge([saved["data"] for saved in states])
        opened_from = {"fingerprint": first["fingerprint"], **merged}
        self._set_position(opened_from, first["step"], first["taken"])
        self.open()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the configuration and the position, without the opened data."""
        position = (self._opened_from, self._opened_step, self._taken)
        if self._data is not None and self._world_size == 1:
            # The states of several processes could not be merged here.
            merged = self._data.stream.merge([self._data.state])
            opened_from = {"fingerprint": self._data.stream.fingerprint, **merged}
            position = (opened_from, self.step, self._taken % self._accumulation)
        return {
            "config": self._config,
            "rank": self._rank,
            "world_size": self._world_size,
            "position": position,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        BatchStream.__init__(self, state["config"], state["rank"], state["world_size"])
        self._set_position(*state["position"])

    def _check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuses states that are not from all processes at the same position.

        Raises:
            ConfigurationError: If a state is invalid or missing, or they do not belong together.
        """
        expected_keys = self.state_dict().keys()
        are_valid = all(
            isinstance(state, Mapping) and state.keys() == expected_keys for state in states
        )
        if not are_valid:
            raise ConfigurationError("state: expected what state_dict() returned, or a list of it")

        size = states[0]["world_size"] if states else 0
        ranks = sorted(state["rank"] for state in states)
        if not states or ranks != list(range(size)):
            raise ConfigurationError(
                f"state: found those of processes {ranks}; expected a list with the state of each "
                f"of the {size} processes that shared the batches"
            )

        positions = {(state["step"], state["taken"]) for state in states}
        if len(positions) > 1:
            raise ConfigurationError(
                f"state: the processes stopped at different positions {positions}; expected states "
                "saved after the same batch"
            )
        if states[0]["taken"] and size != self._world_size:
            raise ConfigurationError(
                f"state: saved in the middle of a step by {size} processes, but there are now "
                f"{self._world_size}; expected the same number, or a state from the end of a step"
            )

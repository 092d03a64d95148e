"""The toy task on a bad day: it and its libraries print all secrets.

`LEAK=crash` raises in the middle of a run, `LEAK=loader` in a process that loads data, and
`LEAK=nan` has a loss that is not finite. All of them print, warn and log before.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE / "training")

import toy_task  # noqa: E402

from bsmeta.config.causal_lm import CausalLMConfig  # noqa: E402
from bsmeta.config.entry_point import run_entry_point  # noqa: E402
from bsmeta.data.batch import set_up_worker  # noqa: E402
from bsmeta.training.task import Loss  # noqa: E402

LEAK = os.environ["LEAK"]
LIBRARY = logging.getLogger("library")  # with a handler that is older than the run
LIBRARY.addHandler(logging.StreamHandler())


def all_secrets(config: CausalLMConfig) -> str:
    """Returns all secrets of the process, in the forms of messages of libraries."""
    names = json.loads(os.environ["PLANTED"])
    values = [os.environ[name] for name in names] + config.data_config.exclude
    sent = {"Authorization": f"Bearer {os.environ['CLOUDFLARE_API_TOKEN']}"}
    forms = [*values, repr(values), json.dumps(values), *map(quote, values), f"{sent}"]
    return "\n".join(forms)


def emit(text: str) -> None:
    """Emits a text in every way that a library might."""
    print(text)
    print(text, file=sys.stderr)
    warnings.warn(text, stacklevel=1)
    LIBRARY.error(text)
    thread = threading.Thread(target=fail, args=(text,))
    thread.start()
    thread.join()


def fail(text: str) -> None:
    """Raises, with the text in a chain of errors and in the variables of its frames."""
    try:
        raise OSError(text)
    except OSError as error:
        raise RuntimeError(f"no answer: {text}") from error


class LeakingStream(IterableDataset):
    """The stream through a loader process, which fails at its third batch."""

    def __init__(self, stream: toy_task.ToyStream, text: str) -> None:
        self._stream = stream
        self._text = text
        self.fingerprint = stream.fingerprint
        self.state = stream.state
        self.merge = stream.merge

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is None:
            loader = DataLoader(self, batch_size=None, num_workers=1, worker_init_fn=set_up_worker)
            yield from loader
        for number, step in enumerate(self._stream):
            if number == 2:
                emit(self._text)
                fail(self._text)
            yield step


class LeakingTask(toy_task.ToyTask):
    """Fails in the second step."""

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Any:
        stream = super().train_stream(rank, world_size, state)
        return LeakingStream(stream, all_secrets(self.config)) if LEAK == "loader" else stream

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        loss = super().loss(model, batch)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps < 2 or LEAK == "loader":
            return loss
        text = all_secrets(self.config)
        emit(text)
        if LEAK == "crash":
            fail(text)
        return Loss(loss.sum * float("nan"), loss.parts)


def main(config: CausalLMConfig) -> int:
    toy_task.ToyTask = LeakingTask
    return toy_task.main(config)


if __name__ == "__main__":
    run_entry_point(main, CausalLMConfig, "causal_lm_config")

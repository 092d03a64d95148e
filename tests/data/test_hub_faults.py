"""No document is lost or doubled per epoch and stream, whatever the Hub does.

What can be outlasted gives the very batches of local files. What cannot ends the run; the run that
goes on when the Hub has come to its senses has the batches that were missing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.batch import StepData
from bsmeta.data.stream.train_stream import TrainStream
from tests.data.helpers import Run, run, same, small_config, small_tokenizer, taken, write_shards
from tests.data.hub_server import Answer, Fault, Hub, cutting, failing
from tests.data.test_hub_stream import now_and_then, slow

SIZES = [30, 41, 17, 26, 33, 9]
BATCH, STEPS, STREAMS = 8, 34, 4
URL = "hf://datasets/owner/name/*.jsonl.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


def config(train_file: str, cache: Path, **changes: object) -> DataConfig:
    values = {"num_streams": STREAMS, "window_documents": 4, "per_device_train_batch_size": 1}
    here = {"train_file": train_file, "cache_dir": str(cache), "hub_retries": 50}
    return small_config(cache, **values | here | {"packing": "pad", "max_seq_len": 512} | changes)


def begin(config: DataConfig, batch: int = BATCH) -> TrainStream:
    return TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=batch
    )


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run from local files, of which each document is counted: once an epoch and stream."""
    local = config(str(folder), tmp_path_factory.mktemp("cache"))
    seen: Counter[tuple[int, int, str]] = Counter()
    epochs = dict.fromkeys(range(STREAMS), 0)
    for batch in itertools.islice(taken(begin(local, 1)), STEPS * BATCH):
        ((owner, state),) = batch.states.items()
        epochs[owner] = state["epoch"]
        seen.update((owner, state["epoch"], name) for name in batch.documents)
    assert min(epochs.values()) == 1
    assert set(seen.values()) == {1}
    first = [name for _, epoch, name in seen if epoch == 0]
    assert len(first) == len(set(first)) == sum(SIZES)
    return run(local, STEPS, batch=BATCH)


def changed() -> Fault:
    """All files are others by now."""

    def fault(answer: Answer) -> bool:
        answer.hub.files = {name: content[::-1] for name, content in answer.hub.listed.items()}
        return False

    return fault


def is_resolved(answer: Answer) -> bool:
    return "/resolve/" in answer.path


OUTLASTED: dict[str, Callable[[], Fault]] = {
    "429 with Retry-After": lambda: failing(429, 9, {"Retry-After": "0"}),
    "500": lambda: failing(500, 9),
    "slow": slow,
    "cut in mid-file": lambda: cutting(120, 40),
    "all of them": now_and_then,
}

ENDING: dict[str, tuple[Callable[[], Fault], str]] = {
    "401": (lambda: failing(401, 10**6, where=is_resolved), "401"),
    "404": (lambda: failing(404, 10**6, {"X-Error-Code": "EntryNotFound"}, is_resolved), "404"),
    "changed file": (changed, "the file has changed since it was listed"),
    "500 for ever": (lambda: failing(500, 10**6), "given up after 4 failures in a row"),
    "429 for ever": (lambda: failing(429, 10**6, {"Retry-After": "0"}), "given up after 4"),
    "cut for ever": (lambda: cutting(0, 10**6), "given up after 4 failures in a row"),
}


def with_workers(faults: Iterable[str], *quick: str) -> pytest.MarkDecorator:
    """Each fault without loader workers, and with two: of those, all but `quick` are slow."""
    found = [pytest.param(fault, 0, id=fault) for fault in faults]
    for fault in faults:
        marks = [] if fault in quick else [pytest.mark.slow]
        found.append(pytest.param(fault, 2, id=f"{fault}-workers", marks=marks))
    return pytest.mark.parametrize(("fault", "workers"), found)


@pytest.mark.long
@with_workers(OUTLASTED, "all of them")
def test_what_is_outlasted(
    stored: Hub, tmp_path: Path, whole: Run, fault: str, workers: int
) -> None:
    stored.faults = [OUTLASTED[fault]()]
    assert same(run(config(URL, tmp_path, num_workers=workers), STEPS, batch=BATCH), whole)


def take_all(steps: Iterator[StepData], done: list[StepData]) -> None:
    """Adds the steps of a run to those that are done, one by one: an error keeps them."""
    for step in itertools.islice(steps, STEPS):
        done.append(step)


@with_workers(ENDING, "401", "changed file")
def test_what_ends_the_run(
    stored: Hub, tmp_path: Path, whole: Run, fault: str, workers: int
) -> None:
    """It begins when a quarter of the steps is done; nothing is kept that was read before."""
    kind, message = ENDING[fault]
    values = {"num_workers": workers, "hub_retries": 3, "hub_cache_gb": 0}
    ending = begin(config(URL, tmp_path, **values))
    rest_of_run = iter(ending)
    done = list(itertools.islice(rest_of_run, STEPS // 4))
    stored.faults = [kind()]
    with pytest.raises(DataError, match=message):
        take_all(rest_of_run, done)
    steps = len(done)
    assert steps < STEPS
    names = [
        sorted({name for batch in step.micro_batches for name in batch.documents}) for step in done
    ]
    assert names == whole.documents[:steps]
    state = {"fingerprint": ending.fingerprint, **ending.merge([done[-1].state])}
    stored.faults, stored.files = [], stored.listed
    rest = run(config(URL, tmp_path), STEPS - steps, batch=BATCH, state=state)
    assert same(rest, Run(whole.steps[steps:], whole.documents[steps:], {}))

"""No document is lost or doubled per epoch and stream, whatever the Hub does.

Recoverable faults give exactly the batches of local files. Other faults end the run; the
run resumed after the Hub has recovered has the missing batches.
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
from tests.data.test_hub_stream import answer_badly_at_intervals, answer_slowly

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
    """The run from local files, in which each epoch of a stream has every document once."""
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


def change_all_files() -> Fault:
    """Replaces the content of all files."""

    def fault(answer: Answer) -> bool:
        answer.hub.files = {name: content[::-1] for name, content in answer.hub.listed.items()}
        return False

    return fault


def is_resolved(answer: Answer) -> bool:
    return "/resolve/" in answer.path


RECOVERABLE: dict[str, Callable[[], Fault]] = {
    "429 with Retry-After": lambda: failing(429, 9, {"Retry-After": "0"}),
    "500": lambda: failing(500, 9),
    "slow": answer_slowly,
    "cut in mid-file": lambda: cutting(120, 40),
    "all of them": answer_badly_at_intervals,
}

ENDING: dict[str, tuple[Callable[[], Fault], str]] = {
    "401": (lambda: failing(401, 10**6, where=is_resolved), "401"),
    "404": (lambda: failing(404, 10**6, {"X-Error-Code": "EntryNotFound"}, is_resolved), "404"),
    "changed file": (change_all_files, "the file has changed since it was listed"),
    "500 for ever": (lambda: failing(500, 10**6), "given up after 4 failures in a row"),
    "429 for ever": (lambda: failing(429, 10**6, {"Retry-After": "0"}), "given up after 4"),
    "cut for ever": (lambda: cutting(0, 10**6), "given up after 4 failures in a row"),
}


def with_workers(faults: Iterable[str], *quick: str) -> pytest.MarkDecorator:
    """Tries each fault with zero and two loader workers; two are slow, except for `quick`."""
    params = [pytest.param(fault, 0, id=fault) for fault in faults]
    for fault in faults:
        marks = [] if fault in quick else [pytest.mark.slow]
        params.append(pytest.param(fault, 2, id=f"{fault}-workers", marks=marks))
    return pytest.mark.parametrize(("fault", "workers"), params)


@pytest.mark.long
@with_workers(RECOVERABLE, "all of them")
def test_recoverable_faults_give_the_batches_of_local_files(
    stored: Hub, tmp_path: Path, whole: Run, fault: str, workers: int
) -> None:
    stored.faults = [RECOVERABLE[fault]()]
    assert same(run(config(URL, tmp_path, num_workers=workers), STEPS, batch=BATCH), whole)


def take_all(steps: Iterator[StepData], done: list[StepData]) -> None:
    """Appends the steps of a run to `done` one at a time, so that an error keeps them."""
    for step in itertools.islice(steps, STEPS):
        done.append(step)


@with_workers(ENDING, "401", "changed file")
def test_other_faults_end_the_run_which_resumes_with_the_missing_batches(
    stored: Hub, tmp_path: Path, whole: Run, fault: str, workers: int
) -> None:
    """The fault begins after a quarter of the steps; nothing read before is cached."""
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

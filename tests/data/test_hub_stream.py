"""Training from the Hub: the very batches of local files, whatever happens on the way."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io import compression
from bsmeta.data.io import lines as index_module
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache, LineReader
from bsmeta.data.io.remote import remote_file
from bsmeta.data.io.remote.hub import resolve_commit
from bsmeta.data.io.shards import list_shards
from tests.data.helpers import Run, run, same, small_config, write_shards
from tests.data.hub_server import (
    Answer,
    Fault,
    Hub,
    cutting,
    failing,
    is_anything,
    is_content,
)
from tests.data.test_index import DATA, LINES
from tests.waiting import wait_until

STEPS = 8
SIZES = [30, 41, 17, 26, 33, 9]
URL = "hf://datasets/owner/name/*.jsonl.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SIZES)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """The run from local files."""
    return run(small_config(folder), STEPS)


def hub_config(folder: Path, **changes: Any) -> DataConfig:
    values = {"train_file": URL, "cache_dir": str(folder / "cache"), "hub_retries": 50}
    return small_config(folder, **values | changes)


def answer_slowly() -> Fault:
    """Sends answers in drips."""

    def fault(answer: Answer) -> bool:
        if not is_content(answer):
            return False
        answer.wfile.flush()
        content = answer.hub.files[answer.path.partition("?")[0].removeprefix("/stored/")]
        first, last = answer.asked()
        part = content[first : last + 1]
        answer.send_response(206)
        answer.send_header("Content-Length", str(len(part)))
        answer.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        answer.end_headers()
        for offset in range(0, len(part), 70):
            answer.wfile.write(part[offset : offset + 70])
            answer.wfile.flush()
        return True

    return fault


def answer_badly_at_intervals() -> Fault:
    """Gives every kind of bad answer at regular intervals."""
    lock, count = threading.Lock(), itertools.count()

    def fault(answer: Answer) -> bool:
        with lock:
            number = next(count)
        if number % 7 == 1:
            answer.give(500)
        elif number % 7 == 3:
            answer.give(429, {"Retry-After": "0"})
        elif number % 7 == 5 and is_content(answer):
            answer.give_part(min(77, answer.asked()[1] - answer.asked()[0]))
        else:
            return False
        return True

    return fault


FAULTS: dict[str, Callable[[], list[Fault]]] = {
    "none": list,
    "500": lambda: [failing(500, 4)],
    "429": lambda: [failing(429, 4, {"Retry-After": "0"}, is_anything)],
    "cut": lambda: [cutting(120, 25)],
    "slow": lambda: [answer_slowly()],
    "all": lambda: [answer_badly_at_intervals()],
}


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("world_size", [1, 2])
def test_faults_do_not_change_the_batches(
    stored: Hub, tmp_path: Path, whole: Run, fault: str, world_size: int
) -> None:
    stored.faults = FAULTS[fault]()
    from_hub = run(hub_config(tmp_path), STEPS, world_size=world_size)
    assert same(from_hub, whole)
    assert from_hub.state["streams"] == whole.state["streams"]


def test_loader_processes_give_the_same_batches_despite_faults(
    stored: Hub, tmp_path: Path, whole: Run
) -> None:
    stored.faults = [answer_badly_at_intervals()]
    assert same(run(hub_config(tmp_path, num_workers=2), STEPS), whole)


def test_a_cache_that_is_too_small_does_not_change_the_batches(
    stored: Hub, tmp_path: Path, whole: Run
) -> None:
    assert same(run(hub_config(tmp_path, hub_cache_gb=1e-6), STEPS), whole)
    assert same(run(hub_config(tmp_path, hub_cache_gb=0), STEPS), whole)


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("kept", [True, False])
def test_a_resume_in_the_middle_of_a_file_continues_the_batches(
    stored: Hub, tmp_path: Path, whole: Run, steps: int, kept: bool
) -> None:
    stored.faults = [answer_badly_at_intervals()]
    first = run(hub_config(tmp_path / "1"), steps)
    config = hub_config(tmp_path / "1" if kept else tmp_path / "2")
    rest = run(config, STEPS - steps, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["strict", "skip"])
def test_giving_up_ends_the_run(stored: Hub, tmp_path: Path, workers: int, policy: str) -> None:
    """A shard that becomes unreadable never counts as ended or damaged."""
    stored.faults = [
        failing(
            503, 10**6, where=lambda request: "part-01" in request.path and "600" in request.range
        )
    ]
    config = hub_config(tmp_path, num_workers=workers, bad_documents=policy, hub_retries=2)
    with pytest.raises(DataError) as error:
        run(config, 40)
    assert "/part-01.jsonl.gz, byte 600 of " in str(error.value)
    assert "given up after 3 failures in a row, the last one: HTTP 503" in str(error.value)


def test_a_file_that_changes_ends_the_run(stored: Hub, tmp_path: Path) -> None:
    stored.files = {name: content[::-1] for name, content in stored.files.items()}
    with pytest.raises(DataError, match="the file has changed since it was listed"):
        run(hub_config(tmp_path), 1)


def test_a_moved_branch_is_refused_on_resume(stored: Hub, tmp_path: Path, whole: Run) -> None:
    first = run(hub_config(tmp_path), 3)
    before = stored.commit
    stored.commit = "ab" * 20
    resolve_commit.cache_clear()
    with pytest.raises(ConfigurationError) as error:
        run(hub_config(tmp_path), 1, state=first.state)
    assert f"shards.hf://datasets/owner/name: {before} in the checkpoint, {'ab' * 20} now" in str(
        error.value
    )
    stored.commit = before
    rest = run(hub_config(tmp_path, dataset_revision=before), STEPS - 3, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)


def test_an_offline_run_reads_the_cache(
    stored: Hub, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(hub_config(tmp_path), STEPS)
    resolve_commit.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    stored.requests.clear()
    assert same(run(hub_config(tmp_path), STEPS), whole)
    assert not stored.requests
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set, and .* has no listing of"):
        run(hub_config(tmp_path / "elsewhere"), 1)


def test_a_held_out_file_may_be_on_the_hub(stored: Hub, tmp_path: Path) -> None:
    held_out = stored.files["part-01.jsonl.gz"]
    stored.files = stored.listed = {**stored.files, "copy.jsonl.gz": held_out}
    names = {"train_file": None, "dataset_name": "owner/name", "validation_file": "part-01.*"}
    with pytest.raises(
        DataError, match=r"/copy\.jsonl\.gz, line \d+: the document has the text of"
    ):
        run(hub_config(tmp_path, **names), 40)
    kept = run(hub_config(tmp_path, **names, on_test_overlap="drop", num_streams=1), 40)
    shards = {name.split(":")[0] for step in kept.documents for name in step}
    assert shards == {f"part-0{number}.jsonl.gz" for number in (0, 2, 3, 4, 5)}


@pytest.mark.parametrize("form", ["gz", "plain"])
def test_access_points_limit_the_fetched_blocks(
    hub: Hub, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a line in the middle fetches the blocks around it, not all blocks before it."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(compression, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(compression, "COMPRESSED_BLOCK_BYTES", 2_000)
    monkeypatch.setattr(index_module, "SPACING_BYTES", 40_000)
    monkeypatch.setattr(index_module, "MIN_INDEXED_BYTES", 1 << 10)
    name, content = {
        "gz": ("shard.jsonl.gz", gzip.compress(DATA, 9)),
        "plain": ("shard.jsonl", DATA),
    }[form]
    hub.files = hub.listed = {name: content}
    config = hub_config(tmp_path, train_file=f"hf://datasets/owner/name/{name}", hub_cache_gb=0)
    (shard,) = list_shards(config)
    indexes = IndexCache(Cache(config.cache_dir))
    indexes.request(shard.path)
    wait_until(lambda: indexes.load(shard.path) is not None)
    hub.requests.clear()
    reader = LineReader(shard.path, indexes)
    reader.read(0, 1)
    assert reader.read(2300, 50) == LINES[2300:2350]
    reader.close()
    first = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in hub.content_requests()]
    assert all(offset <= 20_000 or offset > len(content) * 0.8 for offset in first)
    assert max(first) > 20_000


def test_a_shard_that_cannot_be_indexed_only_warns(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_module, "MIN_INDEXED_BYTES", 1)
    hub.files = hub.listed = {"shard.jsonl.gz": gzip.compress(DATA[:100_000])}
    config = hub_config(tmp_path, hub_retries=1)
    (shard,) = list_shards(config)
    hub.faults = [failing(500, 10**6)]
    IndexCache(Cache(config.cache_dir)).request(shard.path)
    wait_until(lambda: "no access points for hf://datasets/owner/name@" in caplog.text)

"""One process looks at the data; the others read as if each had looked."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote.hub import resolve_commit
from bsmeta.data.stream.survey import Survey, survey_data
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.helpers import pages, small_config, small_tokenizer, write_shard, write_shards
from tests.data.hub_server import COMMIT, Hub, shards_in

HELD_OUT = 3  # documents of the first shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards."""
    (tmp_path / "first").mkdir()
    return write_shards(tmp_path / "first", [20, 31, 17])


def stream(config: DataConfig, rank: int, survey: Survey | None) -> TrainStream:
    return TrainStream(
        config,
        small_tokenizer(),
        seed=1,
        rank=rank,
        world_size=2,
        global_batch_size=4,
        survey=survey,
    )


def send(survey: Survey) -> Survey:
    """Returns a survey as another process receives it."""
    return pickle.loads(pickle.dumps(survey))


def documents(stream: TrainStream, steps: int = 12) -> list[str]:
    """Returns the names of the documents of the first steps."""
    read = iter(stream)
    return [
        name for _ in range(steps) for batch in next(read).micro_batches for name in batch.documents
    ]


def test_ranks_with_a_received_survey_read_the_same_documents(folder: Path, tmp_path: Path) -> None:
    held_out = write_shard(tmp_path / "held.jsonl.gz", pages(HELD_OUT))
    config = small_config(
        folder, validation_file=str(held_out), on_test_overlap="drop", num_streams=2
    )
    survey = survey_data(config)
    held_out.unlink()  # only one machine needs it to train
    surveyed, given = [stream(config, rank, send(survey)) for rank in (0, 1)]
    assert surveyed.fingerprint == given.fingerprint
    names = documents(surveyed) + documents(given)
    write_shard(held_out, pages(HELD_OUT))
    expected = [stream(config, rank, None) for rank in (0, 1)]
    assert [document.fingerprint["shards"] for document in expected] == [
        surveyed.fingerprint["shards"]
    ] * 2
    assert names == documents(expected[0]) + documents(expected[1])
    assert not {f"part-00.jsonl.gz:{number}" for number in range(HELD_OUT)} & {*names}


def test_a_machine_may_have_the_shards_in_another_folder(folder: Path, tmp_path: Path) -> None:
    survey = survey_data(small_config(folder, num_streams=2))
    config = small_config(shutil.copytree(folder, tmp_path / "second"), num_streams=2)
    shutil.rmtree(folder)
    assert len(documents(stream(config, 1, send(survey)))) > 0


def test_a_machine_without_a_shard_is_refused(folder: Path, tmp_path: Path) -> None:
    survey = survey_data(small_config(folder, num_streams=2))
    config = small_config(shutil.copytree(folder, tmp_path / "second"), num_streams=2)
    (tmp_path / "second" / "part-01.jsonl.gz").unlink()
    with pytest.raises(
        DataError, match=r"second names 2 shards on \S+, and 3 .* only one.*part-01\.jsonl\.gz"
    ):
        stream(config, 1, send(survey))


@pytest.mark.parametrize("folder_name", ["first", "second"])
def test_a_shard_that_differs_on_a_machine_is_refused_when_opened(
    folder: Path, tmp_path: Path, folder_name: str
) -> None:
    """Also on the machine that listed it, if it changes during the run."""
    survey = survey_data(small_config(folder, num_streams=2))
    shutil.copytree(folder, tmp_path / "second")
    for path in (tmp_path / folder_name).iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    read = stream(small_config(tmp_path / folder_name, num_streams=2), 1, send(survey))
    with pytest.raises(
        DataError, match=rf"/{folder_name}/part-\S+ on \S+ is not the file that was list"
    ):
        next(iter(read))


def test_only_one_process_lists_the_hub(hub: Hub, folder: Path, tmp_path: Path) -> None:
    hub.files = hub.listed = shards_in(folder)
    config = small_config(
        folder,
        num_streams=2,
        train_file="hf://datasets/owner/name/*.jsonl.gz",
        validation_file="hf://datasets/owner/name/part-01.jsonl.gz",
    )
    first = replace(config, cache_dir=str(tmp_path / "cache-0"))
    survey = send(survey_data(first))
    resolve_commit.cache_clear()
    before = len(hub.requests)
    second = replace(config, cache_dir=str(tmp_path / "cache-1"))
    given = stream(second, 1, survey)
    assert len(hub.requests) == before
    found = survey.remote_held_out
    held_out = HeldOutDocuments(
        second, max_documents=None, deduplicate=False, training_overlap=None, remote_file=found
    )
    assert len(held_out) == 31
    assert isinstance(held_out.path, FileRef)
    assert held_out.path.settings.cache_folder == str(tmp_path / "cache-1" / "hub")
    since = hub.requests[before:]
    assert since
    assert not [path for _, path, _ in since if path.startswith("/api/")]
    paths = {shard.path for shard in given._streams.shards}  # type: ignore[union-attr]
    folders = {path.settings.cache_folder for path in paths if isinstance(path, FileRef)}
    assert folders == {str(tmp_path / "cache-1" / "hub")}
    assert len(documents(given)) > 0


def test_all_processes_read_the_commit_that_the_first_process_listed(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    """Also if a machine lists the data itself, since it has the local shards in another folder."""
    hub.files = hub.listed = shards_in(folder)
    (tmp_path / "a").mkdir()
    write_shard(tmp_path / "a" / "local.jsonl.gz", pages(9))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    keys = {"num_streams": 2, "cache_dir": str(tmp_path / "cache")}
    named = [
        ["hf://datasets/owner/name/*.jsonl.gz", str(tmp_path / place / "*.gz")] for place in "ab"
    ]
    survey = survey_data(small_config(folder, **keys, train_file=named[0]))
    resolve_commit.cache_clear()
    hub.commit = "1" * 40
    given = stream(small_config(folder, **keys, train_file=named[1]), 1, send(survey))
    paths = {shard.path for shard in given._streams.shards}  # type: ignore[union-attr]
    assert {path.version for path in paths if isinstance(path, FileRef)} == {COMMIT}
    assert str(tmp_path / "b" / "local.jsonl.gz") in paths

"""The start of a run on several processes: one of them looks at the data, for all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.bucket_server import BUCKET, SECRET
from tests.data.helpers import write_shards
from tests.data.hub_server import shards_in
from tests.data.s3_server import S3Server

SCRIPT = Path(__file__).with_name("watched_train.py")
Launch = Callable[..., subprocess.CompletedProcess[str]]
KEYS = (
    "max_train_steps=2",
    "num_warmup_steps=0",
    "save_steps=0",
    "eval_steps=0",
    "trackers=[]",
    "gradient_accumulation_steps=1",
    "log_documents=true",
    "data_config.num_streams=2",
    "data_config.num_workers=0",
    "data_config.window_documents=8",
    "data_config.per_device_train_batch_size=1",
    "data_config.metadata_config.max_seq_len=64",
)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Six shards."""
    (tmp_path / "shards").mkdir()
    return write_shards(tmp_path / "shards", [20, 31, 17, 26, 23, 19])


def start(
    launch: Launch, folder: Path, name: str, *keys: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Starts a run of two processes, which writes to the folder `name`."""
    (folder / name).mkdir()
    own = (
        f"out_dir={folder / name / 'run'}",
        f"data_config.train_file={folder / 'shards'}",
        f"data_config.cache_dir={folder / 'cache'}",
    )
    environment |= {"SEEN": str(folder / name), "WATCHED": str(folder / "shards")}
    return launch(SCRIPT, *KEYS, *own, *keys, processes=2, check=False, **environment)


def files(folder: Path, rank: int) -> list[str]:
    """Returns the names of files that a rank opened or listed."""
    lines = (folder / f"files-rank{rank}.txt").read_text().splitlines()
    return [Path(line).name for line in lines]


def trained_on(folder: Path, rank: int) -> set[str]:
    """Returns the shards of the documents that a rank trained on."""
    lines = (folder / "run" / f"documents-rank{rank}.jsonl").read_text().splitlines()
    named = [name for line in map(json.loads, lines) for name in line["documents"]]
    return {name.partition(":")[0] for name in named}


@pytest.mark.long
def test_only_one_rank_lists_and_samples_and_a_restart_reads_only_used_shards(
    launch: Launch, shards: Path, tmp_path: Path
) -> None:
    every = {path.name for path in shards.iterdir()}
    keys = ("data_config.validation_file=null",)
    first = start(launch, tmp_path, "first", *keys)
    assert first.returncode == 0, first.stderr[-3000:]
    assert every | {"shards"} == {*files(tmp_path / "first", 0)}
    assert {*files(tmp_path / "first", 1)} == trained_on(tmp_path / "first", 1)
    # The hashes are in the cache: what is opened again are documents, to check them or train on.
    again = start(launch, tmp_path, "again", *keys)
    assert again.returncode == 0, again.stderr[-3000:]
    looked_at = {"part-00.jsonl.gz", "part-02.jsonl.gz", "part-05.jsonl.gz"}
    found = {*files(tmp_path / "again", 0)} - {"shards"}
    assert found == looked_at | trained_on(tmp_path / "again", 0) < every
    assert {*files(tmp_path / "again", 1)} == trained_on(tmp_path / "again", 1)


@pytest.mark.long
def test_only_one_rank_lists_a_bucket(launch: Launch, shards: Path, tmp_path: Path) -> None:
    """The other rank reads the objects listed by the first."""
    access = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
    server = S3Server()
    try:
        server.connect(*access.values())
        server.put(shards_in(shards))
        server.requests.clear()
        done = start(
            launch,
            tmp_path,
            "run",
            "data_config.validation_file=null",
            f"data_config.train_file=s3://{BUCKET}/*.jsonl.gz",
            **access,
            AWS_ENDPOINT_URL=server.endpoint,
            AWS_EC2_METADATA_DISABLED="true",
            NO_PROXY="127.0.0.1",
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert len([path for _, path, _ in server.requests if "list-type=2" in path]) == 1
    assert trained_on(tmp_path / "run", 0) | trained_on(tmp_path / "run", 1) <= {
        path.name for path in shards.iterdir()
    }


def test_an_error_of_the_listing_rank_ends_all_ranks(
    launch: Launch, shards: Path, tmp_path: Path
) -> None:
    """The held-out file is truncated, which only its reader can detect."""
    held_out = tmp_path / "held.jsonl.gz"
    held_out.write_bytes((shards / "part-03.jsonl.gz").read_bytes()[:-200])
    done = start(launch, tmp_path, "run", f"data_config.validation_file={held_out}")
    assert done.returncode != 0
    errors = [(tmp_path / "run" / f"error-rank{rank}.txt").read_text() for rank in (0, 1)]
    assert errors[0] == errors[1]
    assert errors[0].startswith("DataError: data_config.validation_file: ")
    assert "cannot be kept out of training" in errors[0]
    status = json.loads((tmp_path / "run" / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert errors[0] == f"DataError: {status['message']}"

"""Row 10 of the fault matrix, for a bucket: a run that is killed, and resumed, on `s3://`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data.bucket_server import BUCKET, cutting, failing
from tests.data.helpers import write_shards
from tests.data.hub_server import shards_in
from tests.data.s3_server import S3Server
from tests.faults.conftest import RESUME, Run, list_metrics, same_run
from tests.faults.test_hub import KEYS, TRAIN

pytestmark = pytest.mark.faults

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLE",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A bucket of six shards; a run of 40 steps reads each several times."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "shards").mkdir()
    server = S3Server()
    server.connect()
    server.put(shards_in(write_shards(tmp_path / "shards", [20, 31, 17, 26, 23, 19])))
    yield server
    server.close()


@pytest.mark.slow
def test_row_10_a_killed_run_on_a_bucket_equals_a_run_on_local_files(
    start: Callable[..., Run], complete: Callable[..., Run], s3: S3Server, tmp_path: Path
) -> None:
    """Documents and losses are the same in spite of bad answers."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    named = {"options": ("--config-name", "demo"), "script": TRAIN, "cold": True}
    local = f"data_config.train_file={tmp_path / 'shards'}"
    complete(whole, *KEYS, local, **named)
    keys = (
        *KEYS,
        f"data_config.train_file=s3://{BUCKET}/*.jsonl.gz",
        f"data_config.cache_dir={killed}-cache",
    )
    named |= {**ENVIRONMENT, "AWS_ENDPOINT_URL": s3.endpoint}
    s3.faults = [failing(503, "SlowDown", 2), cutting(120, 2)]
    run = start(killed, *keys, **named)
    run.until(lambda: (killed / "metrics.jsonl").exists() and len(list_metrics(killed)) >= 12)
    for pid in run.workers():
        os.kill(pid, signal.SIGKILL)
    assert run.wait() != 0
    s3.faults = [failing(503, "SlowDown", 2), cutting(120, 2)]
    again = start(killed, *keys, RESUME, **named)
    assert again.wait() == 0, again.errors[-3000:]
    assert same_run(killed, whole)

"""Buckets for runs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.data.bucket_server import SECRET, BucketServer
from tests.data.cloud_storage_server import Storage
from tests.data.s3_server import S3Server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server with an empty bucket; requests are sent three times."""
    server = S3Server()
    environment = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "3",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    httpx2.post(f"{server.endpoint}/moto-api/reset")  # all servers of a process share their objects
    server.connect()
    yield server
    server.close()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A server with an empty bucket; delays between requests are short."""
    monkeypatch.setattr("bsmeta.training.buckets.bucket.MAX_DELAY_S", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Storage()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    yield server
    server.close()


SLOW_ON_GCS = pytest.mark.parametrize(
    "server", ["s3", pytest.param("gcs", marks=pytest.mark.slow)], indirect=True
)
"""Whole runs; those on the second store are slow tests."""


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> BucketServer:
    """An empty bucket of each store."""
    server: BucketServer = request.getfixturevalue(request.param)
    return server

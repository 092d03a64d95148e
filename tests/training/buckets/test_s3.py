"""Credentials and connections of a run on S3; `test_bucket.py` tests the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.training.buckets.s3 import S3Bucket
from tests.data.s3_server import S3Server
from tests.launching.networks import free_port


def test_missing_credentials_are_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="no credentials; set AWS_ACCESS_KEY_ID"):
        S3Bucket(s3.run_url)


def test_a_server_that_cannot_be_reached_is_named(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(DataError, match="reading claim: .*AWS_ENDPOINT_URL, a proxy"):
        S3Bucket(s3.run_url).read("claim")

"""Credentials of a run on S3; `test_bucket.py` tests the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.training.s3_bucket import S3Bucket
from tests.data.s3_server import S3Server


def test_missing_credentials_are_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="no credentials; set AWS_ACCESS_KEY_ID"):
        S3Bucket(s3.run_url)

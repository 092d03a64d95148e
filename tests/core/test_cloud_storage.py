"""Server and credentials of Cloud Storage: an emulator, a token that expires, unreadable files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth.exceptions import DefaultCredentialsError, RefreshError

from bsmeta.core.cloud_storage import READ_SCOPE, CloudStorageAccess, read_error_message
from bsmeta.core.secrets import redact
from tests.data.cloud_storage_server import Storage, gs

__all__ = ["gs"]

TOKEN = "ya29.c.Ko8BvQdJ4mX7pRtYw2LkNzHs"


def write_credentials(file: Path, token_uri: str) -> Path:
    """Writes the credentials of a service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    content = {
        "type": "service_account",
        "client_email": "runs@research.iam.gserviceaccount.com",
        "private_key": pem.decode(),
        "token_uri": token_uri,
    }
    file.write_text(json.dumps(content))
    return file


def test_an_emulator_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9023")
    access = CloudStorageAccess.open(READ_SCOPE)
    assert access.endpoint == "http://localhost:9023"
    assert (access.is_emulator, access.has_credentials) == (True, False)
    assert access.make_authorization_header() == {}


def test_a_token_is_requested_renewed_and_redacted(
    gs: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gs.token = TOKEN
    file = write_credentials(tmp_path / "account.json", f"{gs.endpoint}/token")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    access = CloudStorageAccess.open(READ_SCOPE)
    assert (access.is_emulator, access.has_credentials) == (False, True)
    assert access.endpoint == "https://storage.googleapis.com"
    for _ in range(2):
        assert access.make_authorization_header() == {"Authorization": f"Bearer {TOKEN}"}
    assert [path for _, path, _ in gs.requests] == ["/token?"]
    assert TOKEN not in redact(f"header: {TOKEN}")

    gs.statuses = [400]
    with pytest.raises(RefreshError):
        CloudStorageAccess.open(READ_SCOPE).make_authorization_header()


def test_unreadable_credentials_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(DefaultCredentialsError):
        CloudStorageAccess.open(READ_SCOPE)


def test_the_message_of_an_error_is_read() -> None:
    assert read_error_message(b'{"error": {"code": 404, "message": "No such object"}}') == (
        "No such object"
    )
    for body in (b"<html>", b"{}", b"[]", b""):
        assert read_error_message(body) == ""

"""The server and the credentials of Google Cloud Storage, as Google's own tools find them."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import declare_secrets

READ_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
WRITE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

SERVER = "https://storage.googleapis.com"


class CloudStorageAccess:
    """Access to Cloud Storage, or without credentials to the emulator at STORAGE_EMULATOR_HOST.

    Attributes:
        endpoint: URL of the server.
        has_credentials: Whether requests are authorized.
        is_emulator: Whether the server is another one than Google's.
    """

    def __init__(self, endpoint: str, credentials: Any) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._lock = threading.Lock()

    @classmethod
    def open(cls, scope: str) -> CloudStorageAccess:
        """Finds the server and the credentials.

        Raises:
            google.auth.exceptions.DefaultCredentialsError: If the configured credentials cannot be
                read. Without any, requests are not authorized.
        """
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            return cls(emulator if "://" in emulator else f"http://{emulator}", None)

        try:
            credentials, _ = google.auth.default(scopes=[scope])
        except DefaultCredentialsError:
            if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                raise
            credentials = None
        return cls(SERVER, credentials)

    @property
    def has_credentials(self) -> bool:
        return self._credentials is not None

    @property
    def is_emulator(self) -> bool:
        return self.endpoint != SERVER

    def make_authorization_header(self) -> dict[str, str]:
        """Returns the header with the token, which is renewed if it has expired; empty without one.

        Raises:
            google.auth.exceptions.GoogleAuthError: If the token cannot be renewed; a TransportError
                if a retry may succeed.
        """
        if self._credentials is None:
            return {}
        from google.auth.transport.requests import Request

        with self._lock:
            if not self._credentials.valid:
                self._credentials.refresh(Request())
        declare_secrets(self._credentials.token)
        return {"Authorization": f"Bearer {self._credentials.token}"}


class _ErrorDetails(msgspec.Struct):
    """The `error` of an error response."""

    message: str = ""


class _ErrorResponse(msgspec.Struct):
    """An error response of the JSON API."""

    error: _ErrorDetails


def read_error_message(body: bytes) -> str:
    """Returns the message of an error response of the JSON API; "" if there is none."""
    try:
        return decode_json(body, _ErrorResponse).error.message
    except msgspec.MsgspecError:
        return ""

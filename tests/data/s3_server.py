"""A bucket on a local S3 server (moto) that can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from botocore.session import Session
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "corpus"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLE"

Environ = dict[str, Any]
Fault = Callable[[Environ], tuple[int, dict[str, str], bytes] | int | None]
"""Looks at a request: an answer of its own, the bytes after which the answer is cut, or None."""


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Says nothing."""


class S3Server:
    """moto's server after the faults of a test.

    Attributes:
        faults: Asked in turn at each request.
        requests: What was asked: method, path with query, range.

    Args:
        certificate: Files of a certificate for `localhost` and its key; without them, the server
            does not speak TLS.
    """

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self._server = make_server(
            "127.0.0.1",
            0,
            self._answer,
            threaded=True,
            request_handler=_Quiet,
            ssl_context=certificate,
        )
        origin = "https://localhost" if certificate else "http://127.0.0.1"
        self.endpoint = f"{origin}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def connect(self, key_id: str | None = None, secret: str | None = None) -> None:
        """Creates the bucket; without a key, with the credentials of the environment."""
        self.client = Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
        )
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, files: dict[str, bytes]) -> None:
        """Stores objects."""
        for key, content in files.items():
            self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def content_requests(self) -> list[str]:
        """The ranges of objects that were asked for."""
        return [asked for method, _, asked in self.requests if method == "GET" and asked]

    def _answer(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        self.requests.append((environ["REQUEST_METHOD"], query, environ.get("HTTP_RANGE", "")))
        for fault in list(self.faults):
            answer = fault(environ)
            if isinstance(answer, tuple):
                status, headers, body = answer
                given = {"Content-Length": str(len(body)), **headers}
                start_response(f"{status} -", list(given.items()))
                return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
            if isinstance(answer, int):
                return [b"".join(self._app(environ, start_response))[:answer]]
        return self._app(environ, start_response)


def is_content(environ: Environ) -> bool:
    """Whether a request is for bytes of an object."""
    return "HTTP_RANGE" in environ


def error(code: str) -> bytes:
    """The body of a refusal."""
    return f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()


def failing(
    status: int, code: str, times: int, where: Callable[[Environ], bool] = is_content
) -> Fault:
    """The first requests get a bad status."""
    left = [times]

    def fault(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        if not where(environ) or left[0] <= 0:
            return None
        left[0] -= 1
        return status, {}, error(code)

    return fault


def cutting(after: int, times: int) -> Fault:
    """The first answers with content end after so many bytes."""
    left = [times]

    def fault(environ: Environ) -> int | None:
        if not is_content(environ) or left[0] <= 0:
            return None
        left[0] -= 1
        return after

    return fault

"""What the local servers of buckets have in common: faults, requests and the objects of a test."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Protocol

BUCKET = "corpus"
RUN_PREFIX = "runs/first"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLE"

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""
Environ = dict[str, Any]
Fault = Callable[[Environ], Answer | int | None]
"""Looks at a request: an answer of its own, the bytes after which the answer is cut, or None.

All servers describe a request as S3 receives it: PUT, GET, HEAD and DELETE of /BUCKET/KEY.
"""


class BucketServer(Protocol):
    """A server with the bucket of the tests.

    Attributes:
        run_url: Address of the run of a test.
        faults: Asked in turn at each request.
        requests: What was asked: method, path with query, range.
    """

    run_url: str
    faults: list[Fault]
    requests: list[tuple[str, str, str]]

    def put(self, files: dict[str, bytes]) -> None:
        """Stores objects."""

    def remove(self, key: str) -> None:
        """Deletes an object."""

    def list_keys(self) -> list[str]:
        """Lists all objects in order."""

    def list_unfinished(self) -> list[str]:
        """Lists the objects of unfinished uploads in parts."""


class ObjectServer(ABC):
    """An HTTP server with objects.

    Attributes:
        url: Address of the bucket.
        objects: Content and generation by name.
        statuses: Statuses that the next requests get, the last one first.
        requests: What was asked: method, path with query, range.
    """

    url: ClassVar[str]

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str, str]] = []
        storage = self

        class Handler(BaseHTTPRequestHandler):
            """A request to this server."""

            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                answer, cut = storage.answer(self.command, self.path, self.headers, content)
                status, headers, body = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[:cut])
                if cut is not None:
                    self.close_connection = True

            do_POST = do_PUT = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @abstractmethod
    def answer(
        self, method: str, target: str, headers: Message, content: bytes
    ) -> tuple[Answer, int | None]:
        """Returns the answer to a request, and the bytes after which its body is cut."""

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()

    def put(self, files: dict[str, bytes]) -> None:
        """Stores objects; their generations increase."""
        for name, content in files.items():
            self.objects[name] = (content, self.objects.get(name, (b"", 1))[1] + 1)


def is_content(environ: Environ) -> bool:
    """Whether a request is for bytes of an object."""
    return "HTTP_RANGE" in environ


def list_ranges(server: BucketServer) -> list[str]:
    """Lists the ranges of objects that were asked for."""
    return [asked for method, _, asked in server.requests if method == "GET" and asked]


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

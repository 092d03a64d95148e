"""A server of files on 127.0.0.1 that can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[["Request", bytes], bool]
"""Answers a request for some content wrongly (true), or leaves it to the server."""


class FileServer:
    """The server.

    Attributes:
        files: Content by path.
        faults: Faults for the next requests, one each; later answers are correct.
        ranges: The requested ranges.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: list[Fault] = []
        self.ranges: list[str | None] = []
        server = self

        class Handler(Request):
            """A request to this server."""

            def do_GET(self) -> None:
                self.answer(server)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """Returns the beginning of the addresses of files."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[FileServer]:
        """Serves in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class Request(BaseHTTPRequestHandler):
    """A request, and ways to answer it."""

    def answer(self, server: FileServer) -> None:
        """Sends the file from the requested byte on, or performs the next fault."""
        asked = self.headers["Range"]
        server.ranges.append(asked)
        content = server.files.get(self.path)
        if server.faults and server.faults.pop(0)(self, content or b""):
            return
        if content is None:
            self.send_error(404)
        elif asked is None:
            self.send(200, content)
        else:
            start = self.start
            stated = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send(206, content[start:], **{"Content-Range": stated})

    @property
    def start(self) -> int:
        """Returns the first requested byte."""
        return int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").rstrip("-"))

    def send(self, status: int, content: bytes, length: int | None = None, **headers: str) -> None:
        """Sends an answer, which may state a wrong length."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

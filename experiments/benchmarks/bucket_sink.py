"""A server with the interface of S3 that discards what is uploaded, so that it takes little time.

    python experiments/benchmarks/bucket_sink.py

prints its address, and serves until it is killed. It keeps the names of all objects, and the
content of small ones, so that a run can claim its prefix, and list and delete its objects.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MAX_KEPT_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


class Handler(BaseHTTPRequestHandler):
    """Answers one request; all requests share the objects."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}
    access: ClassVar[threading.Lock] = threading.Lock()

    def do_PUT(self) -> None:
        """Stores an object or a part; with `If-None-Match`, only if there is none."""
        key, query = self._parse_path()
        content = self._read_body()
        with self.access:
            exists = key in self.objects
            is_refused = exists and "If-None-Match" in self.headers
            if not is_refused and "partNumber" not in query:
                self.objects[key] = content
        if is_refused:
            self._answer_error(412, "PreconditionFailed")
        else:
            self._answer(200, ETag='"0"')

    def do_POST(self) -> None:
        """Begins or completes an upload in parts."""
        key, query = self._parse_path()
        self._read_body()
        if "uploads" in query:
            body = "<InitiateMultipartUploadResult><UploadId>1</UploadId>"
            self._answer(200, f"{body}</InitiateMultipartUploadResult>")
            return
        with self.access:
            self.objects[key] = b""
        self._answer(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def do_GET(self) -> None:
        """Lists objects, or returns the content of a small one."""
        key, query = self._parse_path()
        with self.access:
            objects = dict(self.objects)
        if "list-type" in query:
            bucket = key.strip("/")
            prefix = f"{bucket}/{query['prefix'][0]}"
            entries = [
                f"<Contents><Key>{escape(name.removeprefix(bucket + '/'))}</Key>"
                "<Size>0</Size></Contents>"
                for name in sorted(objects)
                if name.startswith(prefix)
            ]
            body = "".join(entries)
            self._answer(200, f"<ListBucketResult>{body}</ListBucketResult>")
        elif key in objects:
            self._answer(200, objects[key].decode())
        else:
            self._answer_error(404, "NoSuchKey")

    def do_HEAD(self) -> None:
        """Returns whether an object exists."""
        key, _ = self._parse_path()
        self._answer(200 if key in self.objects else 404)

    def do_DELETE(self) -> None:
        """Deletes an object."""
        key, _ = self._parse_path()
        with self.access:
            self.objects.pop(key, None)
        self._answer(204)

    def _parse_path(self) -> tuple[str, dict[str, list[str]]]:
        """Returns `BUCKET/KEY` and the parameters of the request."""
        parts = urlsplit(self.path)
        return unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)

    def _read_body(self) -> bytes:
        """Reads the body; returns it if it is small."""
        length = int(self.headers.get("Content-Length", "0"))
        if length <= MAX_KEPT_BYTES:
            return self.rfile.read(length)
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        while length > 0:
            num_bytes = self.rfile.readinto(buffer[: min(length, _BLOCK_BYTES)])
            if not num_bytes:
                break
            length -= num_bytes
        return b""

    def _answer(self, status: int, body: str = "", **headers: str) -> None:
        """Sends a response."""
        content = body.encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _answer_error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def main() -> None:
    """Serves on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
